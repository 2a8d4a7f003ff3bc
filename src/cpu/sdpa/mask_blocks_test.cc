// Tests the block kinds of boolean masks, and that results do not change because kernels skip masked blocks and do not read the masks of full blocks.
#include "cpu/sdpa/mask_blocks.h"

#include "sdpa/normal_form.h"
#include "support/compare_outputs.h"
#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

// Returns a mask of blocks of `height` x `width` pairs. The pairs of a block are all true or all false, except that some blocks have one pair with the opposite
// value.
Tensor blocky(Random& random, const Shape& shape, std::int64_t height, std::int64_t width) {
  Tensor mask(DType::boolean, shape);
  const std::int64_t rows = shape[-2], columns = shape[-1], matrices = mask.numel() / std::max<std::int64_t>(1, rows * columns);
  for (std::int64_t booleans = 0; booleans < matrices; ++booleans) {
    bool* const data = mask.data<bool>() + booleans * rows * columns;
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

TEST(MaskBlocks, HaveTheKindOfTheirBooleans) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), queries = random.integer(1, 70), keys = random.integer(1, 300);
    const Shape pairs{batch, heads, queries, keys};
    Shape shape = pairs;
    for (const int axis : {0, 1, 2, 3}) shape[axis] = random.integer(0, 3) == 0 ? 1 : shape[axis];
    Tensor mask = blocky(random, shape, 16, 64);
    ConstTensorView view = mask;
    if (random.coin()) {  // use a view in which neighbouring keys are not adjacent in memory
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
            const BlockKind* const found = blocks_of_query(set.masks[0], n, t);
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

// Compares forward, attention weights and backward with the reference, for masks with skipped and full mask blocks over several key blocks of 512 keys.
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
    for_each_instruction_set(seed, [&] {
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

// A causal mask that is given as booleans gives the same bits as Mask::causal. Skipped pairs add nothing to the sums, and full blocks are computed as without a
// mask.
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

// Draws random lists of blocks, in which blocks may be repeated and -1 may occur.
BlockLists draw_lists(Random& random, AttentionCase& c, std::int64_t queries, std::int64_t keys) {
  const auto blocks_of = [](std::int64_t extent, std::int64_t block) { return (extent + block - 1) / block; };
  const std::int64_t columns = blocks_of(c.sizes.keys, keys);
  Shape shape = c.sizes.pairs();
  for (const int axis : {0, 1}) shape[axis] = random.coin() ? 1 : shape[axis];
  shape[2] = blocks_of(c.sizes.queries, queries), shape[3] = random.integer(1, columns);
  return {.lists = c.keep(random.tensor(DType::i32, shape, -1, static_cast<double>(columns - 1))), .size = {.queries = queries, .keys = keys}};
}

AttentionCase draw_listed(Random& random, DType dtype) {
  AttentionCase c;
  c.sizes.lead = {random.integer(1, 2)};
  c.sizes.kv_heads = random.integer(1, 2), c.sizes.group = random.integer(1, 3);
  c.sizes.queries = random.pick<std::int64_t>({1, 5, 40, 100, 270}), c.sizes.keys = random.pick<std::int64_t>({70, 200, 600, 1100, 1500});
  c.sizes.qk_width = 8, c.sizes.v_width = random.pick<std::int64_t>({5, 16, 40});
  c.dtype = dtype;
  c.draw_inputs(random);
  c.options.backend = &find_backend("cpu");
  return c;
}

TEST(MaskBlocks, HaveTheKindOfTheListedPairs) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_listed(random, DType::f32);
    const std::int64_t height = random.integer(1, 70);
    c.options.mask.blocks = draw_lists(random, c, height, random.pick<std::int64_t>({7, 64, 100, 128}));
    ProblemMemory memory;
    const MapsProblem problem = normal_form(c.maps(), c.options, MapValue::score, "test", memory);
    const cpu::MaskBlocks blocks(problem);
    const Tensor whole = listed_pairs(c.options.mask.blocks, c.sizes.pairs());
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t kv = 0; kv < c.sizes.kv_heads; ++kv) {
        KeySet set = problem.key_set(b, kv * c.sizes.group, problem.documents.front());
        blocks.attach(b, kv, set);
        for (std::int64_t n = 0; n < c.sizes.group; ++n) {
          for (std::int64_t t = 0; t < c.sizes.queries; ++t) {
            const ConstTensorView row = whole.view().select(0, b).select(0, kv * c.sizes.group + n).select(0, t);
            for (std::int64_t s = 0; s < c.sizes.keys; s += kMaskBlockKeys) {
              const std::vector<double> pairs = to_doubles(row.slice(0, s, std::min(c.sizes.keys, s + kMaskBlockKeys)));
              const auto listed = static_cast<std::size_t>(std::count(pairs.begin(), pairs.end(), 1.0));
              const BlockKind expected = listed == 0 ? BlockKind::skip : listed == pairs.size() ? BlockKind::full : BlockKind::partial;
              ASSERT_EQ(blocks_of_query(set.masks[0], n, t)[s / kMaskBlockKeys], expected) << b << " " << kv << " " << n << " " << t << " " << s;
            }
          }
        }
      }
    }
  }
}

