// Attention along one axis of a table of sequences, with a bias for each pair of positions and a gate, as in AlphaFold 2 (Jumper et al. 2021,
// supplementary algorithms 7 and 8): MultiHeadAttention(c_in, c, N_head, attn_dim, gated=True).
#include "check.h"

using namespace polyhead;

int main() {
  constexpr std::int64_t kSequences = 3, kResidues = 6, kWidth = 8, kHeads = 4, kChannels = 2;
  const Tensor table = example::waves({kSequences, kResidues, kWidth});     // (sequences, residues, c_in)
  const Tensor pair_bias = example::waves({1, kHeads, kResidues, kResidues});  // the same for all sequences

  // Row attention runs along the residues: attn_dim=-2.
  nn::MultiHeadAttentionConfig config{.query_width = kWidth, .heads = kHeads, .head_width = kChannels, .bias = false, .gate = nn::Gate::sigmoid, .axis = -2, .seed = 1};
  const nn::MultiHeadAttention rows(config);
  nn::MultiHeadAttention::Saved saved;
  Tensor out(DType::f32, rows.output_shape({.query = table}));
  rows.forward({.query = table}, out, {.bias = pair_bias}, &saved);
  Tensor weights(DType::f32, rows.maps_shape({.query = table}));
  attention_map(saved.maps(), weights, saved.sdpa);
  example::show("table", table);
  example::show("row attention", out);
  example::show("its attention weights", weights);
  example::show_row("head 0, residue 0", weights.data<float>(), kResidues);

  // Column attention runs along the sequences of the same table: attn_dim=0. The table is not transposed.
  config.axis = 0;
  config.seed = 2;
  const nn::MultiHeadAttention columns(config);
  Tensor column_out(DType::f32, columns.output_shape({.query = table}));
  columns.forward({.query = table}, column_out);
  example::show("column attention", column_out);
  example::show("its attention weights", Tensor(DType::f32, columns.maps_shape({.query = table})));

  example::Claims claims;
  claims.add("the output has the shape of the table", out.shape() == table.shape() && column_out.shape() == table.shape());
  claims.add("rows attend between residues, columns between sequences",
             weights.shape() == Shape({kSequences, kHeads, kResidues, kResidues}) &&
                 columns.maps_shape({.query = table}) == Shape({kResidues, kHeads, kSequences, kSequences}));
  claims.add("the attention weights of each query sum to 1", example::rows_sum_to_one(weights));

  // A bias of -inf masks a pair in every sequence.
  Tensor masking = pair_bias;
  fill(masking.view().slice(2, 0, 1).slice(3, 5, 6), -INFINITY);
  rows.forward({.query = table}, out, {.bias = masking}, &saved);
  attention_map(saved.maps(), weights, saved.sdpa);
  bool none = true;
  for (std::int64_t head = 0; head < kSequences * kHeads; ++head) none &= weights.data<float>()[head * kResidues * kResidues + 5] == 0;
  claims.add("a bias of -inf masks a pair in every sequence", none);

  // With a closed gate, sigmoid(-100), only the bias of the output projection is left.
  nn::MultiHeadAttention closed = rows;
  fill(closed.gate.bias, -100);
  fill(closed.output.bias, 0.25);
  closed.forward({.query = table}, out, {.bias = pair_bias});
  bool shut = true;
  for (std::int64_t i = 0; i < out.numel(); ++i) shut &= example::near(out.data<float>()[i], 0.25);
  claims.add("with a closed gate the output is the bias of the output projection", shut);
  return claims.status();
}
