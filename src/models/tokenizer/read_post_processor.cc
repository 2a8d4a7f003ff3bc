#include <algorithm>
#include <utility>

#include "models/tokenizer/read_stages.h"

namespace polyhead::models {
namespace {

using Steps = std::vector<PostProcessorStep>;
using io::Json;

std::int64_t read_id(const JsonNode& node, std::string_view key, const Json& json) {
  const auto* id = json.as<std::uint64_t>();
  if (id == nullptr || *id >= std::uint64_t{1} << 31) node.fail_at(key, cat("has ", io::describe(json), " for an id; it must be in [0, 2^31)"));
  return static_cast<std::int64_t>(*id);
}

// Reads a token such as ["[SEP]", 102].
TemplatePart read_token(const JsonNode& node, std::string_view key) {
  const Json::Array& pair = node.array(key);
  if (pair.size() != 2 || pair[0].as<std::string>() == nullptr) node.fail_at(key, "is not a token and its id");
  return {.special = {{read_id(node, key, pair[1]), *pair[0].as<std::string>()}}};
}

// Returns the template "start A separator" and, for pairs, "start A separator B separator", with two separators in the middle if separators_between is true.
// B and the last separator have `segment`.
Template start_and_separator(const JsonNode& node, int segment, bool separators_between) {
  const TemplatePart start = read_token(node, "cls"), separator = read_token(node, "sep");
  TemplatePart last = separator;
  last.segment = segment;
  Template result{.single = {start, {.text = 0}, separator}, .pair = {start, {.text = 0}, separator}};
  if (separators_between) result.pair.push_back(separator);
  result.pair.push_back({.text = 1, .segment = segment});
  result.pair.push_back(last);
  return result;
}

void add_template(const JsonNode& node, Steps& steps, Template step) {
  const auto is_template = [](const PostProcessorStep& other) { return std::holds_alternative<Template>(other); };
  if (std::ranges::any_of(steps, is_template))
    fail(ErrorCode::unsupported, node.location("type"), " is a second step that adds special tokens; one is supported");
  steps.emplace_back(std::move(step));
}

void add_trim(const JsonNode& node, Steps& steps) {
  if (node.required<bool>("trim_offsets")) steps.emplace_back(TrimSpans{.add_prefix_space = node.required<bool>("add_prefix_space")});
}

// Reads a part such as {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, or a "Sequence" with the id "A" or "B".
TemplatePart read_part(const JsonNode& node, const JsonNode& special) {
  constexpr std::string_view kKinds[] = {"SpecialToken", "Sequence"};
  node.file().allow_only(node.json(), kKinds, node.where());
  const bool is_special = node.has("SpecialToken");
  const JsonNode entry = node.member(is_special ? "SpecialToken" : "Sequence");
  TemplatePart part{.segment = static_cast<int>(entry.required_count("type_id"))};
  if (!is_special) {
    part.text = required_choice<int>(entry, "id", {{"A", 0}, {"B", 1}});
    return part;
  }
  const JsonNode token = special.member(entry.required<std::string>("id"));
  const Json::Array &ids = token.array("ids"), &pieces = token.array("tokens");
  if (ids.size() != pieces.size()) token.fail_at("ids", cat("has ", ids.size(), " ids for ", pieces.size(), " tokens"));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (pieces[i].as<std::string>() == nullptr) token.fail_at("tokens", "has an entry that is not a string");
    part.special.emplace_back(read_id(token, "ids", ids[i]), *pieces[i].as<std::string>());
  }
  return part;
}

void read_template(const JsonNode& node, Steps& steps) {
  const JsonNode special = node.member("special_tokens");
  Template step;
  for (const auto& [key, parts] : {std::pair("single", &step.single), std::pair("pair", &step.pair)}) {
    for (const JsonNode& part : node.list(key)) parts->push_back(read_part(part, special));
    for (const int text : {0, 1}) {
      const auto uses = std::ranges::count(*parts, text, &TemplatePart::text);
      if (uses > 1 || (text == 1 && uses > 0 && parts == &step.single))
        node.fail_at(key, cat("has the text ", text == 0 ? "A" : "B", " ", uses, " times; ", parts == &step.single ? "A once" : "A and B once", " is allowed"));
    }
  }
  add_template(node, steps, std::move(step));
}

const std::vector<StepKind<Steps>>& kinds() {
  static const std::vector<StepKind<Steps>> table{
      {"BertProcessing", {"sep", "cls"}, [](const JsonNode& node, Steps& steps) { add_template(node, steps, start_and_separator(node, 1, false)); }},
      {"RobertaProcessing", {"sep", "cls", "trim_offsets", "add_prefix_space"},
       [](const JsonNode& node, Steps& steps) {
         add_trim(node, steps);
         add_template(node, steps, start_and_separator(node, 0, true));
       }},
      {"TemplateProcessing", {"single", "pair", "special_tokens"}, read_template},
      {"ByteLevel", {"add_prefix_space", "trim_offsets", "use_regex"}, add_trim},
      {"Sequence", {"processors"},
       [](const JsonNode& node, Steps& steps) {
         for (const JsonNode& part : node.list("processors")) read_post_processor(part, steps);
       }}};
  return table;
}

}  // namespace

void read_post_processor(const JsonNode& node, Steps& steps) { read_step(node, kinds(), steps); }

}  // namespace polyhead::models
