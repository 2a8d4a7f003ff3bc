#include "view_image.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "core/text.h"
#include "format.h"
#include "heatmap.h"
#include "json.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/io/image_file.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/image_processor.h"
#include "polyhead/models/vision_encoder.h"
#include "terminal.h"
#include "text_layout.h"
#include "view_input.h"

namespace polyhead::app {
namespace {

// An image and the model's results for it.
struct Seen {
  std::string path;
  Tensor fitted, pixels;  // [height,width,3] uint8 and [3,height,width] float32
  Tensor attentions, hidden, pooled, logits, embedding;
  Tensor q, k, v;
  std::int64_t left_out = 0;  // how many numbers of q, k and v the page leaves out
};

class Viewed {
 public:
  explicit Viewed(const ImageView& given) : o_(given), encoder_(open_vision_encoder(given.model)), processor_(models::read_image_processor(given.model)) {}

  void run() {
    const models::VisionConfig& c = encoder_.config;
    choice_ = choose_head(o_.layer, o_.head, o_.mean, c.layers, c.layer.heads);
    const std::int64_t weights = numel({std::ssize(o_.images), c.layers, c.layer.heads, c.tokens(), c.tokens()});
    if (!o_.page.empty() && weights > viewer::kMaxAttentionWeights)
      fail(ErrorCode::invalid_argument, "a page holds at most ", viewer::kMaxAttentionWeights, " attention weights and these ", counted(o_.images.size(), "image"), " have ", weights, "; give fewer images, or --arrays");
    viewer::VectorBudget budget(o_.values);
    Json list = Json::array();
    for (const std::string& path : o_.images) {
      Seen seen = see(path, budget);
      const Tensor map = chosen_map(seen.attentions, choice_);
      if (o_.json) list.push_back(to_json(seen, map));
      if (o_.page.empty() && !o_.json) draw(seen, map);
      seen_.push_back(std::move(seen));
    }
    write(std::move(list));
  }

 private:
  Seen see(const std::string& path, viewer::VectorBudget& budget) const {
    const models::VisionConfig& c = encoder_.config;
    Seen seen{.path = path};
    const Tensor image = io::read_image(path);
    seen.fitted = fitted(processor_, image);
    seen.pixels = normalised(processor_, seen.fitted);
    const std::int64_t tokens = c.tokens(), numbers = 3 * c.layers * tokens * c.layer.width;
    const auto made = [](const Shape& shape) { return shape[-1] == 0 ? Tensor() : Tensor(DType::f32, shape); };
    seen.attentions = made({c.layers, c.layer.heads, tokens, tokens});
    seen.hidden = made({tokens, c.layer.width});
    seen.pooled = made({encoder_.pooled_width()}), seen.logits = made({encoder_.classes()}), seen.embedding = made({encoder_.embedding_width()});
    const bool fits = !o_.page.empty() && budget.take(numbers);
    seen.left_out = fits || o_.page.empty() ? 0 : numbers;
    if (fits)
      for (Tensor* one : {&seen.q, &seen.k, &seen.v}) *one = made({c.layers, c.layer.heads, tokens, c.layer.width / c.layer.heads});
    encoder_.forward(seen.pixels, {.hidden = seen.hidden, .attentions = seen.attentions, .q = seen.q, .k = seen.k, .v = seen.v, .pooled = seen.pooled, .logits = seen.logits, .embedding = seen.embedding},
                     {.workspace = &workspace_});
    return seen;
  }

  std::string label(std::int64_t index) const {
    const std::vector<std::string>& labels = encoder_.config.labels;
    return index < std::ssize(labels) ? labels[static_cast<std::size_t>(index)] : cat("class ", index);
  }

