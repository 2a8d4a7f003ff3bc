// Global attention: one query for each column of a table, the mean over the column's sequences. The cost grows with the number of sequences, not with its
// square. As in AlphaFold 2 (Jumper et al. 2021, supplementary algorithm 19): MultiHeadAttention(c_in, c, N_head, attn_dim, gated=True, is_global=True).
#include "check.h"

using namespace polyhead;

int main() {
  constexpr std::int64_t kSequences = 7, kResidues = 5, kWidth = 8, kHeads = 4;
  const Tensor table = example::waves({kSequences, kResidues, kWidth});  // (sequences, residues, c_in)
  Tensor present(DType::boolean, {kResidues, kSequences});               // [*,S]: which sequences have a residue at each position
  fill(present, 1);
  fill(present.view().slice(1, 5, 7), 0);

  nn::MultiHeadAttentionConfig config{.query_width = kWidth, .heads = kHeads, .head_width = 6, .bias = false, .gate = nn::Gate::sigmoid,
                                      .global_query = nn::GlobalQuery::masked_mean, .axis = 0, .seed = 1};
  const nn::MultiHeadAttention layer(config);
  const nn::AttentionOptions options{.mask = {.attend_keys = present}};
  nn::MultiHeadAttention::Saved saved;
  Tensor out(DType::f32, layer.output_shape({.query = table}));
  layer.forward({.query = table}, out, options, &saved);
  Tensor weights(DType::f32, layer.maps_shape({.query = table}));
  attention_map(saved.maps(), weights, saved.sdpa);
  example::show("table", table);
  example::show("mean query", saved.query_mean);
  example::show("key and value for all heads", saved.k);
  example::show("attention weights", weights);
  example::show("out", out);
  for (std::int64_t n = 0; n < kHeads; ++n) example::show_row(n == 0 ? "residue 0, a row per head" : "", weights.data<float>() + n * kSequences, kSequences);

  example::Claims claims;
  claims.add("there is one query for each residue and head", weights.shape() == Shape({kResidues, kHeads, 1, kSequences}));
  claims.add("all heads share one key and one value", layer.config.kv_heads == 1 && saved.k.extent(-1) == 6);
  claims.add("with the gate each sequence has its own output", out.shape() == table.shape());
  claims.add("the attention weights of each query sum to 1", example::rows_sum_to_one(weights));
  double mean = 0;
  for (std::int64_t s = 0; s < 5; ++s) mean += static_cast<double>(table.data<float>()[s * kResidues * kWidth]) / 5;
  claims.add("the query is the mean over the sequences that are present", example::near(saved.query_mean.data<float>()[0], mean));
  bool zero = true;
  for (std::int64_t row = 0; row < kResidues * kHeads; ++row) zero &= weights.data<float>()[row * kSequences + 5] == 0 && weights.data<float>()[row * kSequences + 6] == 0;
  claims.add("the attention weights of absent sequences are exactly 0", zero);

  // Without the gate there is one output for each column.
  config.gate = nn::Gate::none;
  const Shape column = nn::MultiHeadAttention(config).output_shape({.query = table});
  claims.add("without the gate a column has one output", column == Shape({1, kResidues, kWidth}));
  return claims.status();
}