// Block lists and a boolean mask of the same pairs give the same bits in every result, also in combination with every other kind of mask.
TEST(MaskBlocks, ListsHaveTheBitsOfBooleans) {
  for (const std::uint64_t seed : seeds(0, 60)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_listed(random, kDTypes[seed % 5]);
    Mask& mask = c.options.mask;
    const BlockLists lists = draw_lists(random, c, random.pick<std::int64_t>({5, 16, 64, 128}), random.pick<std::int64_t>({30, 64, 64, 128, 100}));
    if (random.integer(0, 2) == 0) mask.causal = Causal::bottom_right();
    if (random.integer(0, 3) == 0) mask.window = {.left = 300, .right = 300};
    if (random.integer(0, 3) == 0) mask.attend_keys = c.keep(blocky(random, {1, c.sizes.keys}, 1, 64)).select(0, 0);
    if (random.integer(0, 3) == 0) mask.key_lengths = c.keep(random.tensor(DType::i64, c.sizes.lead, 0, static_cast<double>(c.sizes.keys)));
    if (random.integer(0, 2) == 0) c.options.bias = c.keep(random.tensor(c.dtype, c.sizes.pairs(), -2, 2));
    if (random.integer(0, 3) == 0) c.options.softcap = 2;
    if (random.integer(0, 3) == 0) c.options.dropout = {.p = 0.25, .seed = seed};
    c.options.empty_rows = random.pick({EmptyRows::zero, EmptyRows::zero, EmptyRows::uniform, EmptyRows::unmasked});
    if (Random own = random; own.integer(0, 2) == 0) mask.key_starts = c.keep(own.tensor(DType::i64, c.sizes.lead, 0, static_cast<double>(c.sizes.keys / 2)));
    const TensorView attend = c.keep(listed_pairs(lists, c.sizes.pairs()));
    ConstTensorView beside;  // a boolean mask [*,N,T,S], given in addition to the lists
    if (random.integer(0, 2) == 0) {
      const TensorView drawn = c.keep(blocky(random, c.sizes.pairs(), 16, 64));
      for (std::int64_t i = 0; i < drawn.numel(); ++i) attend.data<bool>()[i] = attend.data<bool>()[i] && drawn.data<bool>()[i];
      beside = drawn;
    }
    for_each_instruction_set(seed, [&] {
      AttentionOutputs by_lists = c.make_outputs(), by_booleans = c.make_outputs();
      for (AttentionOutputs* o : {&by_lists, &by_booleans}) o->attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs()));
      mask.blocks = lists, mask.attend = beside;
      c.run(by_lists);
      mask.blocks = {}, mask.attend = attend;
      c.run(by_booleans);
      mask.attend = {};
      expect_same_bits(by_lists, by_booleans);
      EXPECT_TRUE(same_bits(by_lists.attention_weights, by_booleans.attention_weights)) << "attention_weights";
    });
    if (HasFailure()) return;
  }
}

// One mask allows some keys only to rows 0 to 15, and the other mask allows the same keys only to rows 16 to 31, so no row attends to these keys. A strip may
// contain rows of both kinds, and a NaN in these keys must not reach the strip's results.
TEST(MaskBlocks, TwoMasksThatAllowTheSameKeysToDifferentRows) {
  for (const bool none : {true, false}) {
    SCOPED_TRACE(none);
    Random random(7);
    const Tensor q = random.tensor(DType::f32, {1, 32, 64}), k = random.tensor(DType::f32, {1, 192, 64});
    Tensor v = random.tensor(DType::f32, {1, 192, 64});
    for (std::int64_t i = 64 * 64; i < 128 * 64; ++i) v.data<float>()[i] = std::numeric_limits<float>::quiet_NaN();
    Tensor attend(DType::boolean, {32, 192});
    for (std::int64_t t = 0; t < 32; ++t) {
      for (std::int64_t s = 0; s < 192; ++s) attend.data<bool>()[t * 192 + s] = t < 16 ? s < 64 || s >= 128 : s < 128;
    }
    const Tensor lists = none ? Tensor::of<std::int32_t>({2, 1}, {1, 2}) : Tensor::of<std::int32_t>({2, 2}, {0, 1, 0, 2});
    const SdpaOptions options{.mask = {.attend = attend, .blocks = {.lists = lists, .size = {.queries = 16, .keys = 64}}}};
    Tensor wanted_out(DType::f32, {1, 32, 64}), wanted_lse(DType::f32, {1, 32});
    SdpaOptions by_reference = options;
    by_reference.backend = &find_backend("reference");
    sdpa_forward({.q = q, .k = k, .v = v, .out = wanted_out, .lse = wanted_lse}, by_reference);
    for_each_instruction_set([&] {
      Tensor out(DType::f32, {1, 32, 64}), lse(DType::f32, {1, 32});
      sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
      for (std::int64_t i = 0; i < out.numel(); ++i) {
        ASSERT_NEAR(out.data<float>()[i], wanted_out.data<float>()[i], 1e-5) << i;
        if (none) {
          ASSERT_EQ(out.data<float>()[i], 0) << i;
        }
      }
    });
  }
}

TEST(MaskBlocks, OneMaskTooManyIsRefused) {
  KeyRules rules;
  for (int i = 0; i < KeySet::kMostMasks; ++i) rules.add({});
  EXPECT_NE(error_message([&] { rules.add({}); }), "");
}

}  // namespace
}  // namespace polyhead::test
