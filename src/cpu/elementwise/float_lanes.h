// Sigmoid and GELU in vectors of float32, for instruction sets with kHasElementary and 16 lanes. Compared with float64 a vector has twice as many lanes and needs
// no conversion. To keep the error near that of one rounding, intermediate numbers are sums high + low, where `low` holds the rounding error of `high`. The
// domain of GELU is cut into 16 intervals with a polynomial of low degree for each: the 16 coefficients of one power fit one register, and one instruction looks up
// the coefficient of each lane.
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

// A power of two, represented as 2^floor(n) (high + low), where n is a multiple of 1/16. The relative error is 3e-9.
struct Power {
  static constexpr float kLog2e = 0x1.715476p0f, kLog2eLow = 0x1.4ae0c0p-26f;
  static constexpr Table kHigh{0x1p0f,        0x1.0b5586p0f, 0x1.172b84p0f, 0x1.2387a6p0f, 0x1.306fep0f,  0x1.3dea64p0f,
                               0x1.4bfdaep0f, 0x1.5ab07ep0f, 0x1.6a09e6p0f, 0x1.7a1148p0f, 0x1.8ace54p0f, 0x1.9c4918p0f,
                               0x1.ae89fap0f, 0x1.c199bep0f, 0x1.d5818ep0f, 0x1.ea4afap0f};
  static constexpr Table kLow{0x0p0f,           0x1.9f3122p-25f,  -0x1.c15742p-27f, 0x1.ceac48p-25f, 0x1.4636e2p-25f, 0x1.824684p-25f,
                              -0x1.593abcp-25f, -0x1.5bd5ecp-27f, 0x1.9fcef4p-26f,  -0x1.829fdp-25f, 0x1.15506ep-27f, 0x1.51f848p-27f,
                              -0x1.a94b14p-26f, -0x1.3d56b2p-27f, -0x1.822dbcp-27f, 0x1.52486cp-27f};

  // Represents exp(-scale x) 2^rest, for x >= 0 and a `scale` that is a power of two.
  POLYHEAD_INLINE Power(Floats x, float scale, Floats rest) {
    constexpr float kMagic = 0x1.8p19f;  // the last bit of this number is worth 1/16, so adding it rounds to a multiple of 1/16
    const Floats factor = all(-scale * kLog2e), shifted = fma(x, factor, all(kMagic));
    n = shifted - kMagic;
    const Floats f = fma(x, factor, -n) + fma(x, all(-scale * kLog2eLow), rest);
    const Floats slope = fma(fma(all(0x1.c6b46ap-5f), f, all(0x1.ebfff4p-3f)), f, all(0x1.62e43p-1f));  // a minimax polynomial for (2^f - 1) / f
    const auto sixteenth = (Integers)shifted;
    high = entry(kHigh, sixteenth);
    low = fma(high, slope * f, entry(kLow, sixteenth));
  }
  Floats n, high, low;
};

// sigmoid(x) = 1 / (1 + e) or, for negative x, e / (1 + e), where e = exp(-|x|). An e that would be subnormal is 0. The largest relative error, measured at
// every 61st float32, is 7.4e-8.
POLYHEAD_INLINE Floats sigmoid(Floats x) {
  const Power e(magnitude(x), 1, Floats{});
  const Floats sum = e.high + e.low, left = (e.high - sum) + e.low;
  const Floats high = times_power_of_two(sum, e.n), low = times_power_of_two(left, e.n);
  const Floats total = high + 1.0f, lost = ((1.0f - total) + high) + low;
  // With rest = 1 - guess total, 1 / total = guess (1 + rest + rest^2 + ...). As |rest| < 2^-14, few terms suffice.
  const Floats guess = reciprocal_guess<float>(total);
  const Floats rest = fma(-guess, lost, fma(-guess, total, all(1)));
  const Floats correction = guess * fma(rest, rest, rest);
  const Floats over = x < 0.0f ? high : all(1), over_low = x < 0.0f ? low : Floats{};
  return fma(over, guess, fma(over, correction, over_low * guess));
}

constexpr float kMostOfTail = 13.1f;
// The centres of the 16 intervals of [0, 13.1). The polynomials of gelu and of its derivative are polynomials of z - centre.
constexpr Table kCentre{0x1.4000acp0f,  0x1.c003aap0f,  0x1.2000d8p1f,  0x1.60005ap1f, 0x1.c0007p1f, 0x1.20003p2f,
                        0x1.60001ep2f,  0x1.a00142p2f,  0x1.0000ecp3f,  0x1.40008cp3f, 0x1.80001p3f, 0x1.a33394p3f,
                        0x1.000122p-3f, 0x1.80008cp-2f, 0x1.400008p-1f, 0x1.c0017cp-1f};

