#include "nn/initialiser.h"

#include <cmath>
#include <numbers>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/philox.h"
#include "core/text.h"

namespace polyhead::nn {

std::uint64_t required_seed(const char* operation, std::optional<std::uint64_t> seed) {
  require(seed.has_value(), operation, ": the initialisation needs a seed, for example .seed = 1; give each layer its own seed (derive_seed)");
  return *seed;
}

inline namespace internal {
namespace {

constexpr std::uint32_t kDomain = 0x696e6974u;  // "init" in ASCII: the random numbers differ from those of dropout with the same seed

PhiloxBlock draw(std::uint64_t seed, std::uint32_t stream, std::int64_t index) {
  const auto number = static_cast<std::uint64_t>(index);
  return philox4x32({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), stream, kDomain},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

template <class F>
void fill_each(TensorView parameter, const F& value) {
  dispatch_floating(parameter.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    T* data = parameter.data<T>();
    std::int64_t index = 0;
    for_each_offset<1>(parameter.shape(), {parameter.strides()}, [&](const auto& at) { data[at[0]] = store<T>(value(index++)); });
  });
}

}  // namespace

void Initialiser::uniform(TensorView parameter, double low, double high) {
  fill_each(parameter, [&, stream = stream_++](std::int64_t index) {
    const PhiloxBlock block = draw(seed_, stream, index);
    return low + (high - low) * uniform_double(block[0], block[1]);
  });
}

void Initialiser::normal(TensorView parameter, double mean, double deviation) {
  fill_each(parameter, [&, stream = stream_++](std::int64_t index) {
    const PhiloxBlock block = draw(seed_, stream, index);
    // the method of Box and Muller 1958; 1 - u lies in (0,1], so its logarithm is finite
    const double radius = std::sqrt(-2 * std::log(1 - uniform_double(block[0], block[1])));
    return mean + deviation * radius * std::cos(2 * std::numbers::pi * uniform_double(block[2], block[3]));
  });
}

void Initialiser::xavier_uniform(TensorView weight) {
  const auto fans = static_cast<double>(weight.extent(0) + weight.extent(1));
  const double bound = fans > 0 ? std::sqrt(6 / fans) : 0;
  uniform(weight, -bound, bound);
}

void Initialiser::linear(TensorView weight, TensorView bias) {
  const auto in = static_cast<double>(weight.extent(1));
  const double bound = in > 0 ? 1 / std::sqrt(in) : 0;
  uniform(weight, -bound, bound);
  if (bias) uniform(bias, -bound, bound);
}

std::uint64_t Initialiser::child_seed() {
  const PhiloxBlock block = draw(seed_, stream_++, 0);
  return std::uint64_t{block[0]} << 32 | block[1];
}

}  // namespace internal
}  // namespace polyhead::nn
