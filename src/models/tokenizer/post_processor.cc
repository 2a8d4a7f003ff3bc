#include "models/tokenizer/post_processor.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/char_class.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

// Returns where the character after `at` begins. The text need not be UTF-8: a byte that is not part of a valid sequence counts as a character.
std::size_t next_character(std::string_view text, std::size_t at) {
  utf8proc_int32_t code = 0;
  const utf8proc_ssize_t length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  return at + (length > 0 ? static_cast<std::size_t>(length) : 1);
}

std::size_t character_before(std::string_view text, std::size_t last) {
  for (std::size_t length = std::min<std::size_t>(last, 4); length > 1; --length)
    if (next_character(text, last - length) == last) return last - length;
  return last - 1;
}

bool is_space(char32_t code) { return code == byte_character(' ') || is_in(CharClass::white_space, code); }

// Trims the span of one token (see TrimSpans). `source` is the text that the token came from.
void trim(TextToken& token, bool is_first, bool add_prefix_space, std::string_view source) {
  const std::string_view piece = token.found.empty() ? token.piece : token.found;
  std::size_t leading = 0, trailing = 0;
  for (std::size_t at = 0; at < piece.size(); ++leading) {
    const auto [code, last] = char_at(piece, at);
    if (!is_space(code)) break;
    at = last;
  }
  for (std::size_t last = piece.size(); last > 0; ++trailing) {
    const auto [code, at] = char_before(piece, last);
    if (!is_space(code)) break;
    last = at;
  }
  ByteSpan& span = token.span;
  if (leading == 1 && add_prefix_space && (is_first || span.first == 0)) leading = 0;  // the tokenizer added the space; the text does not have it
  for (; leading > 0 && span.first < span.last; --leading) span.first = std::min(next_character(source, span.first), span.last);
  std::size_t last = span.last;
  for (; trailing > 0 && last > 0; --trailing) last = character_before(source, last);
  if (trailing == 0) span.last = std::max(last, span.first);
}

using Groups = std::vector<std::vector<TextToken>>;

void run_step(Groups& groups, const TrimSpans& step, const std::vector<std::string_view>& sources) {
  for (auto& group : groups)
    for (std::size_t i = 0; i < group.size(); ++i)
      if (group[i].text >= 0) trim(group[i], i == 0, step.add_prefix_space, sources[static_cast<std::size_t>(group[i].text)]);
}

void run_step(Groups& groups, const Template& step, const std::vector<std::string_view>& sources) {
  const Groups texts = std::move(groups);
  groups.clear();
  for (const TemplatePart& part : sources.size() > 1 ? step.pair : step.single) {
    std::vector<TextToken> group;
    if (part.text >= 0) {
      group = texts[static_cast<std::size_t>(part.text)];
      for (TextToken& token : group) token.segment = part.segment;
    } else {
      for (const auto& [id, piece] : part.special) group.push_back({.id = id, .piece = piece, .span = {}, .text = -1, .segment = part.segment});
    }
    groups.push_back(std::move(group));
  }
}

}  // namespace

std::int64_t Template::added(bool is_pair) const {
  std::int64_t count = 0;
  for (const TemplatePart& part : is_pair ? pair : single) count += std::ssize(part.special);
  return count;
}

std::vector<TextToken> post_process(std::vector<std::vector<TextToken>> texts, const std::vector<std::string_view>& sources, const std::vector<PostProcessorStep>& steps) {
  for (const PostProcessorStep& step : steps) std::visit([&](const auto& kind) { run_step(texts, kind, sources); }, step);
  std::vector<TextToken> tokens;
  for (auto& group : texts) tokens.insert(tokens.end(), std::make_move_iterator(group.begin()), std::make_move_iterator(group.end()));
  return tokens;
}

}  // namespace polyhead::models
