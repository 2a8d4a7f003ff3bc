// A text on its way through a tokenizer. Each byte knows which bytes of the original text it comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/tokenizer.h"

namespace polyhead::models {

// Part of an AlignedText.
struct AlignedView {
  std::string_view bytes;           // valid UTF-8
  std::span<const ByteSpan> spans;  // span of each byte in the original text; all bytes of a character have the same span
  std::size_t origin = 0;           // where in the original text this part begins

  AlignedView part(std::size_t first, std::size_t last) const {
    return {bytes.substr(first, last - first), spans.subspan(first, last - first), first < last ? spans[first].first : origin};
  }
};

struct AlignedText {
  std::string bytes;
  std::vector<ByteSpan> spans;
  std::size_t origin = 0;

  AlignedView view() const { return {bytes, spans, origin}; }
  void append(char32_t code, ByteSpan span);
  void append(AlignedView view);
};

struct DecodedBytes {
  AlignedText text;
  std::int64_t replaced_bytes = 0;
};

// Decodes a text. Each byte that is not part of a well-formed UTF-8 sequence becomes one U+FFFD.
DecodedBytes align_utf8(std::string_view text);

// Writes a changed copy of a text, character by character, with the alignment that the `tokenizers` package gives it.
class Rewriter {
 public:
  Rewriter(AlignedView from, AlignedText& to) : from_(from), to_(to) {}

  bool done() const { return at_ == from_.bytes.size(); }
  char32_t peek() const;  // the next character of the old text
  void keep();
  void replace(char32_t code);               // the next character becomes `code`
  void insert(char32_t code);                // a new character, with the span of the old character before it
  void drop(std::size_t characters = 1);     // skips characters of the old text

 private:
  AlignedView from_;
  AlignedText& to_;
  std::size_t at_ = 0;  // byte of from_ at which the next character begins
};

// A character of the new text. change = 0: it replaces the next character of the old text; 1: it is inserted; -n: it replaces the next character, and n more
// characters of the old text are dropped.
struct Change {
  char32_t code;
  std::int64_t change;
};
AlignedText apply_changes(AlignedView from, std::span<const Change> changes);

// Returns the bytes of the original text that bytes [first,last) of `text` come from. first and last are limited to the end of the text.
ByteSpan span_of(AlignedView text, std::size_t first, std::size_t last);

}  // namespace polyhead::models
