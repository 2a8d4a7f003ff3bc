// Tests problems with empty parts: documents without keys, without queries or without both; sequences, heads, blocks and rows without keys; extents of 0. The
// problems are large enough for several threads. All passes, for every instruction set, are compared with the backend `reference`, and bit for bit with one
// thread. The problems are long and narrow: schedules then use several threads, but the reference, whose time grows with the number of pairs, stays fast.
#include "polyhead/maps.h"
#include "support/last_piece_first.h"
#include "support/second_kernel_case.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kLong = 1060;
constexpr std::int64_t kSide = 150;
const AttentionSizes kManyQueries{.kv_heads = 4, .group = 2, .queries = kLong, .keys = 5, .qk_width = 64, .v_width = 64};
const AttentionSizes kManyKeys{.kv_heads = 4, .group = 2, .queries = 3, .keys = kLong, .qk_width = 64, .v_width = 64};
const AttentionSizes kSquare{.kv_heads = 2, .group = 2, .queries = kSide, .keys = kSide, .qk_width = 24, .v_width = 17};

AttentionSizes with_lead(AttentionSizes sizes, Shape lead) {
  sizes.lead = std::move(lead);
  return sizes;
}

AttentionSizes without(AttentionSizes sizes, std::int64_t AttentionSizes::*extent) {
  sizes.*extent = 0;
  return sizes;
}

// Divides [0, end) into ranges in proportion to `shares`, and returns the offsets of the ranges.
Tensor offsets_of(const std::vector<std::int64_t>& shares, std::int64_t end) {
  std::int64_t total = 0, sum = 0;
  for (const std::int64_t share : shares) total += share;
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t share : shares) offsets.push_back(total == 0 ? 0 : end * (sum += share) / total);
  offsets.back() = end;
  return Tensor::of<std::int64_t>({static_cast<std::int64_t>(offsets.size())}, std::span<const std::int64_t>(offsets));
}

void set_documents(AttentionCase& c, const std::vector<std::int64_t>& queries, const std::vector<std::int64_t>& keys) {
  c.options.mask.query_offsets = c.keep(offsets_of(queries, c.sizes.queries));
  c.options.mask.key_offsets = c.keep(offsets_of(keys, c.sizes.keys));
}

Tensor all_true(const Shape& shape) {
  Tensor mask(DType::boolean, shape);
  fill(mask, 1);
  return mask;
}

struct Kind {
  const char* name;
  AttentionSizes sizes;
  std::function<void(Random&, AttentionCase&)> empty = [](Random&, AttentionCase&) {};
};

