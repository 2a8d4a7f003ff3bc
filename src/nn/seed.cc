#include "polyhead/nn/seed.h"

#include "core/philox.h"

namespace polyhead::nn {

std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t number) {
  constexpr std::uint32_t kDomain = 0x73656564u;  // "seed" in ASCII: the random numbers differ from those of other uses of the seed
  const PhiloxBlock block = philox4x32({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), 0, kDomain},
                                       {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return std::uint64_t{block[0]} << 32 | block[1];
}

}  // namespace polyhead::nn
