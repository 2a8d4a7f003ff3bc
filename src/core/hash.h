// The hash function FNV-1a, for hash tables and for choices that must be the same for the same text. It is not secure against chosen inputs.
#pragma once

#include <cstdint>
#include <string_view>

namespace polyhead {

// Returns the hash of `text`. To hash a text in pieces, pass the hash of the preceding pieces as `hash`.
inline std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace polyhead
