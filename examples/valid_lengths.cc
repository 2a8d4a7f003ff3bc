// Sequences of different lengths in one batch: queries attend to the valid keys only. The layer is MultiHeadAttention(key_size, query_size, value_size,
// num_hiddens, num_heads, dropout, bias) of Dive into Deep Learning (d2l).
#include "check.h"

using namespace polyhead;

int main() {
  // num_hiddens, num_heads = 100, 5; attention = MultiHeadAttention(num_hiddens, ..., num_heads, 0.5)
  const nn::MultiHeadAttention attention(
      {.query_width = 100, .heads = 5, .bias = false, .output_bias = false, .dropout = 0.5, .empty_rows = EmptyRows::uniform, .seed = 1});
  // batch_size, num_queries, num_kvpairs, valid_lens = 2, 4, 6, [3, 2]
  const Tensor x = example::waves({2, 4, 100}), y = example::waves({2, 6, 100}, 1.0);
  const Tensor valid_lens = Tensor::of<std::int64_t>({2}, {3, 2});

  const nn::AttentionInput input{.query = x, .key = y};
  nn::MultiHeadAttention::Saved saved;
  Tensor out(DType::f32, attention.output_shape(input));
  attention.forward(input, out, {.mask = {.key_lengths = valid_lens}}, &saved);  // evaluation: no dropout

  Tensor weights(DType::f32, attention.maps_shape(input));
  attention_map(saved.maps(), weights, saved.sdpa);
  example::show("X", x);
  example::show("Y", y);
  example::show("attention(X, Y, Y)", out);
  example::show("attention weights", weights);
  example::show_row("sequence 0, valid length 3", weights.data<float>(), 6);
  example::show_row("sequence 1, valid length 2", weights.data<float>() + 5 * 4 * 6, 6);

  example::Claims claims;
  claims.add("the output has the shape (batch_size, num_queries, num_hiddens)", out.shape() == Shape({2, 4, 100}));
  bool stops = true;
  for (std::int64_t i = 0; i < weights.numel(); ++i) {
    const std::int64_t sequence = i / (5 * 4 * 6), key = i % 6;
    stops &= (weights.data<float>()[i] == 0) == (key >= valid_lens.data<std::int64_t>()[sequence]);
  }
  claims.add("attention weights are 0 exactly from the valid length on", stops);
  claims.add("the attention weights of each query sum to 1", example::rows_sum_to_one(weights));

  // For a length of 0, d2l sets every score to -1e6, so that all keys get the same attention weight: EmptyRows::uniform.
  const Tensor zero_lens = Tensor::of<std::int64_t>({2}, {0, 6});
  attention.forward(input, out, {.mask = {.key_lengths = zero_lens}}, &saved);
  attention_map(saved.maps(), weights, saved.sdpa);
  bool uniform = true;
  for (std::int64_t i = 0; i < 5 * 4 * 6; ++i) uniform &= example::near(weights.data<float>()[i], 1.0 / 6);
  claims.add("a valid length of 0 gives each of 6 keys 1/6", uniform);
  return claims.status();
}
