#include <memory>

#include "models/tokenizer/read_stages.h"

namespace polyhead::models {
namespace {

using Steps = std::vector<NormalizerStep>;

void read_bert(const JsonNode& node, Steps& steps) {
  BertNormalizer step{.clean_text = node.get<bool>("clean_text").value_or(true),
                      .isolate_cjk = node.get<bool>("handle_chinese_chars").value_or(true),
                      .lowercase = node.get<bool>("lowercase").value_or(true)};
  step.strip_accents = node.get<bool>("strip_accents").value_or(step.lowercase);
  steps.emplace_back(step);
}

const std::vector<StepKind<Steps>>& kinds() {
  static const std::vector<StepKind<Steps>> table{
      {"BertNormalizer", {"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}, read_bert},
      {"NFC", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(NormalForm{.composed = true}); }},
      {"NFD", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(NormalForm{}); }},
      {"NFKC", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(NormalForm{.compatible = true, .composed = true}); }},
      {"NFKD", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(NormalForm{.compatible = true}); }},
      {"Lowercase", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(Lowercase{}); }},
      {"StripAccents", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(StripAccents{}); }},
      {"Strip", {"strip_left", "strip_right"},
       [](const JsonNode& node, Steps& steps) { steps.emplace_back(StripEnds{.left = node.required<bool>("strip_left"), .right = node.required<bool>("strip_right")}); }},
      {"Replace", {"pattern", "content"},
       [](const JsonNode& node, Steps& steps) { steps.emplace_back(ReplaceMatches{.pattern = read_pattern(node, "pattern"), .content = node.required<std::string>("content")}); }},
      {"Prepend", {"prepend"}, [](const JsonNode& node, Steps& steps) { steps.emplace_back(Prepend{.text = node.required<std::string>("prepend")}); }},
      {"ByteLevel", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(ByteLevelText{}); }},
      {"Nmt", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(Nmt{}); }},
      {"Precompiled", {"precompiled_charsmap"},
       [](const JsonNode& node, Steps& steps) {
         steps.emplace_back(std::make_shared<const CharsMap>(node.required<std::string>("precompiled_charsmap"), node.location("precompiled_charsmap")));
       }},
      {"Sequence", {"normalizers"},
       [](const JsonNode& node, Steps& steps) {
         for (const JsonNode& part : node.list("normalizers")) read_normalizer(part, steps);
       }}};
  return table;
}

}  // namespace

void read_normalizer(const JsonNode& node, Steps& steps) { read_step(node, kinds(), steps); }

Regex read_pattern(const JsonNode& node, std::string_view key) {
  const JsonNode pattern = node.member(key);
  constexpr std::string_view kKinds[] = {"String", "Regex"};
  pattern.file().allow_only(pattern.json(), kKinds, pattern.where());
  if (const auto text = pattern.get<std::string>("String")) return Regex::literal(*text, pattern.location("String"));
  return Regex(pattern.required<std::string>("Regex"), pattern.location("Regex"));
}

}  // namespace polyhead::models