std::vector<Kind> kinds() {
  std::vector<Kind> all = {
      {"a long document without keys comes first", kManyQueries, [](Random&, AttentionCase& c) { set_documents(c, {127, 1}, {0, 1}); }},
      {"a long document without keys comes last", kManyQueries, [](Random&, AttentionCase& c) { set_documents(c, {1, 1, 126}, {1, 1, 0}); }},
      {"no document has keys", without(kManyQueries, &AttentionSizes::keys), [](Random&, AttentionCase& c) { set_documents(c, {3, 0, 5}, {0, 0, 0}); }},
      {"a long document without queries", kManyKeys, [](Random&, AttentionCase& c) { set_documents(c, {1, 0, 2}, {1, 60, 1}); }},
      {"no document has queries", without(kManyKeys, &AttentionSizes::queries), [](Random&, AttentionCase& c) { set_documents(c, {0, 0}, {3, 5}); }},
      {"documents of every kind", with_lead(kSquare, {2}),
       [](Random& random, AttentionCase& c) {
         std::vector<std::int64_t> queries{0, 0, 3, 4}, keys{0, 5, 0, 4};
         for (int i = 0; i < 3; ++i) queries.push_back(random.integer(0, 2)), keys.push_back(random.integer(0, 2));
         set_documents(c, queries, keys);
       }},
      {"documents of every kind, with a diagonal", with_lead(kSquare, {2}),
       [](Random& random, AttentionCase& c) {
         set_documents(c, {2, 5, 0, 0, 3, 4}, {5, 2, 0, 1, 0, 4});
         c.options.mask.causal = random.pick({Causal::top_left(), Causal::bottom_right(), Causal::offset(-30)});
         if (random.coin()) c.options.mask.window = {.left = 7, .right = 3};
       }},
      {"sequences without keys by their lengths", with_lead(kSquare, {3}),
       [](Random&, AttentionCase& c) { c.options.mask.key_lengths = c.keep(Tensor::of<std::int64_t>({3}, {0, kSide, 0})); }},
      {"queries without keys by their lengths", kSquare,
       [](Random&, AttentionCase& c) {
         Tensor lengths(DType::i64, {c.sizes.queries});
         for (std::int64_t t = 0; t < c.sizes.queries; ++t) lengths.data<std::int64_t>()[t] = t / 20 % 2 == 0 ? 0 : t % 60;
         c.options.mask.key_lengths = c.keep(std::move(lengths));
       }},
      {"sequences without keys by their starts", with_lead(kSquare, {3}),
       [](Random&, AttentionCase& c) { c.options.mask.key_starts = c.keep(Tensor::of<std::int64_t>({3}, {kSide, 0, kSide})); }},
      {"queries without keys between their starts and lengths", kSquare,
       [](Random&, AttentionCase& c) {
         Tensor starts(DType::i64, {c.sizes.queries}), lengths(DType::i64, {c.sizes.queries});
         for (std::int64_t t = 0; t < c.sizes.queries; ++t) starts.data<std::int64_t>()[t] = t % 90, lengths.data<std::int64_t>()[t] = t / 20 % 2 == 0 ? t % 90 / 2 : kSide - 3;
         c.options.mask.key_starts = c.keep(std::move(starts)), c.options.mask.key_lengths = c.keep(std::move(lengths));
       }},
      {"the corner of a causal mask", kSquare, [](Random& random, AttentionCase& c) { c.options.mask.causal = Causal::offset(-random.integer(40, kSide - 1)); }},
      {"a causal mask without pairs", kManyQueries, [](Random&, AttentionCase& c) { c.options.mask.causal = Causal::offset(-kLong); }},
      {"windows beyond the last key", kManyQueries,
       [](Random& random, AttentionCase& c) { c.options.mask.window = {.left = 2, .right = 2, .diagonal = Diagonal::offset(random.pick<std::int64_t>({-3, 400}))}; }},
      {"sequences with separate diagonals, some of which allow no pair", with_lead(kSquare, {3}),
       [](Random&, AttentionCase& c) {
         c.options.mask.causal = Causal::top_left();
         c.options.mask.diagonal_offsets = c.keep(Tensor::of<std::int64_t>({3}, {-kSide, 0, -100}));
       }},
      {"heads without keys", kSquare,
       [](Random& random, AttentionCase& c) {
         Tensor mask = all_true({c.sizes.heads(), 1, c.sizes.keys});
         fill(mask.view().slice(0, 0, random.integer(1, 3)), 0);
         c.options.mask.attend = c.keep(std::move(mask));
       }},
      {"blocks of a mask without pairs", kSquare,
       [](Random& random, AttentionCase& c) {
         Tensor mask = all_true({c.sizes.queries, c.sizes.keys});
         for (int i = 0; i < 3; ++i) {
           const std::int64_t t = 64 * random.integer(0, 2), s = 64 * random.integer(0, 2);
           fill(mask.view().slice(0, t, std::min(t + 64, kSide)).slice(1, s, std::min(s + 64, kSide)), 0);
         }
         fill(mask.view().slice(0, 70, 100), 0);
         c.options.mask.attend = c.keep(std::move(mask));
       }},
      {"a mask without pairs", kSquare, [](Random&, AttentionCase& c) { c.options.mask.block = c.keep(all_true({c.sizes.queries, c.sizes.keys})); }},
      {"sequences whose keys are all blocked", with_lead(kSquare, {2}),
       [](Random&, AttentionCase& c) {
         Tensor keys = all_true({2, c.sizes.keys});
         fill(keys.view().slice(0, 1, 2), 0);
         c.options.mask.block_keys = c.keep(std::move(keys));
       }},
  };
  using Extent = std::int64_t AttentionSizes::*;
  for (const auto& [name, extent] : {std::pair<const char*, Extent>{"without queries", &AttentionSizes::queries}, {"without keys", &AttentionSizes::keys}, {"without heads", &AttentionSizes::kv_heads},
                                     {"without width of q and k", &AttentionSizes::qk_width}, {"without width of v", &AttentionSizes::v_width}}) {
    for (const AttentionSizes& sizes : {kManyQueries, kManyKeys}) {
      all.push_back({name, without(sizes, extent)});
    }
  }
  for (const AttentionSizes& sizes : {kManyQueries, kManyKeys}) all.push_back({"without sequences", with_lead(sizes, {2, 0})});
  return all;
}

