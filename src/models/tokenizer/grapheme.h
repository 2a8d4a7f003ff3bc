// Grapheme clusters (Unicode Standard Annex 29), as sentencepiece's charsmaps need them in the `tokenizers` package.
#pragma once

#include <cstddef>
#include <string_view>

namespace polyhead::models {

// Returns the end of the cluster that begins at `at`. Exact for clusters of less than 6 bytes, and for clusters next to them; longer clusters, such
// as flags, may be cut, because a charsmap reads them character by character anyway.
std::size_t cluster_end(std::string_view text, std::size_t at);

}  // namespace polyhead::models
