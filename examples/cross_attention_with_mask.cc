// Multi_atten(emd_size, q_k_size, v_size, head) and CrossAttention: queries from a decoder look at what an encoder gives, but not where the mask is true.
#include "check.h"

using namespace polyhead;

int main() {
  const Tensor decoder = example::waves({1, 5, 48}), encoder = example::waves({1, 7, 48}, 2.0);
  // (batch, queries, keys), the same for every head; true blocks: the last two positions of the encoder are padding, and query 0 may see key 0 only.
  Tensor mask(DType::boolean, {1, 5, 7});
  fill(mask.view().slice(2, 5, 7), 1);
  fill(mask.view().slice(1, 0, 1).slice(2, 1, 7), 1);

  // Multi_atten(emd_size=48, q_k_size=6, v_size=6, head=8): widths of one head, no output map.
  const nn::MultiHeadAttention layer({.query_width = 48, .heads = 8, .head_width = 6, .value_head_width = 6, .output = nn::OutputProjection::none});
  const nn::AttentionInput input{.query = decoder, .key = encoder};
  nn::MultiHeadAttention::Saved saved;
  Tensor out(DType::f32, layer.output_shape(input));
  layer.forward(input, out, {.mask = {.block = mask.view().unsqueeze(1)}}, &saved);

  Tensor weights(DType::f32, layer.maps_shape(input));
  attention_map(saved.maps(), weights, saved.sdpa);
  example::show("decoder", decoder);
  example::show("encoder", encoder);
  example::show("weights", weights);
  example::show("out", out);
  for (std::int64_t t = 0; t < 5; ++t) example::show_row(t == 0 ? "head 0, one row for a query" : "", weights.data<float>() + t * 7, 7);

  example::Claims claims;
  bool zero = true;
  for (std::int64_t n = 0; n < 8; ++n) {
    for (std::int64_t t = 0; t < 5; ++t) {
      for (std::int64_t s = 0; s < 7; ++s) {
        if (mask.data<bool>()[t * 7 + s]) zero &= weights.data<float>()[(n * 5 + t) * 7 + s] == 0;
      }
    }
  }
  claims.add("a blocked key has a weight of exactly 0", zero);
  claims.add("the weights of each query sum to 1", example::rows_sum_to_one(weights));
  claims.add("query 0 sees one key, which gets all of its weight", example::near(weights.data<float>()[0], 1));

  // A blocked key does not exist: not even NaN there reaches the output.
  Tensor spoiled = encoder;
  fill(spoiled.view().slice(1, 5, 7), NAN);
  Tensor again(DType::f32, out.shape());
  layer.forward({.query = decoder, .key = spoiled}, again, {.mask = {.block = mask.view().unsqueeze(1)}});
  bool same = true;
  for (std::int64_t i = 0; i < out.numel(); ++i) same &= out.data<float>()[i] == again.data<float>()[i];
  claims.add("NaN in the padding changes no bit of the output", same);
  return claims.status();
}
