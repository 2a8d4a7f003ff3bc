// Sigmoid and GELU in float32 lanes, for instruction sets with kHasElementary and 16 lanes: twice as many lanes as in float64 and no
// conversions. Low parts carry rounding errors, so that a result has about one rounding. Each function is cut into 16 pieces with
// polynomials of low degree: the 16 coefficients of one power fit one register, and one instruction looks up each lane's coefficient.
#pragma once

#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

using Floats = Vector<float>;
using Integers = Vector<std::int32_t>;
struct alignas(64) Table {
  float entries[16];
};

POLYHEAD_INLINE Floats entry(const Table& table, Integers lanes) { return look_up(table.entries, lanes); }
POLYHEAD_INLINE Floats magnitude(Floats x) { return (Floats)((Integers)x & 0x7fffffff); }
POLYHEAD_INLINE Floats all(float x) { return broadcast(x); }
POLYHEAD_INLINE Floats fma(Floats a, Floats b, Floats c) { return multiply_add<float>(a, b, c); }

// A power of two as 2^floor(n) (high + low), where n is a multiple of 1/16. Relative error 3e-9.
struct Power {
  static constexpr float kLog2e = 0x1.715476p0f, kLog2eLow = 0x1.4ae0c0p-26f;
  static constexpr Table kHigh{0x1p0f,        0x1.0b5586p0f, 0x1.172b84p0f, 0x1.2387a6p0f, 0x1.306fep0f,  0x1.3dea64p0f,
                               0x1.4bfdaep0f, 0x1.5ab07ep0f, 0x1.6a09e6p0f, 0x1.7a1148p0f, 0x1.8ace54p0f, 0x1.9c4918p0f,
                               0x1.ae89fap0f, 0x1.c199bep0f, 0x1.d5818ep0f, 0x1.ea4afap0f};
  static constexpr Table kLow{0x0p0f,           0x1.9f3122p-25f,  -0x1.c15742p-27f, 0x1.ceac48p-25f, 0x1.4636e2p-25f, 0x1.824684p-25f,
                              -0x1.593abcp-25f, -0x1.5bd5ecp-27f, 0x1.9fcef4p-26f,  -0x1.829fdp-25f, 0x1.15506ep-27f, 0x1.51f848p-27f,
                              -0x1.a94b14p-26f, -0x1.3d56b2p-27f, -0x1.822dbcp-27f, 0x1.52486cp-27f};

  // Represents exp(-scale x) 2^rest, for x >= 0 and scale a power of two.
  POLYHEAD_INLINE Power(Floats x, float scale, Floats rest) {
    constexpr float kMagic = 0x1.8p19f;  // its last bit stands for 1/16
    const Floats factor = all(-scale * kLog2e), shifted = fma(x, factor, all(kMagic));
    n = shifted - kMagic;
    const Floats f = fma(x, factor, -n) + fma(x, all(-scale * kLog2eLow), rest);
    const Floats slope = fma(fma(all(0x1.c6b46ap-5f), f, all(0x1.ebfff4p-3f)), f, all(0x1.62e43p-1f));  // minimax: (2^f - 1) / f
    const auto sixteenth = (Integers)shifted;
    high = entry(kHigh, sixteenth);
    low = fma(high, slope * f, entry(kLow, sixteenth));
  }
  Floats n, high, low;
};

// 1 / (1 + e) or, for negative x, e / (1 + e), with e = exp(-|x|), or 0 if that is subnormal. Largest relative error 7.4e-8, measured at
// every 61st float32.
POLYHEAD_INLINE Floats sigmoid(Floats x) {
  const Power e(magnitude(x), 1, Floats{});
  const Floats sum = e.high + e.low, left = (e.high - sum) + e.low;
  const Floats high = times_power_of_two(sum, e.n), low = times_power_of_two(left, e.n);
  const Floats total = high + 1.0f, lost = ((1.0f - total) + high) + low;
  // 1 / total = guess (1 + rest + rest^2 + ...), and rest < 2^-14
  const Floats guess = reciprocal_guess<float>(total);
  const Floats rest = fma(-guess, lost, fma(-guess, total, all(1)));
  const Floats correction = guess * fma(rest, rest, rest);
  const Floats over = x < 0.0f ? high : all(1), over_low = x < 0.0f ? low : Floats{};
  return fma(over, guess, fma(over, correction, over_low * guess));
}

