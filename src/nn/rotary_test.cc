#include "polyhead/nn/rotary.h"

#include <gmock/gmock.h>

#include "nn/attention_test_trial.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::near;
using test::same_bits;

TEST(Rotary, GradientsAreCentralDifferences) {
  for (const RotaryOrder order : {RotaryOrder::halves, RotaryOrder::pairs}) {
    for (const std::int64_t features : {4, 6}) {  // 4 of a head's 6 features are rotated, or all 6
      for (const bool added : {false, true}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(order)) + " " + std::to_string(features) + (added ? " with added keys" : ""));
        Trial run({"rotary",
                   {.query_width = 5,
                    .heads = 2,
                    .kv_heads = 1,
                    .head_width = 6,
                    .value_head_width = 2,
                    .add_bias_kv = added,
                    .add_zero_attn = added,
                    .dtype = DType::f64},
                   {2, 3, 5},
                   {2, 4, 5}});
        const auto [cos, sin] = rotary_tables({4, 5, 6}, features);
        const auto [key_cos, key_sin] = rotary_tables({0, 1, 2, 9}, features);
        run.options.rotary = {.cos = cos, .sin = sin, .key_cos = key_cos, .key_sin = key_sin, .order = order, .width = features};
        expect_central_differences(run);
      }
    }
  }
}

// A layer with one head must rotate pair i of the features at position t by t theta_i (RoFormer, eq. 34). Shifting all positions then does not change the
// scores.
TEST(Rotary, RotatesPairsOfBothOrdersAndScoresDependOnDistances) {
  const auto [cos, sin] = rotary_tables({2}, 4);
  const auto rotated = [&, &c = cos, &s = sin](RotaryOrder order) {
    Tensor x = Tensor::of<double>({1, 1, 5}, {1, 2, 3, 4, 5});
    rotate(c, s, order, Rotation::forward, x);
    return x;
  };
  const double c0 = std::cos(2), s0 = std::sin(2), c1 = std::cos(0.002), s1 = std::sin(0.002);
  EXPECT_TRUE(near(rotated(RotaryOrder::halves),
                   Tensor::of<double>({1, 1, 5}, {c0 - 3 * s0, 2 * c1 - 4 * s1, s0 + 3 * c0, 2 * s1 + 4 * c1, 5}), 1e-15));
  EXPECT_TRUE(near(rotated(RotaryOrder::pairs),
                   Tensor::of<double>({1, 1, 5}, {c0 - 2 * s0, s0 + 2 * c0, 3 * c1 - 4 * s1, 3 * s1 + 4 * c1, 5}), 1e-15));
  Tensor back = rotated(RotaryOrder::pairs);
  rotate(cos, sin, RotaryOrder::pairs, Rotation::inverse, back);
  EXPECT_TRUE(near(back, Tensor::of<double>({1, 1, 5}, {1, 2, 3, 4, 5}), 1e-15));

  Trial run({"shift", {.query_width = 8, .heads = 2, .dtype = DType::f64}, {2, 3, 8}});
  run.loss();
  const Tensor without = run.out;
  const auto [near_cos, near_sin] = rotary_tables({0, 1, 2}, 4);
  const auto [far_cos, far_sin] = rotary_tables({70, 71, 72}, 4);
  run.options.rotary = {.cos = near_cos, .sin = near_sin};
  run.loss();
  const Tensor at_start = run.out;
  run.options.rotary = {.cos = far_cos, .sin = far_sin};
  run.loss();
  EXPECT_TRUE(near(run.out, at_start, 1e-13));
  EXPECT_FALSE(near(run.out, without, 1e-3));
}

