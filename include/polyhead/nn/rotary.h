// Rotary positions (Su et al. 2021, RoFormer, eq. 34): pairs of features of q and k are rotated by angles that grow with the position, so that scores depend on
// distances between positions. The caller gives tables of the cosines and sines of the angles.
#pragma once

#include <cstdint>

#include "polyhead/executor.h"
#include "polyhead/named_members.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// Which two features of a head are pair i, 0 <= i < R/2.
enum class RotaryOrder : std::uint8_t {
  halves,  // features i and i + R/2, as in GPT-NeoX and Llama
  pairs,   // features 2i and 2i + 1, as in RoFormer and GPT-J
};

// The tables of the angles, floating [*,T,R/2]. Their leading dimensions broadcast: a table [T,R/2] serves all sequences. Each angle is given once. Tables of
// width R that repeat their halves, as in the transformers package, are refused.
struct Rotary {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  ConstTensorView cos = {}, sin = {};          // the tables at the positions of the queries
  ConstTensorView key_cos = {}, key_sin = {};  // [*,S,R/2]: the tables at the positions of the keys; absent: those of the queries, and T must equal S
  RotaryOrder order = RotaryOrder::halves;
  std::int64_t width = 0;                      // R: the first R features of each head are rotated; 0: all H features
};

// Rotates the rows of x [*,N,T,H] in place: pair i with the features (a, b) becomes (a cos - b sin, a sin + b cos). Rotation::inverse rotates back, which is
// also the gradient of the rotation. The tables broadcast to [*,T,R/2].
enum class Rotation : std::uint8_t { forward, inverse };
void rotate(ConstTensorView cos, ConstTensorView sin, RotaryOrder order, Rotation rotation, TensorView x, Executor* executor = nullptr);

}  // namespace polyhead::nn
#pragma GCC visibility pop
