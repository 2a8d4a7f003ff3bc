#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "polyhead/tensor.h"
#include "polyhead/viewer.h"
#include "viewer/assets.h"
#include "viewer/encoding.h"
#include "viewer/live_answer.h"
#include "viewer/pooled.h"
#include "viewer/sides.h"
#include "viewer/vectors.h"

namespace polyhead::viewer {
namespace {

using nlohmann::json;

void check_tokens(const Tokens& tokens, std::int64_t extent, std::string_view side, std::string_view letter,
                  const ConstTensorView& attentions, bool pooled) {
  const std::size_t count = tokens.pieces.size();
  require(pooled || std::ssize(tokens.pieces) == extent, "viewer::render: ", count, " ", side, " tokens for attentions ", attentions.shape(),
          " [layers,heads,T,S]; they must be ", letter, " = ", extent);
  const auto check_size = [&](std::size_t size, std::string_view what) {
    require(size == 0 || size == count, "viewer::render: ", size, " ", what, " for ", count, " ", side, " tokens; give one for each token, or none");
  };
  check_size(tokens.special.size(), "special flags");
  check_size(tokens.segment.size(), "segments");
  for (const auto& [place, characters] : tokens.unknown)
    require(place >= 0 && place < std::ssize(tokens.pieces), "viewer::render: the unknown token ", place, " is not among the ", count, " ", side, " tokens");
}

void check(const Text& text) {
  const ConstTensorView& a = text.attentions;
  require(a && a.rank() == 4 && is_floating(a.dtype()), "viewer::render: attentions are ", a.dtype(), " ", a.shape(),
          "; they must be floating and [layers,heads,T,S]");
  check_tokens(text.queries, a.extent(2), "query", "T", a, text.pooled.has_value());
  for (const WithoutHead& one : text.without) {
    require(std::isfinite(one.change), "viewer::render: without head ", one.layer, ".", one.head, " the change is ", one.change, "; it must be finite");
    require(one.layer >= 0 && one.layer < a.extent(0) && one.head >= 0 && one.head < a.extent(1), "viewer::render: the head ", one.layer, ".", one.head, " that is switched off is not in attentions ", a.shape());
  }
  check_tokens(text.keys ? *text.keys : text.queries, a.extent(3), text.keys ? "key" : "query", "S", a, text.pooled.has_value());
  check_pooled(text);
  check_sides(text);
  if (text.vectors) check_shapes(*text.vectors, a);
  require(!text.gate || !text.value_norms, "viewer::render: gate and value_norms are given together; a gate multiplies the values differently for each query, so that a key has no single norm; leave out one of the two");
  if (text.value_norms) check_norms(text.value_norms, a);
}

void check_weights(std::span<const float> weights, std::int64_t layer, std::int64_t head, bool shares) {
  // Tolerance for rounding: weights are rounded in 16-bit dtypes and in means over heads. Shares are sums of rounded numbers, so their tolerance is larger.
  const float slack = shares ? 4e-3F : 1e-3F;
  for (const float w : weights)
    require(!(w < -slack || w > 1 + slack), "viewer::render: layer ", layer, ", head ", head, " has the attention weight ", w,
            "; attention weights must be in [0, 1]");
}

// The largest finite number among the attention weights [T,S] times the norms [S] of their keys. The page needs this number before it draws norm-weighted maps.
double largest_product(std::span<const float> weights, const ConstTensorView& norms) {
  const Tensor of_keys = Tensor::copy_of(norms, DType::f32);
  const std::span keys(of_keys.data<float>(), static_cast<std::size_t>(of_keys.numel()));
  double largest = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double number = static_cast<double>(weights[i]) * static_cast<double>(keys[i % keys.size()]);
    if (number > largest && std::isfinite(number)) largest = number;
  }
  return largest;
}

json to_json(const Tokens& tokens) {
  json special = json::array();
  for (std::size_t i = 0; i < tokens.special.size(); ++i)
    if (tokens.special[i]) special.push_back(i);
  json result = {{"pieces", tokens.pieces}, {"special", std::move(special)}};
  if (!tokens.segment.empty()) result["segment"] = tokens.segment;
  if (!tokens.unknown.empty()) result["unknown"] = tokens.unknown;
  return result;
}

json to_json(const Text& text, Encoding encoding, VectorBudget& budget) {
  const ConstTensorView& a = text.attentions;
  json layers = json::array();
  double largest = 0;  // largest element of all norm-weighted maps of the text
  for (std::int64_t layer = 0; layer < a.extent(0); ++layer) {
    json heads = json::array();
    for (std::int64_t head = 0; head < a.extent(1); ++head) {
      Tensor map = Tensor::copy_of(a.select(0, layer).select(0, head), DType::f32);
      const std::span weights(map.data<float>(), static_cast<std::size_t>(map.numel()));
      make_shares(weights, text);
      check_weights(weights, layer, head, text.pooled && *text.pooled != Pooling::largest);
      heads.push_back(encode(weights, encoding));
      if (text.value_norms) largest = std::max(largest, largest_product(weights, text.value_norms.select(0, layer).select(0, head)));
    }
    layers.push_back(std::move(heads));
  }
  json result = {{"text", text.text},
                 {"queries", to_json(text.queries)},
                 {"layers", a.extent(0)},
                 {"heads", a.extent(1)},
                 {"weights", std::move(layers)}};
  if (text.keys) result["keys"] = to_json(*text.keys);
  const std::int64_t numbers = text.vectors ? count_numbers(*text.vectors, a) : text.left_out;
  if (text.vectors && budget.take(numbers)) {
    check_weights(*text.vectors, a);
    result["vectors"] = to_json(*text.vectors, a);
  } else if (numbers > 0) {
    result["left_out"] = megabytes(numbers);
  }
  if (text.width > 0) result["width"] = text.width;
  if (text.learned_queries) result["learned_queries"] = true;
  if (text.value_norms) result.update({{"value_norms", norms_json(text.value_norms)}, {"largest_weighted", largest}});
  add_sides(result, text, encoding);
  add_pooled(result, text);
  for (const WithoutHead& one : text.without) result["without"].push_back({one.layer, one.head, one.change});
  return result;
}

// Converts JSON to the content of a script element. Each '<' is escaped, because "</script>" or "<!--" in a token would end the element or change how it is
// parsed (HTML standard, 4.12.1.3). In JSON '<' occurs only inside strings, where an escape is allowed.
std::string script_text(const json& data) {
  const std::string plain = data.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string text;
  text.reserve(plain.size());
  for (const char& c : plain) text += c == '<' ? "\\u003c" : std::string_view(&c, 1);
  return text;
}

std::string html_text(const std::string& plain) {
  // Write the text as JSON and parse it again: this replaces bytes that are not valid UTF-8.
  const auto valid = json::parse(json(plain).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
  std::string text;
  for (const char& c : valid) {
    text += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string_view(&c, 1);
  }
  return text;
}

// Fills in the template's placeholders in one pass, so that "{{" in a text is not taken for a placeholder.
std::string fill(std::string_view page, std::span<const std::pair<std::string_view, std::string_view>> parts) {
  std::string result;
  while (true) {
    const std::size_t open = page.find("{{");
    result += page.substr(0, open);
    if (open == std::string_view::npos) return result;
    const std::size_t close = page.find("}}", open);
    const std::string_view name = page.substr(open + 2, close - open - 2);
    for (const auto& [key, value] : parts)
      if (key == name) result += value;
    page.remove_prefix(close + 2);
  }
}

// The measures over texts as {measure: list}. The list has an entry for each head, layer by layer: [mean, spread, number of texts that have the measure, number
// of texts in which the measure is large enough to name the head].
json measured_json(const MeasuredTexts& measured, const Page& page) {
  require(measured.texts() > 0, "viewer::render: Page::measured has no text; give at least one, or no measures");
  // The name of the set of maps whose heads were measured. The heads of other sets are different heads, even if their number is the same.
  std::string name;
  if (!page.texts.empty()) {
    const std::vector<const Text*> sets = sets_of(page.texts[0]);
    const auto own = std::ranges::find_if(sets, [](const Text* set) { return !set->keys; });
    require(own != sets.end(), "viewer::render: measures of heads need self attention, but no set of maps of the page's first text is self attention");
    const ConstTensorView& a = (*own)->attentions;
    require(a.extent(0) == measured.layers() && a.extent(1) == measured.heads(), "viewer::render: measures of ", measured.layers(), " layers of ", measured.heads(), " heads; the first set of maps of self attention of the page's first text is ", a.shape(), " [layers,heads,T,S]");
    name = (*own)->name;
  }
  const auto rounded = [](double value) { return std::isnan(value) ? json(nullptr) : json(std::round(value * 1e6) / 1e6); };
  json result{{"texts", measured.texts()}, {"tokens", {measured.shortest(), measured.longest()}}, {"layers", measured.layers()}, {"heads", measured.heads()}, {"name", name}, {"values", json::object()}};
  for (std::size_t i = 0; i < head_measures().size(); ++i) {
    json& list = result["values"][std::string(head_measures()[i].name)] = json::array();
    for (std::int64_t layer = 0; layer < measured.layers(); ++layer) {
      for (std::int64_t head = 0; head < measured.heads(); ++head) {
        const MeasuredTexts::Value& of = measured.value(layer, head, i);
        list.push_back(of.count == 0 ? json::array() : json{rounded(of.mean), rounded(of.spread()), of.count, of.held});
      }
    }
  }
  return result;
}

// The data of a page as JSON. chosen: the encoding of the attention weights; if it is nullopt, the number of weights decides.
json data_of(const Page& page, std::optional<Encoding> chosen) {
  std::int64_t count = 0;
  for (const Text* set : sets_of(page)) {
    check(*set);
    count += numbers_of(*set);
    require(count <= kMaxAttentionWeights, "viewer::render: the texts have more than ", kMaxAttentionWeights,
            " attention weights, the limit of a page; give fewer or shorter texts, or fewer layers or heads");
  }
  const Encoding encoding = chosen.value_or(choose_encoding(count));
  json data = {{"title", page.title}, {"model", page.model}, {"encoding", name_of(encoding)}, {"limit", page.vector_megabytes}, {"texts", json::array()}};
  if (!page.start.empty()) data["start"] = page.start;
  if (page.language != Language::readers) data["language"] = page.language == Language::chinese ? "zh" : "en";
  if (page.without_measure) data["without_measure"] = {{"name", page.without_measure->name}, {"unit", page.without_measure->measured_in}};
  if (page.measured) data["measured"] = measured_json(*page.measured, page);
  VectorBudget budget(page.vector_megabytes);
  for (std::size_t at = 0; at < page.texts.size(); ++at) {
    for (const Text* set : sets_of(page.texts[at])) {
      data["texts"].push_back(to_json(*set, encoding, budget));
      data["texts"].back()["group"] = at;
      if (const std::optional<Snapshot>& snapshot = page.texts[at].snapshot) data["texts"].back().update({{"step", snapshot->step}, {"answer", snapshot->answer}});
      if (!set->pair_bias) continue;
      const Tensor before = without_bias(*set);
      Text unbiased = *set;
      unbiased.attentions = before, unbiased.pair_bias = {}, unbiased.vectors = {};
      data["texts"].back()["bias"] = "with";
      data["texts"].push_back(to_json(unbiased, encoding, budget));
      data["texts"].back().update({{"group", at}, {"bias", "without"}});
      if (const std::optional<Snapshot>& snapshot = page.texts[at].snapshot) data["texts"].back().update({{"step", snapshot->step}, {"answer", snapshot->answer}});
    }
  }
  return data;
}

// The parts that only live pages have: the engine and a model's files, in base64, and an addition to the content security policy.
struct LiveParts {
  std::string engine = {}, files = {};
  std::string_view policy = {};
};

std::string page_of(std::string_view plain_title, const json& data, const LiveParts& live) {
  const std::string title = html_text(std::string(plain_title));
  const std::string json_text = script_text(data);
  const bool is_live = !live.engine.empty();
  const std::string script = cat(is_live ? kLiveScript : std::string_view(), kScript), style = cat(kStyle, is_live ? kLiveStyle : std::string_view());
  const std::array<std::pair<std::string_view, std::string_view>, 7> parts{
      {{"title", title}, {"style", style}, {"script", script}, {"data", json_text}, {"engine", live.engine}, {"files", live.files}, {"policy", live.policy}}};
  return fill(kTemplate, parts);
}

}  // namespace

std::string render(const Page& page) { return page_of(page.title, data_of(page, {}), {}); }

std::string live_answer(const Page& page, std::string_view answer) {
  json data = data_of(page, Encoding::float32);
  data["answer"] = json::parse(answer);
  return data.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string render_live(const LivePage& page) {
  require(!page.engine.empty(), "viewer::render_live: the engine is missing");
  require(page.engine.size() > 2 && page.engine[0] == 0x1f && page.engine[1] == 0x8b, "viewer::render_live: the engine is not compressed by gzip");
  json live = {{"version", page.version}, {"tasks", {"sentiment", "translate"}}, {"task", page.task}, {"say", page.text}};
  if (page.model) {
    const LiveModel& model = *page.model;
    live["tasks"] = {"model", "sentiment", "translate"}, live["task"] = "model";
    live["model"] = {{"name", model.name}};
    if (model.rounding.texts > 0)
      live["model"]["rounding"] = {{"texts", model.rounding.texts}, {"largest", model.rounding.largest}, {"mean", model.rounding.mean}, {"cosine", model.rounding.least_cosine}};
  }
  json data = {{"title", page.title}, {"model", ""}, {"encoding", name_of(Encoding::float32)}, {"limit", 0}, {"texts", json::array()}, {"live", std::move(live)}};
  if (page.language != Language::readers) data["language"] = page.language == Language::chinese ? "zh" : "en";
  return page_of(page.title, data, {.engine = base64(page.engine), .files = page.model ? base64(page.model->files) : "", .policy = " 'wasm-unsafe-eval'"});
}

}  // namespace polyhead::viewer