  // The classes with the largest logits, largest first.
  std::vector<std::int64_t> best_classes(const Seen& seen, std::size_t most) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(encoder_.classes()));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](std::int64_t i) { return seen.logits.data<float>()[i]; });
    order.resize(std::min(order.size(), most));
    return order;
  }

  // The class token's attention to the patches, [rows,columns]; without a class token the mean over all tokens.
  Tensor read_patches(const Tensor& map) const {
    const models::VisionConfig& c = encoder_.config;
    Tensor patches(DType::f32, {c.rows(), c.columns()});
    const std::int64_t tokens = c.tokens(), queries = c.class_token ? 1 : tokens;
    for (std::int64_t i = 0; i < c.patches(); ++i) {
      float sum = 0;
      for (std::int64_t t = 0; t < queries; ++t) sum += map.data<float>()[t * tokens + c.prefix_tokens() + i];
      patches.data<float>()[i] = sum / static_cast<float>(queries);
    }
    return patches;
  }

  void draw(const Seen& seen, const Tensor& map) const {
    const models::VisionConfig& c = encoder_.config;
    const std::size_t width = terminal_width(Stream::out);
    std::string text = seen_.empty() ? "" : "\n";
    append(text, cat(clip(printable(seen.path), width), "\n"));
    for (const std::int64_t i : best_classes(seen, 5)) append(text, wrap(cat(fixed(seen.logits.data<float>()[i], 2), "  ", printable(label(i))), width));
    append(text, cat(wrap(cat(choice_.description(), "; what ", c.class_token ? "the class token" : "the mean token", " reads in each patch, in percent"), width), "\n"));
    const auto numbered = [](std::int64_t count) {
      std::vector<std::string> names;
      for (std::int64_t i = 1; i <= count; ++i) names.push_back(cat(i));
      return names;
    };
    const Tensor patches = read_patches(map);
    append(text, render({.weights = patches, .rows = numbered(c.rows()), .columns = numbered(c.columns())}, width, colour_of_stdout()));
    print(text);
  }

  Json to_json(const Seen& seen, const Tensor& map) const {
    Json json{{"path", seen.path}, {"map", number_json(map)}};
    if (seen.pooled) json["pooled"] = number_json(seen.pooled);
    if (seen.embedding) json["embedding"] = number_json(seen.embedding);
    if (seen.logits) {
      json["logits"] = number_json(seen.logits);
      json["label"] = label(best_classes(seen, 1)[0]);
    }
    return json;
  }

  void write(Json list) const {
    Json files = Json::object();
    const auto report = [](const std::string& path, const std::string& what) { print_diagnostic(cat("wrote '", path, "' (", what, ")")); };
    if (!o_.arrays.empty()) {
      std::vector<io::NamedView> arrays;
      Json paths = Json::array();
      for (std::size_t i = 0; i < seen_.size(); ++i) {
        const Seen& seen = seen_[i];
        const std::pair<const char*, const Tensor*> all[] = {{"pixels", &seen.pixels}, {"attentions", &seen.attentions}, {"hidden", &seen.hidden}, {"pooled", &seen.pooled}, {"logits", &seen.logits}, {"embedding", &seen.embedding}};
        for (const auto& [name, tensor] : all)
          if (*tensor) arrays.push_back({cat(name, seen_.size() == 1 ? std::string() : cat("_", i)), *tensor});
        paths.push_back(seen.path);
      }
      io::save_tensors(o_.arrays, arrays, {{"images", to_text(paths)}});
      files["arrays"] = o_.arrays;
      report(o_.arrays, counted(seen_.size(), "image"));
    }
    if (!o_.page.empty()) {
      const std::string html = page();
      if (o_.page == "-") return print(html);
      io::write_file(o_.page, html);
      files["page"] = o_.page;
      report(o_.page, cat(choice_.layers * choice_.heads, " heads, ", byte_size(html.size())));
    }
    if (!o_.json) return;
    const models::VisionConfig& c = encoder_.config;
    print_json({{"model", {{"path", o_.model}, {"layers", c.layers}, {"heads", c.layer.heads}, {"width", c.layer.width}, {"rows", c.rows()}, {"columns", c.columns()}, {"prefix_tokens", c.prefix_tokens()}}},
                {"map", {{"layer", choice_.layer ? Json(*choice_.layer) : Json(nullptr)}, {"head", choice_.head ? Json(*choice_.head) : Json(nullptr)}, {"description", choice_.description()}}},
                {"images", std::move(list)},
                {"files", std::move(files)}});
  }

  viewer::Text text_of(const Seen& seen, const Tensor& shown) const {
    const models::VisionConfig& c = encoder_.config;
    viewer::Text text{.text = std::filesystem::path(seen.path).filename().string(), .attentions = seen.attentions, .left_out = seen.left_out};
    if (seen.logits) append(text.text, cat(": ", label(best_classes(seen, 1)[0])));
    if (c.class_token) text.queries.pieces.emplace_back("[class]");
    if (c.distillation_token) text.queries.pieces.emplace_back("[distillation]");
    for (std::int64_t i = 1; i <= c.registers; ++i) text.queries.pieces.push_back(cat("[register ", i, "]"));
    text.queries.special.assign(static_cast<std::size_t>(c.tokens()), false);
    std::fill_n(text.queries.special.begin(), c.prefix_tokens(), true);
    for (std::int64_t i = 0; i < c.patches(); ++i) text.queries.pieces.push_back(cat(i / c.columns() + 1, ",", i % c.columns() + 1));
    text.image = viewer::Image{.pixels = shown.view().move_axis(0, 2), .rows = c.rows(), .columns = c.columns()};
    if (seen.q) text.vectors = {.q = seen.q, .k = seen.k, .v = seen.v};
    return text;
  }

  std::string page() const {
    const models::VisionConfig& c = encoder_.config;
    viewer::Page page;
    page.title = clip_words(printable(std::filesystem::path(seen_[0].path).filename().string()), 80);
    if (seen_.size() > 1) page.title += cat(" (+", seen_.size() - 1, ")");
    page.model = model_name(o_.model);
    page.language = o_.language.value_or(viewer::Language::readers);
    page.vector_megabytes = o_.values;
    page.start = cat("#layer=", c.layers - 1, "&head=mean", c.class_token ? "&row=0" : "");
    std::vector<Tensor> shown;  // images [3,height,width] with values from 0 to 1
    for (const Seen& seen : seen_)
      shown.push_back(models::normalised({.factor = 1.0 / 255, .normalise = false}, seen.fitted.view().slice(0, 0, c.rows() * c.patch_height).slice(1, 0, c.columns() * c.patch_width)));
    for (std::size_t i = 0; i < seen_.size(); ++i) page.texts.push_back(text_of(seen_[i], shown[i]));
    return viewer::render(page);
  }

  const ImageView& o_;
  models::VisionEncoder encoder_;
  models::ImageProcessor processor_;
  HeadChoice choice_;
  std::vector<Seen> seen_;
  Workspace workspace_{Parameters::constant};
};

}  // namespace

void view_images(const ImageView& given) { Viewed(given).run(); }

}  // namespace polyhead::app
