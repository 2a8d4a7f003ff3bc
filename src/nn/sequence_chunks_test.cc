// Compares evaluation in chunks with evaluation in one piece, which is how a pass with `saved` is computed.
#include <gtest/gtest.h>

#include "core/index.h"
#include "nn/sequence_chunks.h"
#include "polyhead/error.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::Random;
using test::same_bits;

struct Call {
  const char* name;
  Shape query;  // shape of the query input, whose width is 64
  int axis = -2;
  std::int64_t keys = 0;  // 0: self-attention

  friend void PrintTo(const Call& call, std::ostream* out) { *out << call.name; }
};

// In each of these calls the activations are larger than 768 KiB, so the call is cut into chunks.
const Call kCalls[] = {{"sequences", {40, 40, 64}},
                       {"behind an extent of one", {1, 40, 33, 64}},
                       {"two leading dimensions", {20, 3, 40, 64}},
                       {"along the first axis", {50, 37, 64}, 0},
                       {"between leading dimensions", {12, 30, 4, 64}, 1},
                       {"cross-attention", {40, 40, 64}, -2, 27}};

Shape sequences_of(const Call& call) {
  Shape lead = call.query.first(call.query.size() - 1);
  lead.erase(call.axis < 0 ? call.axis + call.query.size() : call.axis);
  return lead;
}