// Returns a case of the given kind with random options.
AttentionCase draw_empty_case(Random& random, const Kind& kind, DType dtype) {
  AttentionCase c = case_of(random, dtype, kind.sizes);
  SdpaOptions& o = c.options;
  kind.empty(random, c);
  switch (random.integer(0, 5)) {
    case 0: o.sink = c.keep(random.tensor(accumulation_dtype(dtype), {c.sizes.heads()}, -2, 2)); break;
    case 1: o.empty_rows = EmptyRows::uniform; break;
    case 2: o.empty_rows = EmptyRows::unmasked; break;
    default: break;
  }
  switch (random.integer(0, 5)) {
    case 0: o.bias = c.keep(random.tensor(dtype, c.sizes.pairs(), -2, 2)); break;
    case 1: o.bias = c.keep(random.tensor(dtype, {c.sizes.heads(), 1, c.sizes.keys}, -2, 2)); break;
    case 2: o.relative_bias.slopes = c.keep(random.tensor(dtype, {c.sizes.heads()}, 0, 0.01)); break;
    default: break;
  }
  if (random.integer(0, 3) == 0) o.dropout = {.p = 0.25, .seed = 5};
  if (random.integer(0, 3) == 0) o.softcap = 20;
  o.backend = &find_backend("cpu");
  return c;
}

class Emptiness : public testing::Test {
 protected:
  // Calls f(seed, random, case) for a case of each kind.
  template <class F>
  static void for_each_kind(const F& f) {
    std::uint64_t seed = 0;
    for (const Kind& kind : kinds()) {
      Random random(++seed);
      const DType dtype = kDTypes[seed % 5];
      SCOPED_TRACE(testing::Message() << kind.name << ", " << info(dtype).name << ", seed " << seed << ", q " << to_string(kind.sizes.q()) << ", k " << to_string(kind.sizes.k()));
      AttentionCase c = draw_empty_case(random, kind, dtype);
      f(seed, random, c);
      if (HasFailure()) return;
    }
  }

  // Calls f() with one thread and with several threads. With several threads, the pieces of a call are computed in an unusual order.
  template <class F>
  static void for_each_thread_count(std::uint64_t seed, SdpaOptions& options, const F& f) {
    for (const int threads : thread_counts(seed, {1, 5, 64})) {
      SCOPED_TRACE(testing::Message() << threads << " threads");
      LastPieceFirst executor(threads);
      options.executor = &executor;
      f();
    }
    options.executor = nullptr;
  }
};

TEST_F(Emptiness, OfForwardAndBackward) {
  for_each_kind([](std::uint64_t seed, Random&, AttentionCase& c) {
    AttentionCase wide = in_float64(c);
    const AttentionOutputs forward = reference_forward(c), expected_forward = reference_forward(wide), expected = reference_backward(wide, forward);
    const Tolerances tolerances(c);
    for_each_instruction_set(seed, [&] {
      std::optional<AttentionOutputs> first;
      for_each_thread_count(seed, c.options, [&] {
        AttentionOutputs o = c.make_outputs(), with_weights = c.make_outputs();
        with_weights.attention_weights = c.keep(Tensor::uninitialised(c.dtype, c.sizes.pairs()));
        c.forward(o), c.forward(with_weights);
        if (!first) expect_forward_near(o, expected_forward, tolerances);
        EXPECT_TRUE(same_bits(with_weights.out, o.out));
        const AttentionOutputs result = o;
        const AttentionOutputs gradients = c.make_outputs();
        backward_from(c, forward, gradients);
        if (!first) expect_gradients_near(gradients, expected, tolerances);
        AttentionOutputs all = gradients;
        all.out = result.out, all.lse = result.lse, all.attention_weights = with_weights.attention_weights;
        first ? expect_same_bits(all, *first) : void(first = all);
      });
    });
  });
}

TEST_F(Emptiness, OfSecondDerivatives) {
  for_each_kind([](std::uint64_t seed, Random& random, AttentionCase& drawn) {
    SecondCase second{.c = std::move(drawn), .tangents = {}, .forward = {}};
    second.tangents = draw_tangents(random, second.c);
    second.run_forward();
    SecondCase wide = in_float64(second);
    const SecondOutputs expected = wide.make_outputs();
    wide.jvp(expected), wide.backward_backward(expected);
    const Tolerances first_tolerances(second.c);
    const SecondTolerances tolerances(second, first_tolerances);
    for_each_instruction_set(seed, [&] {
      std::optional<SecondOutputs> first;
      for_each_thread_count(seed, second.c.options, [&] {
        const SecondOutputs o = second.make_outputs();
        second.jvp(o), second.backward_backward(o);
        if (!first) {
          expect_near(o, expected, tolerances, first_tolerances.relative);
          first = o;
          return;
        }
        const auto found = o.list(), bits = first->list();
        for (std::size_t i = 0; i < found.size(); ++i) {
          if (found[i].second) {
            EXPECT_TRUE(same_bits(found[i].second, bits[i].second)) << found[i].first;
          }
        }
      });
    });
    drawn = std::move(second.c);
  });
}

