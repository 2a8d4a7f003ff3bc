// sentencepiece's normaliser: a map from short texts to their replacements, as tokenizer.json carries it in base64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/aligned_text.h"

namespace polyhead::models {

class CharsMap {
 public:
  // Decodes the map. Its bytes are: the size of the trie in bytes (uint32, little-endian), the units of a double array (uint32), replacements that end in NUL
  // bytes. Error if the base64, the size or a replacement is malformed; `where` names the map.
  CharsMap(std::string_view base64, std::string_view where);

  // Replaces grapheme clusters of less than 6 bytes, and single characters of longer clusters. As in the `tokenizers` package, a cluster that only begins
  // with a key is replaced as a whole. Stops when the result has more than `limit` characters.
  AlignedText apply(AlignedView text, std::size_t limit) const;

 private:
  // Returns the replacement of the shortest key that `text` begins with.
  std::optional<std::string_view> find(std::string_view text) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace polyhead::models