// max(x, 0) - z Phi(-z) with z = |x| and Phi(-z) = exp(-z^2 / 2) G(z). G is half of the scaled complementary error function. It is a
// polynomial of z - centre on each of 16 pieces, which are quarters of the octaves of 1 + z. The centres are chosen so that G there is within 2^-32 of a float32;
// the other coefficients are least squares, reweighted to the smallest relative error, 8e-9. From z = 13.1 on, where z Phi(-z) is 2e-38, 0
// takes its place. Largest relative error 1.02e-7, measured at every 61st float32, also negative ones, where 1 + erf would cancel.
// gelu(-infinity) is NaN, as x Phi(x) is.
POLYHEAD_INLINE Floats gelu(Floats x) {
  constexpr float kMost = 13.1f;
  static constexpr Table kCentre{0x1.4000acp0f,  0x1.c003aap0f,  0x1.2000d8p1f,  0x1.60005ap1f, 0x1.c0007p1f, 0x1.20003p2f,
                                 0x1.60001ep2f,  0x1.a00142p2f,  0x1.0000ecp3f,  0x1.40008cp3f, 0x1.80001p3f, 0x1.a33394p3f,
                                 0x1.000122p-3f, 0x1.80008cp-2f, 0x1.400008p-1f, 0x1.c0017cp-1f};
  static constexpr Table kG[] = {
      {0x1.d89846p-3f, 0x1.7b588cp-3f, 0x1.3aad26p-3f, 0x1.0bb93p-3f, 0x1.b3969ap-4f, 0x1.5b5a98p-4f, 0x1.201f92p-4f, 0x1.eba492p-5f,
       0x1.92680ap-5f, 0x1.43a3p-5f, 0x1.0e7dc2p-5f, 0x1.f01796p-6f, 0x1.d0aefap-2f, 0x1.84b6e2p-2f, 0x1.4b1ddep-2f, 0x1.1e7bb8p-2f},
      {-0x1.c49224p-4f, -0x1.325088p-4f, -0x1.b403f8p-5f, -0x1.432a98p-5f, -0x1.b602d8p-6f, -0x1.1be272p-6f, -0x1.8b1918p-7f,
       -0x1.21aceep-7f, -0x1.86b598p-8f, -0x1.fbf122p-9f, -0x1.63cfacp-9f, -0x1.2b861ep-9f, -0x1.5e6e32p-2f, -0x1.06bf8ap-2f,
       -0x1.932346p-3f, -0x1.3bae7cp-3f},
      {0x1.7b78bp-5f, 0x1.bd3f9p-6f, 0x1.15a8cap-6f, 0x1.6c5d6cp-7f, 0x1.a29e0ap-8f, 0x1.bfba3p-9f, 0x1.07e3aap-9f, 0x1.4ea238p-10f,
       0x1.762208p-11f, 0x1.8af04ep-12f, 0x1.d0fb26p-13f, 0x1.67ab6p-13f, 0x1.a4e102p-3f, 0x1.222eecp-3f, 0x1.9a45aap-4f, 0x1.28bde8p-4f},
      {-0x1.1f307ap-6f, -0x1.295bfep-7f, -0x1.49b73ep-8f, -0x1.838aa8p-9f, -0x1.7e76dp-10f, -0x1.55b684p-11f, -0x1.57fcap-12f,
       -0x1.7b5a4cp-13f, -0x1.617684p-14f, -0x1.304e0ep-15f, -0x1.2ddcfp-16f, -0x1.ad8fdcp-17f, -0x1.b02a2p-4f, -0x1.15c8aap-4f,
       -0x1.6e91bap-5f, -0x1.ef9d4ep-6f},
      {0x1.8fef46p-8f, 0x1.72172cp-9f, 0x1.70c2fap-10f, 0x1.87be4ap-11f, 0x1.4fae26p-12f, 0x1.fa33b8p-14f, 0x1.b643eap-15f, 0x1.a673a2p-16f,
       0x1.49bb98p-17f, 0x1.d0e17p-19f, 0x1.857e0cp-20f, 0x1.45fd8ap-19f, 0x1.89ddc2p-5f, 0x1.dc3032p-6f, 0x1.27b73cp-6f, 0x1.785af6p-7f},
      {-0x1.060bc6p-9f, -0x1.b4dep-11f, -0x1.89e1cap-12f, -0x1.7c27dcp-13f, -0x1.212246p-14f, -0x1.717574p-16f, -0x1.13e12cp-17f,
       -0x1.d1aceep-19f, -0x1.36bd6p-20f, -0x1.658612p-22f, -0x1.f8c944p-24f, -0x1.6a329p-24f, -0x1.47394p-6f, -0x1.7624dp-7f,
       -0x1.b7e66p-8f, -0x1.0901fp-8f},
      {0x1.3f4b76p-11f, 0x1.e3acfap-13f, 0x1.8da8f8p-14f, 0x1.5bab5ep-15f, 0x1.d7e06cp-17f, 0x1.031a08p-18f, 0x1.5004c6p-20f,
       0x1.f24426p-22f, 0x1.1a864p-23f, 0x1.0c74dp-25f, 0x1.40cb4cp-27f, -0x1.9cd706p-14f, 0x1.f375aap-8f, 0x1.105b44p-8f, 0x1.302ecap-9f,
       0x1.ba86e4p-10f}};
  const Floats z = magnitude(x), square = z * z, rest = fma(z, z, -square);
  const Power bell(square, 0.5f, rest * (-0.5f * Power::kLog2e));
  const Integers piece = (Integers)(z + 1.0f) >> 21;
  const Floats d = z - entry(kCentre, piece);
  Floats sum = entry(kG[6], piece);
#pragma GCC unroll 8
  for (int i = 5; i > 0; --i) sum = fma(sum, d, entry(kG[i], piece));
  const Floats g = entry(kG[0], piece), g_low = sum * d;
  const Floats high = bell.high * g;
  const Floats low = fma(bell.high, g_low, fma(bell.low, g + g_low, fma(bell.high, g, -high)));
  const Floats beyond = (x < 0.0f ? x : Floats{}) * 0.0f;                                      // NaN if x is -infinity, else 0
  const Floats tail = z < kMost ? times_power_of_two(fma(z, high, z * low), bell.n) : beyond;  // if x is NaN: the last line gives NaN
  return (x < 0.0f ? Floats{} : x) - tail;
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
