#include "polyhead/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/dispatch.h"

namespace polyhead {

static_assert(std::ranges::all_of(kDTypes, [](const DTypeInfo& row) { return &row == &info(row.dtype); }));

void fail_not_floating(DType dtype) {
  fail(ErrorCode::invalid_argument, "the dtype is ", dtype, "; it must be float32, float64, bfloat16 or float16");
}

float to_float(bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};  // set a bit of the payload, because truncation alone could turn the NaN into infinity
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

float to_float(f16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fu, fraction = x.bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24 is exact in float32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

float to_float_for_narrowing(double x) {
  const auto nearest = static_cast<float>(x);
  const double back = nearest;
  if (back == x || std::isnan(x)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(back) > std::abs(x)) --bits;  // round towards zero; infinity becomes the largest finite number
  return std::bit_cast<float>(bits | 1u);
}

f16 to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const auto with_sign = [&](std::uint32_t rest) { return f16{static_cast<std::uint16_t>(sign | rest)}; };
  if (magnitude > 0x7f800000u) return with_sign(0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return with_sign(0x7c00u);  // numbers from 65520 on round to infinity
  // Below 2^-14 the result is subnormal or 0. Adding 0.5 rounds it and moves its bits to the low end.
  if (magnitude < 0x38800000u) {
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u);
  }
  const std::uint32_t rebased = magnitude - (112u << 23);
  return with_sign((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13);
}

}  // namespace polyhead
