#include "view_image.h"

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/text.h"
#include "format.h"
#include "heatmap.h"
#include "image_page.h"
#include "json.h"
#include "polyhead/io/image_file.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/any_text_model.h"
#include "polyhead/models/image_processor.h"
#include "polyhead/models/image_text_model.h"
#include "polyhead/models/vision_encoder.h"
#include "run_page.h"
#include "terminal.h"
#include "text_layout.h"
#include "view_head.h"
#include "view_input.h"
#include "view_output.h"

namespace polyhead::app {
namespace {

// `budget` and value_norms: as in see_image().
TextBeside read_text_beside(const std::string& model, const std::string& text, viewer::VectorBudget* budget, bool value_norms) {
  const std::unique_ptr<models::AnyTextModel> side = open_any_model(model);
  require_both_sides(model);
  const auto tokenizer = [&](const InputText& input) { return side->tokenize(input.text, input.pair, models::WhenTooLong::longest_first); };
  return see_text_beside(model, *side, text, std::move(tokenize(tokenizer, side->sizes().longest, {{text, std::nullopt}}, false)[0]), budget, value_norms);
}

class Viewed {
 public:
  explicit Viewed(const ViewOptions& given) : o_(given), encoder_(open_vision_encoder(given.model)), processor_(models::read_image_processor(given.model)) {}

  void run() {
    const models::VisionConfig& c = encoder_.config;
    choice_ = choose_head(o_.layer, o_.head, o_.mean, c.layers, c.layer.heads);
    if (!o_.page.empty()) require_page_of_images(c, std::ssize(o_.images));
    viewer::VectorBudget budget(o_.vector_megabytes.value_or(viewer::Page().vector_megabytes));
    if (!o_.texts.empty()) text_ = read_text_beside(o_.model, o_.texts[0], o_.page.empty() ? nullptr : &budget, has_norms());
    Json list = Json::array();
    for (const std::string& path : o_.images) {
      const Tensor image = io::read_image(path);
      SeenImage seen = see_image(encoder_, processor_, path, image, o_.page.empty() ? nullptr : &budget, has_norms(), &workspace_);
      const Tensor map = chosen_map(seen.attentions, o_.by_norms ? seen.value_norms.view() : ConstTensorView(), choice_);
      if (o_.json) list.push_back(to_json(seen, map));
      if (o_.page.empty() && !o_.json) draw(seen, map);
      seen_.push_back(std::move(seen));
    }
    write(std::move(list));
  }

 private:
  bool has_norms() const { return o_.by_norms || !o_.page.empty(); }
  std::optional<double> similarity(const SeenImage& seen) const { return text_ ? similarity_to(*text_, seen) : std::nullopt; }

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

  void draw(const SeenImage& seen, const Tensor& map) const {
    const models::VisionConfig& c = encoder_.config;
    const std::size_t width = terminal_width(Stream::out);
    std::string text = seen_.empty() ? "" : "\n";
    append(text, cat(clip(printable(seen.name), width), "\n"));
    for (const std::int64_t i : best_classes(seen, 5)) append(text, wrap(cat(fixed(seen.logits.data<float>()[i], 2), "  ", printable(label_of_class(c, i))), width));
    if (const auto fit = similarity(seen)) append(text, wrap(cat(fixed(*fit, 2), "  ", printable(o_.texts[0])), width));
    const Tensor patches = read_patches(map);
    const char* const reader = c.class_token ? "the class token" : "the mean token";
    append(text, cat(wrap(cat(choice_.description(), "; what ", reader, " reads in each patch, ", o_.by_norms ? cat(kNormWeighted, ", in percent of the largest, ", largest_text(patches)) : std::string("in percent")), width), "\n"));
    const Tensor scaled = o_.by_norms ? in_units_of_largest(patches) : Tensor();
    append(text, render({.weights = scaled ? scaled.view() : patches.view(), .rows = numbers_to(c.rows()), .columns = numbers_to(c.columns())}, width, colour_of_stdout()));
    print(text);
  }