// Numbers that gelu and gelu_backward compute from x: z = |x|, the distance d of z from the centre of its interval, and exp(-z^2 / 2).
struct Tail {
  POLYHEAD_INLINE explicit Tail(Floats x)
      : z(magnitude(x)), d(), bell(z * z, 0.5f, fma(z, z, -(z * z)) * (-0.5f * Power::kLog2e)), piece((Integers)(z + 1.0f) >> 21) {
    d = z - entry(kCentre, piece);
  }
  Floats z, d;
  Power bell;
  Integers piece;
};

// gelu(x) = x Phi(x) = max(x, 0) - z Phi(-z), where z = |x|, Phi is the normal distribution function and Phi(-z) = exp(-z^2 / 2) G(z). G is half of the scaled
// complementary error function. On each of 16 intervals, which are quarters of the octaves of 1 + z, G is a polynomial of z - centre. The centres are chosen so
// that G(centre) is within 2^-32 of a float32. The other coefficients minimise the relative error, which is 8e-9. From z = 13.1 on z Phi(-z) is below 2e-38 and
// is replaced by 0. The largest relative error of gelu, measured at every 61st float32, is 1.02e-7, for negative x too, where 1 + erf would cancel.
// gelu(-infinity) is NaN, because it is infinity times 0.
POLYHEAD_INLINE Floats gelu(Floats x) {
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
  const Tail of(x);
  const auto& [z, d, bell, piece] = of;
  Floats sum = entry(kG[6], piece);
#pragma GCC unroll 8
  for (int i = 5; i > 0; --i) sum = fma(sum, d, entry(kG[i], piece));
  const Floats g = entry(kG[0], piece), g_low = sum * d;
  const Floats high = bell.high * g;
  const Floats low = fma(bell.high, g_low, fma(bell.low, g + g_low, fma(bell.high, g, -high)));
  const Floats beyond = (x < 0.0f ? x : Floats{}) * 0.0f;                                      // NaN if x is -infinity, else 0
  const Floats tail = z < kMostOfTail ? times_power_of_two(fma(z, high, z * low), bell.n) : beyond;  // if x is NaN, the last line returns NaN
  return (x < 0.0f ? Floats{} : x) - tail;
}

