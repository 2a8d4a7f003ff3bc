// Sink logits of a layer.
#include <gmock/gmock.h>

#include "nn/attention_test_trial.h"

namespace polyhead::nn {
namespace {

using test::error_message;

std::vector<Setting> settings() {
  const auto with = [](MultiHeadAttentionConfig c) { c.dtype = DType::f64; return c; };
  return {
      {"sink of each head", with({.query_width = 4, .heads = 2, .gate = Gate::sigmoid}), {2, 3, 4}, {}, {}, {}, {}, Mode::evaluation, {2}},
      {"sink, causal, dropout, learned key", with({.query_width = 4, .heads = 2, .add_bias_kv = true, .dropout = 0.4}), {2, 3, 4}, {}, {}, {},
       [](Random&) { return Mask{.causal = Causal::top_left()}; }, Mode::training, {2, 2, 1}},
      {"sink of each query, bias, empty rows", with({.query_width = 4, .heads = 4, .kv_heads = 2}), {2, 3, 4}, {}, {}, {3, 3},
       [](Random&) { return Mask{.key_lengths = keep(Tensor::of<std::int64_t>({2}, {0, 2}))}; }, Mode::evaluation, {2, 4, 3}},
      {"sink, global", with({.query_width = 4, .heads = 2, .global_query = GlobalQuery::mean}), {2, 3, 4}, {}, {}, {}, {}, Mode::evaluation, {2}},
  };
}

TEST(MultiHeadAttentionSinks, GradientsAreCentralDifferences) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    Trial run(setting);
    expect_central_differences(run);
  }
}

TEST(MultiHeadAttentionSinks, MapsAreOfTheShapeThatIsPromisedAndRowsSumToOneLessTheShareOfTheSink) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    if (setting.mask) continue;  // rows may be empty
    Trial run(setting);
    expect_maps_of_whole_rows(run);
  }
}

TEST(MultiHeadAttentionSinks, SinksAreCheckedAndTheirGradientsHaveTheirShapeAndDType) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dtype = DType::bf16});
  Tensor x(DType::bf16, {2, 3, 4}), out(DType::bf16, x.shape()), sink(DType::f32, {2}), wrong(DType::f32, {3}), narrow(DType::bf16, {2});
  EXPECT_THAT(error_message([&] { layer.forward({.query = x}, out, {.sink = wrong}); }), testing::HasSubstr("sink is [3]"));
  EXPECT_THAT(error_message([&] { layer.forward({.query = x}, out, {.sink = out.view().reshape({24}).slice(0, 0, 2)}); }),
              testing::HasSubstr("out overlaps sink"));
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {.sink = sink}, &saved);
  EXPECT_THAT(error_message([&] { layer.backward(saved, out, {.sink = narrow}); }), testing::HasSubstr("the gradient of sink is bfloat16; it must be float32"));
  const MultiHeadAttention uniform({.query_width = 4, .heads = 2, .empty_rows = EmptyRows::uniform, .dtype = DType::bf16});
  EXPECT_THAT(error_message([&] { uniform.forward({.query = x}, out, {.sink = sink}); }), testing::HasSubstr("sink with empty_rows uniform"));
}

}  // namespace
}  // namespace polyhead::nn
