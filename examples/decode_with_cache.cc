// Computes texts a few tokens at a time: prompts of unequal lengths, then one token after the other, then tokens that are removed again
// (speculative decoding). A cache keeps the keys and values of earlier tokens.
#include "check.h"
#include "polyhead/nn/key_value_cache.h"
#include "polyhead/nn/rotary_embedding.h"

using namespace polyhead;

int main() {
  constexpr std::int64_t kSequences = 2, kWidth = 32, kLength = 12;
  const nn::MultiHeadAttention attention({.query_width = kWidth, .heads = 4, .kv_heads = 2, .head_width = 8, .seed = 1});
  const nn::RotaryEmbedding rotary({.width = 8, .base = 500'000});
  const Tensor text = example::waves({kSequences, kLength, kWidth});  // embedded tokens

  // Computes the whole texts in one pass, for comparison.
  Tensor whole(DType::f32, text.shape());
  const nn::RotaryTables all = rotary.tables(0, kLength);
  attention.forward({.query = text}, whole, {.mask = {.causal = Causal::top_left()}, .rotary = all.rotary()});

  nn::KeyValueCache cache({.sequences = kSequences, .kv_heads = 2, .capacity = 64, .head_width = 8});
  // Appends T tokens of each sequence, or counts[b] of them, and returns the rows of the output [B,T,E].
  const auto step = [&](const Tensor& tokens, ConstTensorView counts = {}) {
    Tensor out(DType::f32, tokens.shape());
    const nn::RotaryTables tables = rotary.tables_from(cache.key_lengths(), tokens.extent(1));
    attention.forward({.query = tokens}, out,
                      {.mask = {.causal = Causal::top_left()}, .rotary = tables.rotary(), .cache = &cache, .new_tokens = counts});
    return out;
  };
  const auto rows_agree = [&](const Tensor& out, std::int64_t b, std::int64_t first, std::int64_t count) {
    bool agree = true;
    for (std::int64_t i = 0; i < count * kWidth; ++i) {
      agree &= example::near(out.data<float>()[b * out.extent(1) * kWidth + i], whole.data<float>()[(b * kLength + first) * kWidth + i]);
    }
    return agree;
  };
  example::Claims claims;

  const Tensor prompt = Tensor::copy_of(text.view().slice(1, 0, 7)), lengths = Tensor::of<std::int64_t>({kSequences}, {7, 4});
  const Tensor first = step(prompt, lengths);  // rows 4 to 6 of sequence 1 are padding
  claims.add("prompts of 7 and 4 tokens in one call have the outputs of the whole texts",
             rows_agree(first, 0, 0, 7) && rows_agree(first, 1, 0, 4));

  // The next token has a different position in each sequence.
  bool agree = true;
  for (int i = 0; i < 3; ++i) {
    Tensor next(DType::f32, {kSequences, 1, kWidth});
    for (std::int64_t b = 0; b < kSequences; ++b)
      copy(text.view().select(0, b).slice(0, cache.length(b), cache.length(b) + 1), next.view().select(0, b));
    const std::int64_t before[] = {cache.length(0), cache.length(1)};
    const Tensor out = step(next);
    for (std::int64_t b = 0; b < kSequences; ++b) agree = agree && rows_agree(out, b, before[b], 1);
  }
  claims.add("token by token has the outputs of the whole texts", agree);

  // Speculative decoding: two guessed tokens are refused, so cut their keys and values off the cache and go on.
  const Tensor guess = example::waves({kSequences, 2, kWidth}, 5);
  step(guess);
  const std::int64_t kept[] = {10, 7};
  cache.truncate(kept);
  Tensor next(DType::f32, {kSequences, 2, kWidth});
  for (std::int64_t b = 0; b < kSequences; ++b) copy(text.view().select(0, b).slice(0, kept[b], kept[b] + 2), next.view().select(0, b));
  const Tensor after = step(next);
  claims.add("refused tokens leave no trace", rows_agree(after, 0, 10, 2) && rows_agree(after, 1, 7, 2));

  // Beam search: both sequences are continued from the tokens of sequence 1.
  const std::int64_t best[] = {1, 1};
  cache.reorder(best);
  claims.add("both sequences now have the 9 tokens of sequence 1", cache.length(0) == 9 && cache.length(1) == 9);
  example::show("keys in the cache", Tensor::copy_of(cache.keys()));
  return claims.status();
}