  Json to_json(const SeenImage& seen, const Tensor& map) const {
    Json json{{"path", seen.name}, {"map", number_json(map)}};
    if (seen.pooled) json["pooled"] = number_json(seen.pooled);
    if (seen.embedding) json["embedding"] = number_json(seen.embedding);
    if (const auto fit = similarity(seen)) json["similarity"] = *fit;
    if (seen.logits) {
      json["logits"] = number_json(seen.logits);
      json["label"] = label_of_class(encoder_.config, best_classes(seen, 1)[0]);
    }
    return json;
  }

  void write(Json list) const {
    Json files = Json::object();
    if (!o_.arrays.empty()) {
      std::vector<io::NamedView> arrays;
      Json paths = Json::array();
      const Tensor none;
      for (std::size_t i = 0; i < seen_.size(); ++i) {
        const SeenImage& seen = seen_[i];
        const std::pair<const char*, const Tensor*> all[] = {{"pixels", &seen.pixels}, {"attentions", &seen.attentions}, {"value_norms", o_.by_norms ? &seen.value_norms : &none}, {"hidden", &seen.hidden}, {"pooled", &seen.pooled}, {"logits", &seen.logits}, {"embedding", &seen.embedding}};
        for (const auto& [name, tensor] : all)
          if (*tensor) arrays.push_back({cat(name, seen_.size() == 1 ? std::string() : cat("_", i)), *tensor});
        paths.push_back(seen.name);
      }
      if (text_) {
        const std::pair<const char*, const Tensor*> of_text[] = {{"text_ids", &text_->run.ids}, {"text_attentions", &text_->run.attentions}, {"text_value_norms", o_.by_norms ? &text_->run.value_norms : &none}, {"text_embedding", &text_->run.embedding}};
        for (const auto& [name, tensor] : of_text)
          if (*tensor) arrays.push_back({name, *tensor});
      }
      io::save_tensors(o_.arrays, arrays, {{"images", to_text(paths)}});
      files["arrays"] = o_.arrays;
      report_written(o_.arrays, counted(seen_.size(), "image"));
    }
    if (!o_.page.empty()) write_view_page(o_.page, page(), choice_, files);
    if (!o_.json) return;
    const models::VisionConfig& c = encoder_.config;
    print_json({{"model", {{"path", o_.model}, {"layers", c.layers}, {"heads", c.layer.heads}, {"width", c.layer.width}, {"rows", c.rows()}, {"columns", c.columns()}, {"prefix_tokens", c.prefix_tokens()}}},
                {"map", app::to_json(choice_, o_.by_norms)},
                {"images", std::move(list)},
                {"text", o_.texts.empty() ? Json(nullptr) : Json(o_.texts[0])},
                {"files", std::move(files)}});
  }

  std::string page() const {
    const models::VisionConfig& c = encoder_.config;
    std::vector<std::string> names;
    for (const SeenImage& seen : seen_) names.push_back(std::filesystem::path(seen.name).filename().string());
    viewer::Page page = page_frame(names, o_.model, o_.language, o_.vector_megabytes.value_or(viewer::Page().vector_megabytes));
    page.start = address(start_of_images(c), o_.by_norms);
    std::vector<Tensor> shown;
    for (const SeenImage& seen : seen_) shown.push_back(shown_pixels(c, seen));
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      page.texts.push_back(image_text(c, seen_[i], shown[i]));
      std::string& name = page.texts.back().text;
      name.replace(0, seen_[i].name.size(), names[i]);
      if (text_) show_text_beside(*text_, seen_[i], page.texts.back());
    }
    return viewer::render(page);
  }

  const ViewOptions& o_;
  models::VisionEncoder encoder_;
  models::ImageProcessor processor_;
  HeadChoice choice_;
  std::optional<TextBeside> text_;
  std::vector<SeenImage> seen_;
  Workspace workspace_{Parameters::constant};
};

}  // namespace

void view_images(const ViewOptions& given) { Viewed(given).run(); }

}  // namespace polyhead::app
