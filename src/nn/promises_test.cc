// docs/promises.md: a row of a layer has the same bits however it is asked for: projections, rotary positions, attention, gate and output
// projection.
#include <numeric>

#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/rotary_embedding.h"
#include "support/kernel_case.h"
#include "support/thread_count.h"

namespace polyhead::nn {
namespace {

using test::for_each_instruction_set;
using test::Random;
using test::same_bits;

// A causal layer, x [B,T,E] and the rows of its output as one call gives them.
class RandomLayer {
 public:
  RandomLayer(Random& random, DType dtype, std::int64_t tokens)
      : config_{.query_width = random.pick<std::int64_t>({8, 24, 48, 130}),
                .heads = random.pick<std::int64_t>({2, 4}),
                .kv_heads = 2,
                .head_width = random.pick<std::int64_t>({4, 6, 16}),
                .value_head_width = random.pick<std::int64_t>({3, 16, 20}),
                .gate = random.coin() ? Gate::sigmoid : Gate::none,
                .softcap = random.coin() ? 0.0 : 4.0,
                .dtype = dtype},
        layer_(config_),
        sequences_(random.integer(1, 3)),
        tokens_(tokens) {
    layer_.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -0.4, 0.4); });
    x_ = random.tensor(dtype, {sequences_, tokens, config_.query_width}, -2, 2);
    if (random.coin())
      embedding_.emplace(RotaryEmbeddingConfig{.width = 4, .order = random.pick({RotaryOrder::halves, RotaryOrder::pairs})});
    if (random.integer(0, 2) == 0) window_ = random.integer(0, tokens);
    whole_ = forward(x_, 0);
  }

  void in_chunks_of_a_cache(Random& random, std::int64_t most) {
    EXPECT_TRUE(same_bits(through_a_cache(random, 1, most, config_.dtype), whole_)) << "chunks of at most " << most;
  }

  // The rounding of a narrower cache is that of each token: all tokens at once are rounded like few.
  void in_chunks_of_a_narrow_cache(Random& random, std::int64_t most) {
    if (config_.dtype == DType::f64) return;
    const DType storage = random.pick({DType::bf16, DType::f16, DType::i8});
    const Tensor at_once = through_a_cache(random, tokens_, tokens_, storage);
    EXPECT_TRUE(same_bits(through_a_cache(random, 1, most, storage), at_once)) << "a narrow cache, chunks of at most " << most;
  }

  // The first tokens of one sequence alone: causal, so the others are not missed.
  void alone(Random& random) {
    const std::int64_t b = random.integer(0, sequences_ - 1), tokens = random.integer(1, tokens_);
    const Tensor x = Tensor::copy_of(x_.view().slice(0, b, b + 1).slice(1, 0, tokens));
    EXPECT_TRUE(same_bits(forward(x, 0), whole_.view().slice(0, b, b + 1).slice(1, 0, tokens))) << "alone";
  }

  void again() { EXPECT_TRUE(same_bits(forward(x_, 0), whole_)) << num_threads() << " threads"; }

  void strided(Random& random) {
    const test::StridedTensor x = random.strided_copy(x_), out = random.empty_strided(config_.dtype, whole_.shape());
    forward(x, 0, out);
    EXPECT_TRUE(same_bits(out.view(), whole_)) << "strided";
  }

 private:
  // The layer's output for chunks of `least` to `most` tokens, the last ones shorter, whose keys and values the cache stores.
  Tensor through_a_cache(Random& random, std::int64_t least, std::int64_t most, DType storage) {
    KeyValueCache cache({.sequences = sequences_,
                         .kv_heads = config_.kv_heads,
                         .capacity = tokens_ + 3,
                         .head_width = config_.head_width,
                         .value_head_width = config_.value_head_width,
                         .dtype = storage});
    Tensor out(config_.dtype, whole_.shape());
    for (bool all = false; !all;) {
      std::vector<std::int64_t> counts, first;
      for (std::int64_t b = 0; b < sequences_; ++b) {
        first.push_back(cache.length(b));
        counts.push_back(std::min(random.integer(least, most), tokens_ - cache.length(b)));
      }
      const std::int64_t count = *std::max_element(counts.begin(), counts.end());
      Tensor some = random.tensor(config_.dtype, {sequences_, count, config_.query_width}), result(config_.dtype, some.shape());
      const auto each = [&](const auto& f) {
        for (std::int64_t b = 0; b < sequences_; ++b) f(b, first[static_cast<std::size_t>(b)], counts[static_cast<std::size_t>(b)]);
      };
      each([&](std::int64_t b, std::int64_t t, std::int64_t n) {
        copy(x_.view().select(0, b).slice(0, t, t + n), some.view().select(0, b).slice(0, 0, n));
      });
      AttentionOptions options{.mask = {.causal = Causal::top_left(), .window = {.left = window_}}, .cache = &cache};
      RotaryTables tables;
      if (embedding_) tables = embedding_->tables_from(cache.key_lengths(), count), options.rotary = tables.rotary();
      const Tensor new_tokens = Tensor::of<std::int64_t>({sequences_}, std::span(counts));
      options.new_tokens = new_tokens;
      layer_.forward({.query = some}, result, options);
      each([&](std::int64_t b, std::int64_t t, std::int64_t n) {
        copy(result.view().select(0, b).slice(0, 0, n), out.view().select(0, b).slice(0, t, t + n));
      });
      all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) + std::accumulate(first.begin(), first.end(), std::int64_t{0}) ==
            sequences_ * tokens_;
    }
    return out;
  }

  Tensor forward(ConstTensorView x, std::int64_t position) {
    Tensor out(config_.dtype, x.shape());
    forward(x, position, out);
    return out;
  }
  void forward(ConstTensorView x, std::int64_t position, TensorView out) {
    AttentionOptions options{.mask = {.causal = Causal::top_left(), .window = {.left = window_}}};
    RotaryTables tables;
    if (embedding_) tables = embedding_->tables(position, x.extent(1)), options.rotary = tables.rotary();
    layer_.forward({.query = x}, out, options);
  }

  MultiHeadAttentionConfig config_;
  MultiHeadAttention layer_;
  std::int64_t sequences_, tokens_;
  Tensor x_, whole_;
  std::optional<RotaryEmbedding> embedding_;
  std::optional<std::int64_t> window_;
};

TEST(LayerPromises, ARowHasTheSameBitsHoweverItIsAskedFor) {
  const test::ThreadCount restored;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    for_each_instruction_set([&] {
      Random random(seed);
      set_num_threads(1);
      const bool large = seed % 12 == 11;
      RandomLayer layer(random, test::kDTypes[seed % 5], large ? random.integer(520, 1100) : random.integer(1, 30));
      const auto draw_threads = [&] { set_num_threads(random.pick({1, 2, 3, 8})); };
      for (const int count : {2, 3, 8}) set_num_threads(count), layer.again();
      draw_threads(), layer.alone(random);
      draw_threads(), layer.strided(random);
      draw_threads(), layer.in_chunks_of_a_cache(random, large ? 200 : 7);
      draw_threads(), layer.in_chunks_of_a_narrow_cache(random, large ? 200 : 4);
      if (!large) draw_threads(), layer.in_chunks_of_a_cache(random, 1);
    });
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace polyhead::nn