class SequencesOf : public testing::TestWithParam<Call> {
 protected:
  // Compares evaluation in chunks with evaluation in one piece, for these options. Returns the number of chunks.
  std::int64_t compare(const MultiHeadAttentionConfig& config, const AttentionOptions& options, std::uint64_t seed) {
    Random random(seed);
    const Call& call = GetParam();
    const MultiHeadAttention layer(config);
    const Tensor query = random.tensor(config.dtype, call.query);
    Shape key_shape = call.query;
    key_shape[config.axis < 0 ? config.axis + key_shape.size() : config.axis] = keys();
    const Tensor key = call.keys > 0 ? random.tensor(config.dtype, key_shape) : Tensor();
    const AttentionInput input{.query = query, .key = key};
    Tensor whole(config.dtype, layer.output_shape(input)), parts(config.dtype, layer.output_shape(input));
    MultiHeadAttention::Saved saved;
    layer.forward(input, whole, options, &saved);
    LimitedThreads one(1), two(2);
    for (Executor* executor : {&one, &two}) {
      AttentionOptions own = options;
      own.executor = executor;
      fill(parts, 7);
      layer.forward(input, parts, own);
      EXPECT_TRUE(same_bits(parts, whole)) << call.name << ", seed " << seed << ", threads " << executor->num_threads();
    }
    AttentionOptions own = options;
    own.executor = &one;
    return SequenceChunks(layer.config, attention_shapes("test", layer.config, input), own).count();
  }
  MultiHeadAttentionConfig config(Gate gate) const { return {.query_width = 64, .heads = 4, .gate = gate, .axis = GetParam().axis, .seed = 1}; }
  std::int64_t queries() const { return GetParam().query[GetParam().axis < 0 ? GetParam().axis + GetParam().query.size() : GetParam().axis]; }
  std::int64_t keys() const { return GetParam().keys > 0 ? GetParam().keys : queries(); }
  Shape lead() const { return sequences_of(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Calls, SequencesOf, testing::ValuesIn(kCalls));

TEST_P(SequencesOf, HaveTheBitsOfOnePass) {
  for (const Gate gate : {Gate::none, Gate::sigmoid}) EXPECT_GT(compare(config(gate), {}, 1), 1);
}

TEST_P(SequencesOf, TakeTheirOwnMaskBiasAndSink) {
  Random random(2);
  const Tensor pairs = random.tensor(DType::boolean, appended(lead(), {4, queries(), keys()})), shared = random.tensor(DType::boolean, {queries(), keys()});
  const Tensor of_keys = random.tensor(DType::boolean, appended(lead(), {keys()})), last = random.tensor(DType::boolean, {lead()[-1], keys()});
  Tensor lengths(DType::i64, lead());
  for (std::int64_t i = 0; i < numel(lead()); ++i) lengths.data<std::int64_t>()[i] = i % (keys() + 1);
  Shape ones = lead();
  for (int i = 0; i < ones.size(); ++i) ones[i] = 1;
  Shape first = ones;
  first[0] = lead()[0];
  const Tensor bias = random.tensor(DType::f32, appended(lead(), {4, queries(), keys()})), one_bias = random.tensor(DType::f32, appended(ones, {4, queries(), keys()}));
  const Tensor first_bias = random.tensor(DType::f32, appended(first, {4, queries(), keys()}));
  const Tensor per_head = random.tensor(DType::f32, {4}), per_sequence = random.tensor(DType::f32, appended(lead(), {4, queries()})),
               of_last = random.tensor(DType::f32, {lead()[-1], 1, 1});
  const AttentionOptions all[] = {{.mask = {.attend = pairs}, .bias = bias},
                                  {.mask = {.block = shared}, .bias = one_bias},
                                  {.mask = {.attend_keys = of_keys}, .bias = first_bias},
                                  {.mask = {.block_keys = last}},
                                  {.sink = per_head},
                                  {.sink = per_sequence},
                                  {.sink = of_last},
                                  {.mask = {.diagonal_offsets = lengths}, .relative_bias = {.slopes = per_head}},
                                  {.mask = {.causal = Causal::top_left(), .key_lengths = lengths}},
                                  {.mask = {.causal = Causal::top_left(), .diagonal_offsets = lengths}}};
  for (const AttentionOptions& options : all) EXPECT_GT(compare(config(Gate::sigmoid), options, 3), 1);
}

TEST_P(SequencesOf, ErrorsComeBeforeAnythingIsWritten) {
  Random random(4);
  const MultiHeadAttention layer(config(Gate::none));
  const Tensor query = random.tensor(DType::f32, GetParam().query);
  Tensor lengths(DType::i64, lead());  // the last length is invalid
  lengths.data<std::int64_t>()[numel(lead()) - 1] = queries() + 1;
  Tensor out(DType::f32, layer.output_shape({.query = query}));
  fill(out, 7);
  const Tensor before = Tensor::copy_of(out);
  LimitedThreads one(1);
  EXPECT_THROW(layer.forward({.query = query}, out, {.mask = {.key_lengths = lengths}, .executor = &one}), Error);
  EXPECT_TRUE(same_bits(out, before));
  const Tensor sink(DType::f32, {5});
  EXPECT_THROW(layer.forward({.query = query}, out, {.sink = sink, .executor = &one}), Error);
  EXPECT_TRUE(same_bits(out, before));
}

TEST(Sequences, DropoutFewQueriesAndLargeWeightsAreNotCut) {
  const MultiHeadAttentionConfig config = completed({.query_width = 64, .heads = 4, .dropout = 0.5});
  const Tensor many(DType::f32, {60, 40, 64}), few(DType::f32, {600, 4, 64});
  const auto count = [&](const Tensor& query, Mode mode) {
    LimitedThreads one(1);
    return SequenceChunks(config, attention_shapes("test", config, {.query = query}), {.mode = mode, .executor = &one}).count();
  };
  EXPECT_GT(count(many, Mode::evaluation), 1);
  EXPECT_EQ(count(many, Mode::training), 1);
  EXPECT_EQ(count(few, Mode::evaluation), 1);
  LimitedThreads one(1);
  const MultiHeadAttentionConfig plain = completed({.query_width = 64, .heads = 4}), wide = completed({.query_width = 2048, .heads = 16});
  const Tensor keep(DType::boolean, {60, 4, 40, 40}), short_and_wide(DType::f32, {2, 32, 2048}), none(DType::f32, {0, 40, 64});
  const auto parts = [&](const MultiHeadAttentionConfig& c, const Tensor& query, const AttentionOptions& options) {
    return SequenceChunks(c, attention_shapes("test", c, {.query = query}), options).count();
  };
  EXPECT_EQ(parts(plain, many, {.mode = Mode::training, .dropout_keep = keep, .executor = &one}), 1);
  EXPECT_EQ(parts(wide, short_and_wide, {.executor = &one}), 1);  // the call is not cut: 64 MiB of parameters would have to be packed for 2 MiB of activations
  EXPECT_EQ(parts(plain, none, {.executor = &one}), 1);
}

}  // namespace
}  // namespace polyhead::nn
