#include <algorithm>
#include <array>

#include "models/tokenizer/read_stages.h"

namespace polyhead::models {
namespace {

AddedToken read_added_token(const JsonNode& node) {
  static constexpr std::string_view kKeys[] = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"};
  node.file().allow_only(node.json(), kKeys, node.where());
  return {.content = node.required<std::string>("content"),
          .id = static_cast<std::int64_t>(node.required_count("id")),
          .single_word = node.get<bool>("single_word").value_or(false),
          .strip_left = node.get<bool>("lstrip").value_or(false),
          .strip_right = node.get<bool>("rstrip").value_or(false),
          .normalized = node.get<bool>("normalized").value_or(false),
          .special = node.get<bool>("special").value_or(false)};
}

// If the vocabulary lacks an added token, `tokenizers` ignores the token's id in the file and numbers the token itself. A file in which such an id differs from
// that number is refused.
void read_added_tokens(const JsonNode& root, PipelineParts& parts) {
  if (!root.has("added_tokens")) return;
  std::int64_t next = parts.vocabulary.size();
  for (const JsonNode& node : root.list("added_tokens")) {
    AddedToken token = read_added_token(node);
    if (token.content.empty()) continue;  // `tokenizers` skips an empty token, too
    const auto known = parts.vocabulary.find(token.content);
    if (!known && token.id != next && parts.vocabulary.piece(token.id) == nullptr)
      node.fail_at("id", cat("is ", token.id, "; after ", parts.vocabulary.size(), " pieces and the added tokens before it, `tokenizers` gives ", io::quote(token.content), " the id ", next));
    next += known ? 0 : 1;
    parts.added_tokens.push_back(std::move(token));
  }
}

}  // namespace

PipelineParts read_tokenizer_json(const JsonFile& file) {
  static constexpr std::string_view kKeys[] = {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"};
  file.allow_only(file.root(), kKeys, "");
  const JsonNode root(file, file.root(), "");
  if (const auto version = root.get<std::string>("version"); version && *version != "1.0") fail(ErrorCode::unsupported, root.location("version"), " is '", *version, "'; only '1.0' can be read");
  ModelParts model = read_model(root.member("model"));
  PipelineParts parts{.normalizer = {}, .pre_tokenizer = {}, .model = std::move(model.model), .vocabulary = std::move(model.vocabulary), .post_processor = {}, .decoder = {}, .added_tokens = {}};
  if (root.has("normalizer")) read_normalizer(root.member("normalizer"), parts.normalizer);
  if (root.has("pre_tokenizer")) read_pre_tokenizer(root.member("pre_tokenizer"), parts.pre_tokenizer);
  if (root.has("post_processor")) read_post_processor(root.member("post_processor"), parts.post_processor);
  if (root.has("decoder")) {
    read_decoder(root.member("decoder"), parts.decoder);
    if (parts.decoder.empty()) parts.decoder.emplace_back(FusePieces{});  // an empty sequence joins pieces without spaces; if there is no decoder, pieces are joined with spaces
  }
  read_added_tokens(root, parts);
  return parts;
}

}  // namespace polyhead::models