TEST(Rotary, MessagesOfWrongTablesGiveTheirShapes) {
  const MultiHeadAttention layer({.query_width = 8, .heads = 2, .seed = 1}), global({.query_width = 8, .heads = 2, .global_query = GlobalQuery::mean, .seed = 1});
  const Tensor x(DType::f32, {2, 3, 8}), key(DType::f32, {2, 5, 8}), table(DType::f32, {3, 2}), wide(DType::f32, {3, 3}),
      long_table(DType::f32, {4, 2}), one_position(DType::f32, {1, 2}), one_angle(DType::f32, {3, 1}), projected(DType::f32, {2, 2, 3, 4});
  Tensor out(DType::f32, x.shape());
  const auto message = [&](const AttentionInput& input, const Rotary& rotary) {
    return error_message([&] { layer.forward(input, out, {.rotary = rotary}); });
  };
  const std::string start = "MultiHeadAttention.forward: rotary";
  EXPECT_EQ(
      message({.query = x}, {.cos = wide, .sin = wide}),
      start +
          ".cos is float32 [3,3]; it must be floating, broadcast to [2,3,2] and end in [3,2]: positions and half of the rotated width 4");
  EXPECT_EQ(
      message({.query = x}, {.cos = long_table, .sin = long_table}),
      start +
          ".cos is float32 [4,2]; it must be floating, broadcast to [2,3,2] and end in [3,2]: positions and half of the rotated width 4");
  EXPECT_THAT(message({.query = x}, {.cos = one_position, .sin = one_position}), testing::HasSubstr("end in [3,2]"));
  EXPECT_THAT(message({.query = x}, {.cos = table, .sin = table, .key_cos = one_angle, .key_sin = one_angle}),
              testing::HasSubstr("rotary.key_cos is float32 [3,1]"));
  EXPECT_THAT(message({.query = x}, {.cos = table, .sin = table, .width = 2}), testing::HasSubstr("half of the rotated width 2"));
  EXPECT_THAT(message({.query = x}, {.cos = table, .sin = table, .width = 6}), testing::HasSubstr("at most head_width 4"));
  EXPECT_THAT(message({.query = x, .projected_key = projected, .projected_value = projected},
                      {.cos = table, .sin = table, .key_cos = table, .key_sin = table}),
              testing::HasSubstr("which is not rotated"));
  EXPECT_EQ(message({.query = x}, {.cos = table}), "MultiHeadAttention.forward: rotary.sin is missing");
  EXPECT_EQ(message({.query = x, .key = key}, {.cos = table, .sin = table}),
            start + " has no key_cos and key_sin, and there are 3 queries but 5 keys");
  EXPECT_EQ(message({.query = x}, {.cos = table, .sin = table}), "");
  Tensor global_out(DType::f32, {2, 1, 8});
  EXPECT_EQ(error_message([&] { global.forward({.query = x}, global_out, {.rotary = {.cos = table, .sin = table}}); }),
            start + " positions cannot be combined with a global query, which has no position");
}

// Tests tables that are read in place, tables that are converted first, tables with strides, and inputs whose features are not contiguous.
TEST(Rotary, TablesOfEveryTypeAndStrideAreRead) {
  for (const RotaryOrder order : {RotaryOrder::halves, RotaryOrder::pairs}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      SCOPED_TRACE(cat(info(dtype).name, " order ", static_cast<int>(order)));
      Random random(3);
      const auto [cos, sin] = rotary_tables({0, 1, 2, 3, 4}, 14);
      const Tensor x = random.tensor(dtype, {3, 2, 5, 15}), narrow_cos = Tensor::copy_of(cos, DType::f16),
                   narrow_sin = Tensor::copy_of(sin, DType::f16);
      const Tensor wide_cos = Tensor::copy_of(narrow_cos, accumulation_dtype(dtype)),
                   wide_sin = Tensor::copy_of(narrow_sin, accumulation_dtype(dtype));
      Tensor expected = x, converted = x, columns_cos(wide_cos.dtype(), {7, 5}), columns_sin(wide_sin.dtype(), {7, 5}),
             gaps(dtype, {3, 2, 5, 30});
      rotate(wide_cos, wide_sin, order, Rotation::forward, expected);
      rotate(narrow_cos, narrow_sin, order, Rotation::forward, converted);
      EXPECT_TRUE(same_bits(converted, expected));
      copy(wide_cos, columns_cos.view().transpose(0, 1)), copy(wide_sin, columns_sin.view().transpose(0, 1));
      const TensorView strided = gaps.view().slice(-1, 0, 30, 2);
      copy(x, strided);
      rotate(columns_cos.view().transpose(0, 1), columns_sin.view().transpose(0, 1), order, Rotation::forward, strided);
      EXPECT_TRUE(same_bits(strided, expected));
      // The features (a, b) of each pair must become (a cos - b sin, a sin + b cos).
      const std::vector<double> before = test::to_doubles(x), after = test::to_doubles(expected), c = test::to_doubles(narrow_cos),
                                s = test::to_doubles(narrow_sin);
      for (std::size_t row = 0; row < 30; ++row) {
        for (std::size_t i = 0; i < 7; ++i) {
          const std::size_t low = row * 15 + (order == RotaryOrder::halves ? i : 2 * i),
                            high = low + (order == RotaryOrder::halves ? 7 : 1), angle = row % 5 * 7 + i;
          EXPECT_NEAR(after[low], before[low] * c[angle] - before[high] * s[angle], 0.02);
          EXPECT_NEAR(after[high], before[low] * s[angle] + before[high] * c[angle], 0.02);
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::nn
