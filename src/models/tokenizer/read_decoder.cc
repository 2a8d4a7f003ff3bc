#include "models/tokenizer/read_stages.h"

namespace polyhead::models {
namespace {

using Steps = std::vector<DecoderStep>;

const std::vector<StepKind<Steps>>& kinds() {
  static const std::vector<StepKind<Steps>> table{
      {"ByteLevel", {"add_prefix_space", "trim_offsets", "use_regex"}, [](const JsonNode&, Steps& steps) { steps.emplace_back(DecodeByteLevel{}); }},
      {"Metaspace", {"replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"},
       [](const JsonNode& node, Steps& steps) {
         const Metaspace metaspace = read_metaspace(node);
         steps.emplace_back(DecodeMetaspace{.replacement = metaspace.replacement, .drop_first = metaspace.prepend != PrependScheme::never});
       }},
      {"WordPiece", {"prefix", "cleanup"},
       [](const JsonNode& node, Steps& steps) { steps.emplace_back(DecodeWordPiece{.prefix = node.required<std::string>("prefix"), .cleanup = node.required<bool>("cleanup")}); }},
      {"BPEDecoder", {"suffix"}, [](const JsonNode& node, Steps& steps) { steps.emplace_back(DecodeEndSuffix{.suffix = node.required<std::string>("suffix")}); }},
      {"ByteFallback", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(DecodeByteFallback{}); }},
      {"Fuse", {}, [](const JsonNode&, Steps& steps) { steps.emplace_back(FusePieces{}); }},
      {"Strip", {"content", "start", "stop"},
       [](const JsonNode& node, Steps& steps) {
         steps.emplace_back(StripCharacter{.character = node.required_character("content"), .left = node.required_count("start"), .right = node.required_count("stop")});
       }},
      {"Replace", {"pattern", "content"},
       [](const JsonNode& node, Steps& steps) { steps.emplace_back(ReplaceMatches{.pattern = read_pattern(node, "pattern"), .content = node.required<std::string>("content")}); }},
      {"Sequence", {"decoders"},
       [](const JsonNode& node, Steps& steps) {
         for (const JsonNode& part : node.list("decoders")) read_decoder(part, steps);
       }}};
  return table;
}

}  // namespace

void read_decoder(const JsonNode& node, Steps& steps) { read_step(node, kinds(), steps); }

}  // namespace polyhead::models