// Returns the results of all operations of maps.h for the case.
std::vector<std::pair<const char*, Tensor>> maps_of(const AttentionCase& c) {
  const AttentionSizes& z = c.sizes;
  const MapsInput input = c.maps();
  std::vector<std::pair<const char*, Tensor>> all;
  const auto add = [&](const char* name, const Shape& shape, const auto& operation, DType dtype = DType::f64) {
    Tensor out = Tensor::uninitialised(dtype, shape);
    operation(out.view());
    all.emplace_back(name, std::move(out));
  };
  const auto of_heads = [&](std::initializer_list<std::int64_t> rest) {
    return appended(z.with({z.heads()}), rest);
  };
  const auto some = [](std::int64_t extent) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = extent - 1; i >= 0; i -= 1 + extent / 50) numbers.push_back(i);
    return numbers;
  };
  const std::vector<std::int64_t> queries = some(z.queries), keys = some(z.keys);
  const auto rows = static_cast<std::int64_t>(queries.size()), columns = static_cast<std::int64_t>(keys.size());
  for (const MapValue value : {MapValue::score, MapValue::probability, MapValue::dropped}) add("map", z.pairs(), [&](TensorView out) { attention_map(input, out, c.options, value); });
  add("rows", of_heads({rows, z.keys}), [&](TensorView out) { attention_map_rows(input, queries, out, c.options); });
  add("part", of_heads({rows, columns}), [&](TensorView out) { attention_map_part(input, queries, keys, out, c.options); });
  add("windows", of_heads({z.queries, 5}), [&](TensorView out) { attention_windows(input, -2, out, c.options); });
  const std::int64_t most = std::min<std::int64_t>(3, z.keys);
  add("top keys", of_heads({z.queries, most}), [&](TensorView out) {
    Tensor key(DType::i64, out.shape());
    attention_top_keys(input, out, key, c.options);
  });
  for (TensorView HeadStatistics::*which : {&HeadStatistics::entropy, &HeadStatistics::largest, &HeadStatistics::distance, &HeadStatistics::first_key, &HeadStatistics::previous_key, &HeadStatistics::same_key,
                                            &HeadStatistics::next_key}) {
    add("statistics", of_heads({}), [&](TensorView out) {
      HeadStatistics wanted;
      wanted.*which = out;
      attention_statistics(input, wanted, c.options);
    });
  }
  Tensor set(DType::boolean, {z.keys});
  if (z.keys > 0) fill(set.view().slice(0, 0, (z.keys + 1) / 2), 1);
  add("key mass", of_heads({z.queries, 1}), [&](TensorView out) { attention_key_mass(input, set, out, c.options); });
  add("key sums", of_heads({z.keys}), [&](TensorView out) { attention_key_sums(input, out, c.options); });
  for (const Pooling pooling : {Pooling::mean, Pooling::sum, Pooling::largest}) {
    add("pooled map", of_heads({std::min<std::int64_t>(4, z.queries), std::min<std::int64_t>(5, z.keys)}), [&](TensorView out) { attention_pooled_map(input, out, c.options, pooling); });
  }
  add("divergence", of_heads({z.heads()}), [&](TensorView out) { attention_divergence(input, out, c.options); });
  if (z.queries == z.keys) {
    const MapsInput layers[] = {input, input};
    add("rollout", z.with({rows, z.queries}), [&](TensorView out) { attention_rollout(layers, queries, out, c.options); });
  }
  return all;
}

TEST_F(Emptiness, OfMaps) {
  for_each_kind([](std::uint64_t seed, Random&, AttentionCase& c) {
    AttentionCase wide = in_float64(c);
    wide.options.backend = &find_backend("reference");
    const auto expected = maps_of(wide);
    const Tolerances tolerances(c);
    // Sums over rows, and the distances of pairs, are at most this large. Tolerances of such results are multiplied by it.
    const auto reach = static_cast<double>(c.sizes.queries + c.sizes.keys);
    for_each_instruction_set(seed, [&] {
      std::vector<std::pair<const char*, Tensor>> first;
      for_each_thread_count(seed, c.options, [&] {
        const auto found = maps_of(c);
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t i = 0; i < found.size(); ++i) {
          if (first.empty()) {
            EXPECT_TRUE(near(found[i].second, expected[i].second, tolerances.lse * kept_factor(c.options.dropout) * reach)) << found[i].first;
          } else {
            EXPECT_TRUE(same_bits(found[i].second, first[i].second)) << found[i].first;
          }
        }
        if (first.empty()) {
          for (const auto& [name, map] : found) first.emplace_back(name, Tensor::copy_of(map));
        }
      });
    });
  });
}

}  // namespace
}  // namespace polyhead::test
