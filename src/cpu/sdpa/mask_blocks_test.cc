// Tests the block kinds of boolean masks, and that skipped and full blocks do not change results.
#include "cpu/sdpa/mask_blocks.h"

#include "sdpa/normal_form.h"
#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

// Booleans that are all true or all false over blocks of `height` x `width` pairs, some of them with one pair of the opposite value.
Tensor blocky(Random& random, const Shape& shape, std::int64_t height, std::int64_t width) {
  Tensor mask(DType::boolean, shape);
  const std::int64_t rows = shape[-2], columns = shape[-1], planes = mask.numel() / std::max<std::int64_t>(1, rows * columns);
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    bool* const data = mask.data<bool>() + plane * rows * columns;
    for (std::int64_t t = 0; t < rows; t += height) {
      for (std::int64_t s = 0; s < columns; s += width) {
        const bool truth = random.coin();
        const std::int64_t bottom = std::min(rows, t + height), right = std::min(columns, s + width);
        for (std::int64_t i = t; i < bottom; ++i) std::fill(data + i * columns + s, data + i * columns + right, truth);
        if (random.integer(0, 3) == 0) data[random.integer(t, bottom - 1) * columns + random.integer(s, right - 1)] = !truth;
      }
    }
  }
  return mask;
}

TEST(MaskBlocks, SayWhatTheBooleansOfABlockSay) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), queries = random.integer(1, 70), keys = random.integer(1, 300);
    const Shape pairs{batch, heads, queries, keys};
    Shape shape = pairs;
    for (const int axis : {0, 1, 2, 3}) shape[axis] = random.integer(0, 3) == 0 ? 1 : shape[axis];
    Tensor mask = blocky(random, shape, 16, 64);
    ConstTensorView view = mask;
    if (random.coin()) {  // the keys apart in memory
      mask = Tensor::copy_of(view.transpose(-1, -2));
      view = mask.view().transpose(-1, -2);
    }
    const bool attend = random.coin();
    const Tensor q(DType::f32, {batch, heads, queries, 1}), k(DType::f32, {batch, heads, keys, 1});
    SdpaOptions options;
    (attend ? options.mask.attend : options.mask.block) = view;
    ProblemMemory memory;
    const MapsProblem problem = normal_form(MapsInput{q, k}, options, MapValue::score, "test", memory);
    const cpu::MaskBlocks blocks(problem);
    const ConstTensorView whole = view.expand(pairs);
    for (std::int64_t b = 0; b < batch; ++b) {
      KeySet set = problem.key_set(b, 0, problem.documents.front());
      blocks.attach(b, 0, set);
      for (std::int64_t n = 0; n < heads; ++n) {
        for (std::int64_t t = 0; t < queries; t += kMaskBlockQueries) {
          for (std::int64_t s = 0; s < keys; s += kMaskBlockKeys) {
            const std::int64_t bottom = std::min(queries, t + kMaskBlockQueries), right = std::min(keys, s + kMaskBlockKeys);
            std::int64_t attended = 0;
            for (const double x : to_doubles(whole.select(0, b).select(0, n).slice(0, t, bottom).slice(1, s, right))) attended += (x != 0) == attend;
            const BlockKind expected = attended == 0                            ? BlockKind::skip
                                       : attended == (bottom - t) * (right - s) ? BlockKind::full
                                                                                : BlockKind::partial;
            const BlockKind* const found = blocks_of_query(set.planes[0], n, t);
            ASSERT_EQ(found == nullptr, keys <= kMaskBlockKeys);
            if (found == nullptr) continue;
            EXPECT_EQ(found[s / kMaskBlockKeys], expected) << b << " " << n << " " << t << " " << s;
          }
        }
      }
    }
    if (HasFailure()) return;
  }
}

