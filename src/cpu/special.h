// sin, cos, arctan, erf and erfc of a float64 vector. Only kernel sources (*_kernel.cc) include this file. The relative error of each is a few times 2^-53.
#pragma once

#include "cpu/elementary.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <int kTerms>
POLYHEAD_INLINE Vector<double> polynomial(Vector<double> x, const double (&c)[kTerms]) {
  Vector<double> sum = broadcast(c[kTerms - 1]);
#pragma GCC unroll 32
  for (int i = kTerms - 2; i >= 0; --i) sum = multiply_add<double>(sum, x, broadcast(c[i]));
  return sum;
}

// Returns sin(x + quarters pi/2). With x = n pi/2 + r and |r| <= pi/4, it is +-sin r or +-cos r. pi/2 is a sum of three numbers of 33 bits, whose products with
// n < 2^20 are exact (Cody and Waite 1980). The polynomials are those of fdlibm (Sun Microsystems 1993).
POLYHEAD_INLINE Vector<double> sine(Vector<double> x, int quarters) {
  using V = Vector<double>;
  constexpr double kMagic = 0x1.8p52, kMost = 0x1p20;  // adding kMagic rounds to the nearest integer; for |x| >= kMost the C library is called
  constexpr double kSine[] = {-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10};
  constexpr double kCosine[] = {4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05, -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11};
  constexpr double kHalfPi[] = {1.57079632673412561417e+00, 6.07710050630396597660e-11, 2.02226624879595063154e-21};
  const V shifted = multiply_add<double>(x, broadcast(0.636619772367581343076), broadcast(kMagic)), n = shifted - kMagic;
  V r = x;
#pragma GCC unroll 4
  for (const double part : kHalfPi) r = multiply_add<double>(-n, broadcast(part), r);
  const V z = r * r, half = z * 0.5;
  const V sine = multiply_add<double>(r * z, polynomial(z, kSine), r), cosine = multiply_add<double>(z * z, polynomial(z, kCosine), 1.0 - half);
  const Vector<Bits<double>> quadrant = (Vector<Bits<double>>)shifted + quarters;  // the lowest bits of `shifted` are those of n
  const V of_quadrant = (quadrant & 1) != 0 ? cosine : sine;
  V result = (quadrant & 2) != 0 ? -of_quadrant : of_quadrant;
  for (int i = 0; i < kLanes<double>; ++i) {  // for large x, infinities and NaN, which are rare, the C library is called
    if (!(x[i] > -kMost && x[i] < kMost)) result[i] = quarters == 0 ? __builtin_sin(x[i]) : __builtin_cos(x[i]);
  }
  return result;
}

// Returns arctan x. For z = |x| > tan(pi/8) it computes arctan z = pi/4 + arctan((z - 1)/(z + 1)), and for z > tan(3 pi/8) arctan z = pi/2 - arctan(1/z). The
// polynomial interpolates arctan(z)/z at Chebyshev's points.
POLYHEAD_INLINE Vector<double> arctangent(Vector<double> x) {
  using V = Vector<double>;
  constexpr double kArctangent[] = {1.0, -0.3333333333333312, 0.19999999999940837, -0.14285714279244968, 0.11111110744657099, -0.09090896801472813, 0.07692045194561481,
                                  -0.06662950246036792, 0.05846866752275139, -0.05035049795312439, 0.03796390316111083, -0.017803896394812564};
  const V z = x < 0.0 ? -x : x;
  const auto far = z > 2.414213562373095, middle = z > 0.4142135623730951;
  const V t = far ? -1.0 / z : middle ? (z - 1.0) / (z + 1.0) : z;
  const V base = far ? broadcast(1.5707963267948966) : middle ? broadcast(0.7853981633974483) : V{};
  // The difference between pi/2 or pi/4 and its float64 value.
  const V rest = far ? broadcast(6.123233995736766e-17) : middle ? broadcast(3.061616997868383e-17) : V{};
  const V sum = base + multiply_add<double>(t, polynomial(t * t, kArctangent), rest);
  return x < 0.0 ? -sum : sum;
}

// Returns erfc(z) = exp(-z^2) P((z - 3)/(z + 3)) / (1 + 2 z) for z >= 0 (Shepherd and Laframboise 1981). P interpolates at Chebyshev's points.
POLYHEAD_INLINE Vector<double> erfc_of_positive(Vector<double> z) {
  using V = Vector<double>;
  constexpr double kErfc[] = {1.2530080582697296, -0.1356211061245807, -0.047562294353446374, 0.12964515870270552, -0.11927366341552853, 0.06830802734580459, -0.02377051491423367,
                            0.002529391788270445, 0.001888690312003782, -0.0007798320379611115, -0.00010515949033775975, 0.00012509815174864322, 4.948147875576539e-06,
                            -2.009663087595395e-05, -7.275875746667183e-07, 3.463997532352904e-06, 3.4899197889744293e-07, -6.050048623933503e-07, -1.311166137536459e-07,
                            9.186243026143847e-08, 3.29163439676632e-08, -8.500119502115306e-09, -4.210104975119195e-09};
  constexpr double kMost = 28;  // z is limited to kMost, because exp(-28^2) is 0 already
  const V bounded = z > kMost ? broadcast(kMost) : z;
  // -z^2 is computed as the sum of two exponents: -first^2, which is exact because `first` has 26 bits, and first^2 - z^2. If z^2 were rounded to one number,
  // this rounding error of up to 2^-53 z^2 would be the largest error of the result.
  const V first = (V)((Vector<Bits<double>>)bounded & ~Bits<double>{0x7ffffff});
  const V exact[2] = {-first * first, (first - bounded) * (first + bounded)};
  const ExpFactor<double> one(1);
  const V bell = exp_of_negative<double>(exact[0], one) * exp_of_negative<double>(exact[1], one);
  return bell * (polynomial((bounded - 3.0) / (bounded + 3.0), kErfc) / multiply_add<double>(bounded, broadcast(2.0), broadcast(1.0)));
}

POLYHEAD_INLINE Vector<double> complementary_error(Vector<double> x) {
  const Vector<double> z = x < 0.0 ? -x : x, tail = erfc_of_positive(z > 30.0 ? broadcast(30.0) : z);
  return x < 0.0 ? 2.0 - tail : tail;
}

// For |x| < 1, erf(x) / x is a polynomial of x^2, because 1 - erfc(x) would cancel.
POLYHEAD_INLINE Vector<double> error_function(Vector<double> x) {
  constexpr double kErf[] = {1.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145, -0.000854832698083379,
                           0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06, -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09,
                           5.957176147748911e-11};
  const Vector<double> z = x < 0.0 ? -x : x, tail = 1.0 - erfc_of_positive(z > 30.0 ? broadcast(30.0) : z);
  return z < 1.0 ? x * polynomial(z < 1.0 ? x * x : Vector<double>{}, kErf) : x < 0.0 ? -tail : tail;
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
