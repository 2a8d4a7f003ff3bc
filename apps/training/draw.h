// Random numbers that are a function of a seed and an index.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/hash.h"
#include "core/philox.h"
#include "polyhead/nn/seed.h"

namespace polyhead::training {

// Uniform in [0,1).
inline double uniform(std::uint64_t seed, std::uint64_t number) {
  const std::uint64_t bits = nn::derive_seed(seed, number);
  return uniform_double(static_cast<std::uint32_t>(bits >> 32), static_cast<std::uint32_t>(bits));
}

// A hash of a text: FNV-1a followed by derive_seed(), because the high bits of FNV-1a hardly differ between short texts.
inline std::uint64_t hash_of(std::string_view text) { return nn::derive_seed(fnv1a(text), 0); }

}  // namespace polyhead::training
