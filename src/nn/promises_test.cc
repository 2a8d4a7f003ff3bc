// Tests a promise of docs/promises.md: a row of a layer's output has the same bits, whatever other rows are computed in the same call. The layers have
// projections, rotary positions, attention, a gate and an output projection.
#include <algorithm>

#include "nn/cache_test_feed.h"
#include "support/kernel_case.h"
#include "support/thread_count.h"

namespace polyhead::nn {
namespace {

using test::for_each_instruction_set;
using test::Random;
using test::same_bits;

// A causal layer with random parameters, an input x [B,T,E], and the output that one call computes for the whole input.
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
                .dtype = dtype,
                .seed = 1},
        layer_(config_),
        sequences_(random.integer(1, 3)),
        tokens_(tokens) {
    layer_.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -0.4, 0.4); });
    x_ = random.tensor(dtype, {sequences_, tokens, config_.query_width}, -2, 2);
    if (random.coin())
      embedding_.emplace(RotaryEmbeddingConfig{.width = 4, .order = random.pick({RotaryOrder::halves, RotaryOrder::pairs})});
    if (random.integer(0, 2) == 0) mask_.window.left = random.integer(0, tokens);
    if (random.integer(0, 2) == 0) slopes_ = Tensor::copy_of(alibi_slopes(config_.heads), accumulation_dtype(dtype));
    whole_ = forward(x_, 0);
  }

  void in_chunks_of_a_cache(Random& random, std::int64_t most) {
    EXPECT_TRUE(same_bits(through_a_cache(random, 1, most, config_.dtype), whole_)) << "chunks of at most " << most;
  }

  // A cache with a narrower dtype than the layer rounds each token separately, so one call with all tokens must give the same bits as many calls.
  void in_chunks_of_a_narrow_cache(Random& random, std::int64_t most) {
    if (config_.dtype == DType::f64) return;
    const DType storage = random.pick({DType::bf16, DType::f16, DType::i8});
    const Tensor at_once = through_a_cache(random, tokens_, tokens_, storage);
    EXPECT_TRUE(same_bits(through_a_cache(random, 1, most, storage), at_once)) << "a narrow cache, chunks of at most " << most;
  }

  // Computes the first tokens of one sequence alone. Later tokens have no effect on them, because the layer is causal.
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
  // Returns the layer's output if it is computed `least` to `most` tokens at a time, with a cache for keys and values. The last call may have fewer tokens.
  Tensor through_a_cache(Random& random, std::int64_t least, std::int64_t most, DType storage) {
    KeyValueCache cache({.sequences = sequences_,
                         .kv_heads = config_.kv_heads,
                         .capacity = tokens_ + 3,
                         .head_width = config_.head_width,
                         .value_head_width = config_.value_head_width,
                         .dtype = storage});
    Tensor out(config_.dtype, whole_.shape());
    const CachedLayer fed{layer_, mask_, embedding_, slopes_, cache};
    while (std::ranges::min(lengths(cache)) < tokens_) {
      std::vector<std::int64_t> counts;
      for (const std::int64_t length : lengths(cache)) counts.push_back(std::min(random.integer(least, most), tokens_ - length));
      fed.feed(x_, counts, out);
    }
    return out;
  }

  std::vector<std::int64_t> lengths(const KeyValueCache& cache) const {
    std::vector<std::int64_t> list;
    for (std::int64_t b = 0; b < sequences_; ++b) list.push_back(cache.length(b));
    return list;
  }

  Tensor forward(ConstTensorView x, std::int64_t position) {
    Tensor out(config_.dtype, x.shape());
    forward(x, position, out);
    return out;
  }
  void forward(ConstTensorView x, std::int64_t position, TensorView out) {
    AttentionOptions options{.mask = mask_, .relative_bias = {.slopes = slopes_}};
    RotaryTables tables;
    if (embedding_) tables = embedding_->tables(position, x.extent(1)), options.rotary = tables.rotary();
    layer_.forward({.query = x}, out, options);
  }

  MultiHeadAttentionConfig config_;
  MultiHeadAttention layer_;
  std::int64_t sequences_, tokens_;
  Tensor x_, whole_, slopes_;
  std::optional<RotaryEmbedding> embedding_;
  Mask mask_{.causal = Causal::top_left()};
};

TEST(LayerPromises, ARowHasTheSameBitsHoweverItIsAskedFor) {
  const test::ThreadCount restored;
  for (const std::uint64_t seed : test::seeds(0, 120)) {
    SCOPED_TRACE(seed);
    for_each_instruction_set(seed, [&] {
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
