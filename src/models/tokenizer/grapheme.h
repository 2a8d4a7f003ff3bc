// Grapheme clusters (Unicode Standard Annex 29), as sentencepiece's charsmaps need them in the `tokenizers` package.
#pragma once

#include <cstddef>
#include <string_view>

namespace polyhead::models {

// Where the cluster that begins at `at` ends. Exact for clusters of less than 6 bytes and for where their neighbours end; longer clusters, as flags,
// may be cut, because a charsmap reads those character by character.
std::size_t cluster_end(std::string_view text, std::size_t at);

}  // namespace polyhead::models