// Masks with holes and full blocks, several of 512 keys: forward, attention weights and backward against the reference.
TEST(MaskBlocks, SkippedAndFullBlocksChangeNoResult) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionSizes z;
    z.lead = {random.integer(1, 2)};
    z.kv_heads = 1, z.group = random.integer(1, 3);
    z.queries = random.pick<std::int64_t>({1, 5, 20, 40, 100}), z.keys = random.pick<std::int64_t>({70, 200, 600, 1100, 1500});
    z.qk_width = 8, z.v_width = random.pick<std::int64_t>({5, 16, 40});
    AttentionCase c;
    c.sizes = z;
    c.dtype = kDTypes[seed % 5];
    c.draw_inputs(random);
    Shape shape = z.pairs();
    for (const int axis : {0, 1}) shape[axis] = random.coin() ? 1 : shape[axis];
    const std::int64_t width = random.pick<std::int64_t>({64, 64, 128, 512});
    (random.coin() ? c.options.mask.attend : c.options.mask.block) = c.keep(blocky(random, shape, random.pick<std::int64_t>({16, 32, 64}), width));
    if (random.integer(0, 2) == 0) {
      c.options.mask.attend_keys = c.keep(blocky(random, {1, z.keys}, 1, width)).select(0, 0);
      c.options.mask.causal = Causal::bottom_right();
    }
    if (random.integer(0, 2) == 0) c.options.bias = c.keep(random.tensor(c.dtype, z.pairs(), -2, 2));
    if (random.integer(0, 3) == 0) c.options.softcap = 2;
    if (random.integer(0, 3) == 0) c.options.dropout = {.p = 0.25, .seed = seed};
    c.options.empty_rows = random.pick({EmptyRows::zero, EmptyRows::zero, EmptyRows::uniform, EmptyRows::unmasked});
    AttentionCase wide = in_float64(c);
    const AttentionOutputs forward = reference_forward(wide), gradients = reference_backward(wide, reference_forward(c));
    const Tensor map = reference_map(c, {.q = c.q, .k = c.k}, MapValue::probability);
    const Tolerances t(c);
    for_each_instruction_set([&] {
      AttentionOutputs o = c.make_outputs();
      Tensor weights(c.dtype, z.pairs());
      fill(weights, kNaN);
      o.attention_weights = weights;
      c.run(o);
      expect_forward_near(o, forward, t);
      EXPECT_TRUE(near(o.attention_weights, map, t.lse + 0x1p-24 + storage_rounding(c.dtype))) << "attention_weights";
      expect_gradients_near(o, gradients, t);
    });
    if (HasFailure()) return;
  }
}

// The diagonal as booleans is the causal flag, bit for bit: a skipped pair adds nothing, and a full block's scores are those without a mask.
TEST(MaskBlocks, ACausalMaskOfBooleansHasTheBitsOfTheFlag) {
  for (const std::int64_t length : {40, 130, 700}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      SCOPED_TRACE(length);
      Random random(3);
      AttentionCase c;
      c.sizes = {.lead = {}, .kv_heads = 1, .group = 2, .queries = length, .keys = length, .qk_width = 16, .v_width = 16};
      c.dtype = dtype;
      c.draw_inputs(random);
      Tensor attend(DType::boolean, {length, length});
      for (std::int64_t t = 0; t < length; ++t) std::fill_n(attend.data<bool>() + t * length, t + 1, true);
      c.options.backend = &find_backend("cpu");
      for_each_instruction_set([&] {
        const AttentionOutputs by_flag = c.make_outputs(), by_booleans = c.make_outputs();
        c.options.mask = {.causal = Causal::top_left()};
        c.forward(by_flag);
        c.options.mask = {.attend = attend};
        c.forward(by_booleans);
        EXPECT_TRUE(same_bits(by_booleans.out, by_flag.out));
        EXPECT_TRUE(same_bits(by_booleans.lse, by_flag.lse));
      });
    }
  }
}

TEST(MaskBlocks, AThirdPlaneIsRefused) {
  KeyRules rules;
  for (int i = 0; i < KeySet::kMostPlanes; ++i) rules.add({});
  EXPECT_NE(error_message([&] { rules.add({}); }), "");
}

}  // namespace
}  // namespace polyhead::test
