// Self attention: every position of a sequence attends to all positions. Tutorials write it as SelfAttention(input_dim, dim_qk, dim_v) with one head
// and MultiHeadAttention(input_dim, num_heads, dim_qk, dim_v) with several.
#include "check.h"

using namespace polyhead;

int main() {
  const Tensor x = example::waves({2, 10, 32});  // (batch, sequence, input_dim)
  example::Claims claims;

  // SelfAttention(input_dim=32, dim_qk=16, dim_v=24): one head, no output projection.
  const nn::MultiHeadAttention single({.query_width = 32, .heads = 1, .head_width = 16, .value_head_width = 24, .output = nn::OutputProjection::none, .seed = 1});
  Tensor y(DType::f32, single.output_shape({.query = x}));
  single.forward({.query = x}, y);
  example::show("x", x);
  example::show("SelfAttention(x)", y);
  claims.add("the output is as wide as dim_v", y.shape() == Shape({2, 10, 24}));

  // MultiHeadAttention(input_dim=32, num_heads=4, dim_qk=16, dim_v=24): the widths are those of all heads together.
  const nn::MultiHeadAttention multi({.query_width = 32, .heads = 4, .head_width = 16 / 4, .value_head_width = 24 / 4, .seed = 1});
  nn::MultiHeadAttention::Saved saved;
  Tensor z(DType::f32, multi.output_shape({.query = x}));
  multi.forward({.query = x}, z, {}, &saved);
  Tensor weights(DType::f32, multi.maps_shape({.query = x}));
  attention_map(saved.maps(), weights, saved.sdpa);
  example::show("MultiHeadAttention(x)", z);
  example::show("attention weights", weights);
  example::show_row("head 0, position 0", weights.data<float>(), 10);
  claims.add("the output is as wide as the input", z.shape() == x.shape());
  claims.add("the attention weights of each query sum to 1", example::rows_sum_to_one(weights));

  // Attention does not depend on the order of positions: a reversed sequence gives the reversed output.
  const ConstTensorView reversed = x.view().slice(1, 0, 10, -1);
  Tensor z_reversed(DType::f32, x.shape());
  multi.forward({.query = reversed}, z_reversed);
  bool same = true;
  for (std::int64_t t = 0; t < 10; ++t) {
    for (std::int64_t e = 0; e < 32; ++e) same &= example::near(z.data<float>()[t * 32 + e], z_reversed.data<float>()[(9 - t) * 32 + e]);
  }
  claims.add("a reversed sequence gives the reversed output", same);
  return claims.status();
}
