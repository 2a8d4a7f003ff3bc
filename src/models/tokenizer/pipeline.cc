#include "models/tokenizer/pipeline.h"

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "io/json.h"

namespace polyhead::models {
namespace {

std::string normalized_content(const AddedToken& token, const std::vector<NormalizerStep>& steps) { return normalize(align_utf8(token.content).text, steps).bytes; }

AddedTokenFinder make_finder(const PipelineParts& parts, bool normalized) {
  std::vector<std::pair<const AddedToken*, std::string>> tokens;
  for (const AddedToken& token : parts.added_tokens)
    if (token.normalized == normalized) tokens.emplace_back(&token, normalized ? normalized_content(token, parts.normalizer) : token.content);
  return AddedTokenFinder(std::move(tokens));
}

}  // namespace

Pipeline::Pipeline(PipelineParts parts) : parts_(std::move(parts)), unknown_(unknown_id(parts_.model, parts_.vocabulary)) {
  check_added_tokens();
  raw_tokens_ = make_finder(parts_, false);
  normalized_tokens_ = make_finder(parts_, true);
}

void Pipeline::check_added_tokens() {
  for (const auto& [piece, id] : parts_.vocabulary.entries()) id_limit_ = std::max(id_limit_, id + 1);
  for (const AddedToken& token : parts_.added_tokens) {
    const std::string name = io::quote(token.content);
    if (token.content.empty()) fail(ErrorCode::format, "tokenizer: an added token with id ", token.id, " is empty");
    if (const auto id = parts_.vocabulary.find(token.content)) {
      if (*id != token.id) fail(ErrorCode::format, "tokenizer: the added token ", name, " has id ", token.id, ", but the vocabulary gives it ", *id);
    } else if (const std::string* piece = parts_.vocabulary.piece(token.id)) {
      fail(ErrorCode::format, "tokenizer: the added token ", name, " has id ", token.id, ", which is ", io::quote(*piece), " in the vocabulary");
    }
    if (!added_by_content_.emplace(token.content, &token).second) fail(ErrorCode::format, "tokenizer: the added token ", name, " occurs twice");
    if (!added_by_id_.emplace(token.id, &token).second) fail(ErrorCode::format, "tokenizer: the added token ", name, " has id ", token.id, ", as one before it");
    if (token.special) special_.insert(token.content);
    id_limit_ = std::max(id_limit_, token.id + 1);
  }
}

void Pipeline::append_words(std::vector<TextToken>& tokens, AlignedText text, int number) const {
  const Words words = split_words(std::move(text), parts_.pre_tokenizer);
  const AlignedView whole = words.text.view();
  std::vector<WordToken> found;
  for (const ByteSpan& range : words.words) {
    const AlignedView word = whole.part(range.first, range.last);
    found.clear();
    append_tokens(found, word.bytes, parts_.model, parts_.vocabulary);
    for (const WordToken& token : found)
      tokens.push_back({.id = token.id, .piece = *parts_.vocabulary.piece(token.id), .span = span_of(word, token.first, token.last), .text = number, .segment = number});
  }
}

std::vector<TextToken> Pipeline::tokenize(AlignedText text, int number) const {
  std::vector<TextToken> tokens;
  const auto add_token = [&](const AddedToken& token, AlignedView part) {
    tokens.push_back({.id = token.id, .piece = token.content, .span = span_of(part, 0, part.bytes.size()), .text = number, .segment = number, .found = std::string(part.bytes)});
  };
  const AlignedView whole = text.view();
  for (const Section& raw : raw_tokens_.split(text.bytes)) {
    const AlignedView part = whole.part(raw.first, raw.last);
    if (raw.token != nullptr) {
      add_token(*raw.token, part);
      continue;
    }
    const AlignedText normal = normalize({std::string(part.bytes), {part.spans.begin(), part.spans.end()}, part.origin}, parts_.normalizer);
    for (const Section& section : normalized_tokens_.split(normal.bytes)) {
      const AlignedView piece = normal.view().part(section.first, section.last);
      if (section.token != nullptr)
        add_token(*section.token, piece);
      else
        append_words(tokens, {std::string(piece.bytes), {piece.spans.begin(), piece.spans.end()}, piece.origin}, number);
    }
  }
  return tokens;
}

std::vector<TextToken> Pipeline::post_process(std::vector<std::vector<TextToken>> texts, const std::vector<std::string_view>& sources) const {
  return models::post_process(std::move(texts), sources, parts_.post_processor);
}

std::int64_t Pipeline::special_count(bool pair) const {
  std::int64_t count = 0;
  for (const PostProcessorStep& step : parts_.post_processor)
    if (const auto* found = std::get_if<Template>(&step)) count += found->added(pair);
  return count;
}

std::optional<std::int64_t> Pipeline::find(std::string_view piece) const {
  if (const auto added = added_by_content_.find(piece); added != added_by_content_.end()) return added->second->id;
  return parts_.vocabulary.find(piece);
}

std::optional<std::string> Pipeline::piece(std::int64_t id) const {
  if (const auto added = added_by_id_.find(id); added != added_by_id_.end()) {
    const AddedToken& token = *added->second;
    return token.normalized ? normalized_content(token, parts_.normalizer) : token.content;
  }
  const std::string* const known = parts_.vocabulary.piece(id);
  return known == nullptr ? std::nullopt : std::optional(*known);
}

std::string Pipeline::decode(std::span<const std::int64_t> ids, bool skip_special) const {
  std::vector<std::string> pieces;
  for (const std::int64_t id : ids) {
    std::optional<std::string> piece = this->piece(id);
    if (!piece) fail(ErrorCode::invalid_argument, "tokenizer: there is no token with the id ", id, "; ids are below ", id_limit_);
    if (!skip_special || !special_.contains(*piece)) pieces.push_back(std::move(*piece));
  }
  return decode_pieces(std::move(pieces), parts_.decoder);
}

}  // namespace polyhead::models
