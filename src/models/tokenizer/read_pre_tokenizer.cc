#include "models/tokenizer/read_stages.h"

namespace polyhead::models {
namespace {

using Steps = std::vector<PreTokenizerStep>;

Delimiters read_behavior(const JsonNode& node) {
  return required_choice<Delimiters>(node, "behavior",
                                 {{"Removed", Delimiters::removed},
                                  {"Isolated", Delimiters::isolated},
                                  {"MergedWithPrevious", Delimiters::merged_with_previous},
                                  {"MergedWithNext", Delimiters::merged_with_next},
                                  {"Contiguous", Delimiters::contiguous}});
}

void read_bert(const JsonNode&, Steps& steps) {
  for (PreTokenizerStep& step : bert_words()) steps.push_back(std::move(step));
}

void read_byte_level(const JsonNode& node, Steps& steps) {
  ByteLevelWords step{.add_prefix_space = node.required<bool>("add_prefix_space"), .pattern = {}};
  if (node.get<bool>("use_regex").value_or(true)) step.pattern.push_back(gpt2_pattern());
  steps.emplace_back(std::move(step));
}

void read_length(const JsonNode& node, Steps& steps) {
  const std::size_t length = node.has("length") ? node.required_count("length") : 5;
  if (length == 0) node.fail_at("length", "is 0; words have at least one character");
  steps.emplace_back(SplitByLength{length});
}

const std::vector<StepKind<Steps>>& kinds() {
  static const std::vector<StepKind<Steps>> table{
      {"BertPreTokenizer", {}, read_bert},
      {"Whitespace", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(SplitWordsAndSymbols{}); }},
      {"WhitespaceSplit", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(SplitAtClass{CharClass::white_space, Delimiters::removed}); }},
      {"ByteLevel", {"add_prefix_space", "trim_offsets", "use_regex"}, read_byte_level},
      {"Metaspace", {"replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}, [](const JsonNode& node, Steps& steps) { steps.emplace_back(read_metaspace(node)); }},
      {"Split", {"pattern", "behavior", "invert"},
       [](const JsonNode& node, Steps& steps) {
         steps.emplace_back(SplitAtPattern{.pattern = read_pattern(node, "pattern"), .delimiters = read_behavior(node), .invert = node.required<bool>("invert")});
       }},
      {"Punctuation", {"behavior"},
       [](const JsonNode& node, Steps& steps) {
         steps.emplace_back(SplitAtClass{CharClass::punctuation, node.has("behavior") ? read_behavior(node) : Delimiters::isolated});
       }},
      {"Digits", {"individual_digits"},
       [](const JsonNode& node, Steps& steps) {
         steps.emplace_back(SplitAtClass{CharClass::numeric, node.required<bool>("individual_digits") ? Delimiters::isolated : Delimiters::contiguous});
       }},
      {"CharDelimiterSplit", {"delimiter"}, [](const JsonNode& node, Steps& steps) { steps.emplace_back(SplitAtCharacter{node.required_character("delimiter")}); }},
      {"FixedLength", {"length"}, read_length},
      {"Sequence", {"pretokenizers"},
       [](const JsonNode& node, Steps& steps) {
         for (const JsonNode& part : node.list("pretokenizers")) read_pre_tokenizer(part, steps);
       }}};
  return table;
}

}  // namespace

void read_pre_tokenizer(const JsonNode& node, Steps& steps) { read_step(node, kinds(), steps); }

Metaspace read_metaspace(const JsonNode& node) {
  Metaspace step{.replacement = node.required_character("replacement"), .split = node.get<bool>("split").value_or(true)};
  if (node.has("prepend_scheme"))
    step.prepend = required_choice<PrependScheme>(node, "prepend_scheme", {{"always", PrependScheme::always}, {"first", PrependScheme::first}, {"never", PrependScheme::never}});
  if (node.get<bool>("add_prefix_space") == false && step.prepend != PrependScheme::never)
    node.fail_at("add_prefix_space", "is false, but prepend_scheme is not 'never'; `tokenizers` refuses this too");
  return step;
}

}  // namespace polyhead::models
