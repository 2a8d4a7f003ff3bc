// Cross attention with a mask: a decoder's queries attend to an encoder's output, except where the mask is true. Tutorials write it as
// Multi_atten(emd_size, q_k_size, v_size, head) and CrossAttention.
#include "check.h"

using namespace polyhead;

int main() {
  const Tensor decoder = example::waves({1, 5, 48}), encoder = example::waves({1, 7, 48}, 2.0);
  // (batch, 1 for all heads, queries, keys), true blocks: the encoder's last two positions are padding, and query 0 may attend to key 0 only.
  Tensor mask(DType::boolean, {1, 1, 5, 7});
  fill(mask.view().slice(3, 5, 7), 1);
  fill(mask.view().slice(2, 0, 1).slice(3, 1, 7), 1);

  // Multi_atten(emd_size=48, q_k_size=6, v_size=6, head=8): widths of one head, no output projection.
  const nn::MultiHeadAttention layer({.query_width = 48, .heads = 8, .head_width = 6, .value_head_width = 6, .output = nn::OutputProjection::none, .seed = 1});
  const nn::AttentionInput input{.query = decoder, .key = encoder};
  nn::MultiHeadAttention::Saved saved;
  Tensor out(DType::f32, layer.output_shape(input));
  layer.forward(input, out, {.mask = {.block = mask}}, &saved);

  Tensor weights(DType::f32, layer.maps_shape(input));
  attention_map(saved.maps(), weights, saved.sdpa);
  example::show("decoder", decoder);
  example::show("encoder", encoder);
  example::show("attention weights", weights);
  example::show("out", out);
  for (std::int64_t t = 0; t < 5; ++t) example::show_row(t == 0 ? "head 0, a row for each query" : "", weights.data<float>() + t * 7, 7);

  example::Claims claims;
  bool zero = true;
  for (std::int64_t n = 0; n < 8; ++n) {
    for (std::int64_t t = 0; t < 5; ++t) {
      for (std::int64_t s = 0; s < 7; ++s) {
        if (mask.data<bool>()[t * 7 + s]) zero &= weights.data<float>()[(n * 5 + t) * 7 + s] == 0;
      }
    }
  }
  claims.add("the attention weight of a blocked key is exactly 0", zero);
  claims.add("the attention weights of each query sum to 1", example::rows_sum_to_one(weights));
  claims.add("query 0 attends to one key, whose attention weight is 1", example::near(weights.data<float>()[0], 1));

  // A blocked key is treated as if it did not exist: even NaN there does not reach the output.
  Tensor with_nan = encoder;
  fill(with_nan.view().slice(1, 5, 7), NAN);
  Tensor again(DType::f32, out.shape());
  layer.forward({.query = decoder, .key = with_nan}, again, {.mask = {.block = mask}});
  bool same = true;
  for (std::int64_t i = 0; i < out.numel(); ++i) same &= out.data<float>()[i] == again.data<float>()[i];
  claims.add("NaN in the padding changes no bit of the output", same);
  return claims.status();
}