// Returns d_y gelu'(x) with about one rounding. gelu'(x) = Phi(x) + x phi(x), where phi is the normal density. With T = exp(-z^2 / 2) D(z) and D(z) = G(z) - z
// / sqrt(2 pi), gelu'(x) is T for negative x and 1 - T for other x. D is one polynomial on each of the 16 intervals of gelu(), because the two terms of D would
// cancel near the minimum of gelu. The polynomials have a relative error of 9e-10, or an absolute error of 3e-11 where D is near 0. From z = 13.1 on T is below
// 1e-36 and is replaced by 0. The largest relative error, measured at every 61st float32 that is at least 0.05 from the minimum, is 1.1e-7; it would be 1.5e-7
// if the coefficients had no low parts. The result is NaN for infinities, because x phi(x) is infinity times 0.
POLYHEAD_INLINE Floats gelu_backward(Floats x, Floats d_y) {
  static constexpr Table kD[] = {
      {-0x1.125a58p-2f, -0x1.06a092p-1f, -0x1.7ceaecp-1f, -0x1.eec836p-1f, -0x1.4a3ab8p0f, -0x1.b5df8p0f, -0x1.0fda14p1f, -0x1.443df2p1f,
       -0x1.923c2cp1f, -0x1.f997bcp1f, -0x1.30465p2f, -0x1.4c895ap2f, 0x1.9d9e36p-2f, 0x1.d70a16p-3f, 0x1.2f2c8ep-4f, -0x1.1be5p-4f},
      {0x1.eb181cp-28f, -0x1.00c05p-27f, -0x1.a95c82p-26f, -0x1.2e892ep-29f, -0x1.254cep-25f, -0x1.7b63c2p-25f, -0x1.33cc58p-24f,
       -0x1.1413dap-25f, 0x1.42ea82p-25f, 0x1.161eap-24f, 0x1.47a414p-24f, 0x1.968e98p-25f, -0x1.0111cap-28f, -0x1.0cee06p-30f,
       0x1.7bddfep-30f, -0x1.ba4fecp-32f},
      {-0x1.04d46ep-1f, -0x1.e51876p-2f, -0x1.cf04d2p-2f, -0x1.c0e9a6p-2f, -0x1.b3e48p-2f, -0x1.aa427ap-2f, -0x1.a4dd1cp-2f,
       -0x1.a191bap-2f, -0x1.9e9f2ap-2f, -0x1.9c7c36p-2f, -0x1.9b4bf2p-2f, -0x1.9adb6p-2f, -0x1.7b7942p-1f, -0x1.4fa1eep-1f,
       -0x1.310afcp-1f, -0x1.1b2dc8p-1f},
      {-0x1.aab8fp-29f, 0x1.c71274p-27f, -0x1.08fa6ep-28f, -0x1.846a3ap-28f, -0x1.7921c4p-27f, -0x1.abab14p-28f, 0x1.3e34a8p-33f,
       -0x1.5606fap-27f, 0x1.8bb37p-28f, 0x1.f7cfacp-28f, -0x1.2a9b7ap-27f, 0x1.0c1258p-27f, -0x1.8192d6p-26f, -0x1.383e46p-27f,
       0x1.724f3p-26f, -0x1.bd6338p-27f},
      {0x1.7b78bcp-5f, 0x1.bd3f96p-6f, 0x1.15a8ccp-6f, 0x1.6c5d7p-7f, 0x1.a29e22p-8f, 0x1.bfba36p-9f, 0x1.07e3aep-9f, 0x1.4ea23cp-10f,
       0x1.762224p-11f, 0x1.8af056p-12f, 0x1.d0fb3p-13f, 0x1.67ae5cp-13f, 0x1.a4e102p-3f, 0x1.222eeap-3f, 0x1.9a45a8p-4f, 0x1.28bddap-4f},
      {-0x1.1f30aep-6f, -0x1.295bfep-7f, -0x1.49b728p-8f, -0x1.838a32p-9f, -0x1.7e772ep-10f, -0x1.55b692p-11f, -0x1.57fc7p-12f,
       -0x1.7b59ccp-13f, -0x1.6176fep-14f, -0x1.304e2ep-15f, -0x1.2ddcbcp-16f, -0x1.ad91aap-17f, -0x1.b02a1ap-4f, -0x1.15c896p-4f,
       -0x1.6e91bcp-5f, -0x1.ef9d08p-6f},
      {0x1.8fdc48p-8f, 0x1.720efp-9f, 0x1.70bd74p-10f, 0x1.87b2b4p-11f, 0x1.4f9b9cp-12f, 0x1.fa27dp-14f, 0x1.b63a7p-15f, 0x1.a6695ap-16f,
       0x1.49a634p-17f, 0x1.d0d506p-19f, 0x1.8574d2p-20f, 0x1.fd62f8p-21f, 0x1.89df3p-5f, 0x1.dc346ap-6f, 0x1.27bb66p-6f, 0x1.78a1dep-7f},
      {-0x1.05f8dep-9f, -0x1.b4dd5ap-11f, -0x1.89f152p-12f, -0x1.7c8138p-13f, -0x1.211154p-14f, -0x1.71705p-16f, -0x1.13f22p-17f,
       -0x1.d20a5p-19f, -0x1.36a7b8p-20f, -0x1.657a8ap-22f, -0x1.f8eefep-24f, -0x1.6322e4p-24f, -0x1.473d8ep-6f, -0x1.764298p-7f,
       -0x1.b7e0aep-8f, -0x1.0954d8p-8f},
      {0x1.461b8cp-11f, 0x1.e937d8p-13f, 0x1.912a26p-14f, 0x1.623b5cp-15f, 0x1.de5708p-17f, 0x1.05451ap-18f, 0x1.52f87ap-20f,
       0x1.f8143p-22f, 0x1.1e444cp-23f, 0x1.0ead7ep-25f, 0x1.43a2aep-27f, -0x1.086768p-25f, 0x1.f1aca2p-8f, 0x1.0de582p-8f,
       0x1.2a9f76p-9f, 0x1.6281a6p-10f}};
  const Tail of(x);
  const auto& [z, d, bell, piece] = of;
  const Floats start = entry(kD[0], piece), slope = entry(kD[2], piece);
  Floats sum = entry(kD[8], piece);
#pragma GCC unroll 8
  for (int i = 7; i > 2; --i) sum = fma(sum, d, entry(kD[i], piece));
  const Floats high = fma(slope, d, start), low = fma(slope, d, start - high) + fma(sum, d, entry(kD[1], piece));
  const Floats product = bell.high * high, lost = fma(bell.high, low, fma(bell.low, high + low, fma(bell.high, high, -product)));
  const Floats far = x * 0.0f;  // NaN if x is infinite or NaN, else 0
  const Floats t = z < kMostOfTail ? times_power_of_two(product, bell.n) : far, t_low = z < kMostOfTail ? times_power_of_two(lost, bell.n) : far;
  const Floats value = x < 0.0f ? t : 1.0f - t, value_low = x < 0.0f ? t_low : ((1.0f - value) - t) - t_low;
  constexpr float kLargest = 0x1.fffffep127f;
  // For an infinite d_y, a low part of 0 would give NaN.
  return fma(value, d_y, magnitude(d_y) <= kLargest ? value_low * d_y : Floats{});
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
