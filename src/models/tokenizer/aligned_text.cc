#include "models/tokenizer/aligned_text.h"

#include <algorithm>

#include "models/tokenizer/utf8.h"
#include "models/unicode.h"

namespace polyhead::models {

void AlignedText::append(char32_t code, ByteSpan span) {
  append_char(bytes, code);
  spans.resize(bytes.size(), span);
}

void AlignedText::append(AlignedView view) {
  bytes += view.bytes;
  spans.insert(spans.end(), view.spans.begin(), view.spans.end());
}

DecodedBytes align_utf8(std::string_view text) {
  const DecodedText characters = decode_utf8(text);
  DecodedBytes decoded{.text = {}, .replaced_bytes = characters.replaced_bytes};
  decoded.text.bytes.reserve(text.size());
  decoded.text.spans.reserve(text.size());
  for (const auto& [code, span] : characters.chars) decoded.text.append(code, span);
  return decoded;
}

char32_t Rewriter::peek() const { return char_at(from_.bytes, at_).code; }

void Rewriter::keep() { replace(peek()); }

void Rewriter::replace(char32_t code) {
  if (done()) return insert(code);
  to_.append(code, from_.spans[at_]);
  drop();
}

void Rewriter::insert(char32_t code) { to_.append(code, at_ == 0 ? ByteSpan{from_.origin, from_.origin} : from_.spans[at_ - 1]); }

void Rewriter::drop(std::size_t characters) {
  for (; characters > 0 && !done(); --characters) at_ = char_at(from_.bytes, at_).last;
}

AlignedText apply_changes(AlignedView from, std::span<const Change> changes) {
  AlignedText to{.bytes = {}, .spans = {}, .origin = from.origin};
  Rewriter rewriter(from, to);
  for (const auto& [code, change] : changes) {
    if (change > 0) {
      rewriter.insert(code);
    } else {
      rewriter.replace(code);
      rewriter.drop(static_cast<std::size_t>(-change));
    }
  }
  return to;
}

ByteSpan span_of(AlignedView text, std::size_t first, std::size_t last) {
  last = std::min(last, text.spans.size());
  first = std::min(first, last);
  if (first == last) {
    const std::size_t place = first < text.spans.size() ? text.spans[first].first : text.spans.empty() ? text.origin : text.spans.back().last;
    return {place, place};
  }
  return {text.spans[first].first, text.spans[last - 1].last};
}

}  // namespace polyhead::models
