// Rotary positions (Su et al. 2021, RoFormer, eq. 34): pairs of features of q and k are rotated by angles that grow with the position, so
// that scores depend on distances between positions. The caller gives the cosines and sines of the angles.
#pragma once

#include <cstdint>

#include "polyhead/executor.h"
#include "polyhead/named_members.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// The two features of a head that form pair i, 0 <= i < R/2.
enum class RotaryOrder : std::uint8_t {
  halves,  // i and i + R/2, as in GPT-NeoX and Llama
  pairs,   // 2i and 2i + 1, as in RoFormer and GPT-J
};

// Tables are floating, [*,T,R/2], with leading dimensions that broadcast: a table [T,R/2] serves all sequences. Each angle is given once:
// tables of width R with repeated halves, as in the transformers package, are refused.
struct Rotary {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  ConstTensorView cos = {}, sin = {};          // tables at the positions of the queries
  ConstTensorView key_cos = {}, key_sin = {};  // tables at the positions of the keys, [*,S,R/2]; absent: the tables of the queries are used, and T == S
  RotaryOrder order = RotaryOrder::halves;
  std::int64_t width = 0;                      // R: the first R <= H features of each head are rotated; 0: all H
};

// Rotates the rows of x [*,N,T,H] in place: (a, b) of pair i becomes (a cos - b sin, a sin + b cos). `inverse` rotates back, which is also
// the gradient. Tables broadcast to [*,T,R/2].
enum class Rotation : std::uint8_t { forward, inverse };
void rotate(ConstTensorView cos, ConstTensorView sin, RotaryOrder order, Rotation rotation, TensorView x, Executor* executor = nullptr);

}  // namespace polyhead::nn
#pragma GCC visibility pop
