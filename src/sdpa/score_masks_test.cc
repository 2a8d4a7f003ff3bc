// Tests which blocks of pairs a score program masks by the score -infinity (ScoreRule::masks), and that skipping these blocks changes no result.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "polyhead/score_program.h"
#include "support/kernel_case.h"
#include "support/thread_count.h"

namespace polyhead::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

// Collects the instructions of a program whose result is `select(condition, score, -infinity)`. Numbers are registers.
struct Program {
  ScoreProgramCode code;

  std::int32_t add(ScoreOp which, std::int32_t a = -1, std::int32_t b = -1, std::int32_t c = -1, std::int32_t table = -1) {
    code.instructions.push_back({.op = which, .table = table, .a = a, .b = b, .c = c});
    return static_cast<std::int32_t>(code.instructions.size()) - 1;
  }
  std::int32_t number(double value) {
    code.instructions.push_back({.op = ScoreOp::constant, .value = value});
    return static_cast<std::int32_t>(code.instructions.size()) - 1;
  }
  std::int32_t load(const Tensor& table, std::int32_t a, std::int32_t b = -1) {
    code.tables.push_back({table});
    return add(ScoreOp::load, a, b, -1, static_cast<std::int32_t>(code.tables.size()) - 1);
  }
  ScoreProgram kept(std::int32_t condition) {
    const std::int32_t one = number(1);
    code.result = add(ScoreOp::select, condition, add(ScoreOp::score), number(-kInfinity));
    code.slope = add(ScoreOp::select, condition, one, number(0));
    return ScoreProgram(code);
  }
};

Tensor documents(std::int64_t length, std::int64_t of_each) {
  Tensor table(DType::f64, {length});
  for (std::int64_t i = 0; i < length; ++i) table.data<double>()[i] = static_cast<double>(i / of_each);
  return table;
}

ScoreProgram same_document(const Tensor& table) {
  Program p;
  return p.kept(p.add(ScoreOp::equal, p.load(table, p.add(ScoreOp::query)), p.load(table, p.add(ScoreOp::key))));
}

bool masks(const ScoreRule& rule, std::int64_t query, std::int64_t rows, std::int64_t key, std::int64_t keys, bool float64 = false) {
  if (rule.masks == nullptr) return false;
  return rule.masks({.float64 = float64, .rows = rows, .keys = keys, .first_query = query, .first_key = key, .batch = 1, .head = 2}, rule.data);
}

TEST(ScoreMasks, AreTheBlocksWithoutAPair) {
  const Tensor table = documents(1000, 130), prefix = Tensor::of<float>({2}, {100, 70});
  Program causal, window, with_prefix, negated;
  const auto distance = [](Program& p) { return p.add(ScoreOp::subtract, p.add(ScoreOp::query), p.add(ScoreOp::key)); };
  const auto all = [](std::int64_t t, std::int64_t s, std::int64_t rows, std::int64_t keys, const auto& attends) {
    for (std::int64_t i = 0; i < rows * keys; ++i) {
      if (attends(t + i / keys, s + i % keys)) return false;
    }
    return true;
  };
  const ScoreProgram programs[] = {
      same_document(table), causal.kept(causal.add(ScoreOp::less_equal, causal.add(ScoreOp::key), causal.add(ScoreOp::query))),
      window.kept(window.add(ScoreOp::less, window.add(ScoreOp::absolute, distance(window)), window.number(90))),
      with_prefix.kept(with_prefix.add(ScoreOp::logical_or, with_prefix.add(ScoreOp::less, with_prefix.add(ScoreOp::key), with_prefix.load(prefix, with_prefix.add(ScoreOp::batch))),
                                       with_prefix.add(ScoreOp::less_equal, with_prefix.add(ScoreOp::key), with_prefix.add(ScoreOp::query)))),
      negated.kept(negated.add(ScoreOp::logical_not, negated.add(ScoreOp::less, negated.add(ScoreOp::query), negated.add(ScoreOp::key))))};
  using Attends = bool (*)(std::int64_t, std::int64_t);
  const Attends attends[] = {[](std::int64_t t, std::int64_t s) { return t / 130 == s / 130; }, [](std::int64_t t, std::int64_t s) { return s <= t; }, [](std::int64_t t, std::int64_t s) { return std::abs(t - s) < 90; },
                             [](std::int64_t t, std::int64_t s) { return s < 70 || s <= t; }, [](std::int64_t t, std::int64_t s) { return s <= t; }};
  for (std::size_t i = 0; i < std::size(programs); ++i) {
    int masked = 0;
    const ScoreRule rule = programs[i].rule();
    for (std::int64_t t = 0; t < 1000; t += 64) {
      for (std::int64_t s = 0; s < 1000; s += 64) {
        const std::int64_t rows = std::min<std::int64_t>(64, 1000 - t), keys = std::min<std::int64_t>(64, 1000 - s);
        const bool wanted = all(t, s, rows, keys, attends[i]);
        masked += wanted ? 1 : 0;
        for (const bool float64 : {false, true}) ASSERT_EQ(masks(rule, t, rows, s, keys, float64), wanted) << "rule " << i << ", block " << t << ", " << s;
      }
    }
    EXPECT_GT(masked, 50);
    EXPECT_EQ(rule.masks_by_batch, i == 3);
    EXPECT_FALSE(rule.masks_by_head);
  }
}

// Programs with random conditions, which are the same for all pairs of many tiles, against programs of the same numbers that are computed pair by pair. If a tile
// counts as masked, each of its pairs has -infinity, also where the old score is NaN.
TEST(ScoreMasks, RandomProgramsAreThosePairByPair) {
  using enum ScoreOp;
  const ScoreOp two[] = {add, subtract, multiply, divide, maximum, minimum, less, less_equal, equal, logical_and, logical_or}, one[] = {negate, absolute, floor, logical_not, tanh, round};
  int masked = 0, unchanged = 0;
  for (std::uint64_t seed = 0; seed < (quick() ? 1000U : 4000U); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 100);
    Tensor integers(DType::f32, {90}), pairs = random.tensor(DType::f64, {90, 90}, -2, 2), odd = random.tensor(DType::f32, {7}, -3, 3);
    for (std::int64_t i = 0; i < 90; ++i) integers.data<float>()[i] = static_cast<float>(i / random.integer(20, 40));
    if (random.coin()) odd.data<float>()[3] = static_cast<float>(random.coin() ? kNaN : kInfinity);
    if (random.coin()) odd.data<float>()[2] = 1e-40F;
    Program p;
    std::vector<std::int32_t> numbers{p.add(query), p.add(key), p.add(head), p.add(batch)};
    const auto any = [&] { return numbers[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(numbers.size()) - 1))]; };
    for (const double value : {0.0, 1.0, -1.0, 40.0, 0.1, 1e-30, kInfinity, kNaN}) {
      if (random.integer(0, 3) == 0) numbers.push_back(p.number(value));
    }
    numbers.push_back(p.load(integers, 0)), numbers.push_back(p.load(integers, 1));
    if (random.integer(0, 3) == 0) numbers.push_back(p.load(pairs, 0, 1));
    for (int i = 0; i < 6; ++i) {
      const std::int64_t kind = random.integer(0, 9);
      numbers.push_back(kind == 0   ? p.load(odd, any())
                        : kind == 1 ? p.add(select, any(), any(), any())
                        : kind <= 3 ? p.add(one[random.integer(0, std::ssize(one) - 1)], any())
                                    : p.add(two[random.integer(0, std::ssize(two) - 1)], any(), any()));
    }
    // The result is chosen by two conditions, and each choice is the old score, -infinity or the other choice.
    const std::int32_t score_register = p.add(score), minus_infinity = p.number(-kInfinity), unit = p.number(1);
    const auto leaf = [&] { return random.coin() ? score_register : minus_infinity; };
    const std::int32_t inner = p.add(select, any(), leaf(), leaf());
    p.code.result = random.coin() ? p.add(select, any(), inner, leaf()) : p.add(select, any(), leaf(), inner);
    p.code.slope = p.add(select, any(), unit, p.add(select, any(), unit, any()));
    const ScoreProgram program(p.code);
    const ScoreRule rule = program.rule();
    p.code.result = p.add(maximum, p.code.result, p.code.result), p.code.slope = p.add(maximum, p.code.slope, p.code.slope);  // the same numbers, but not by a selection
    const ScoreProgram pair_by_pair(p.code);
    EXPECT_EQ(pair_by_pair.rule().masks, nullptr);
    for (int block = 0; block < 20; ++block) {
      ScoreTile tile{.float64 = random.coin(), .rows = random.integer(1, 12), .keys = random.integer(1, 20)};
      tile.first_query = random.integer(0, 78), tile.first_key = random.integer(0, 70), tile.batch = random.integer(0, 2), tile.head = random.integer(0, 9);
      const bool masks = rule.masks != nullptr && rule.masks(tile, rule.data);
      masked += masks ? 1 : 0;
      tile.row_stride = tile.keys;
      std::vector<double> wide(static_cast<std::size_t>(tile.rows * tile.keys), kNaN);
      for (double& x : wide) x = random.integer(0, 3) == 0 ? kNaN : random.integer(0, 3) == 0 ? kInfinity : 1.0;
      const std::vector<double> old = wide;
      const auto run = [&](bool forward, const ScoreRule& by) {
        wide = old;
        std::vector<float> narrow(wide.begin(), wide.end()), narrow_old = narrow;
        tile.scores = tile.float64 ? static_cast<void*>(wide.data()) : narrow.data();
        forward ? by.forward(tile, by.data) : by.backward(tile, tile.float64 ? static_cast<const void*>(old.data()) : narrow_old.data(), nullptr, by.data);
        return tile.float64 ? wide : std::vector<double>(narrow.begin(), narrow.end());
      };
      for (const bool forward : {true, false}) {
        const std::vector<double> found = run(forward, rule), wanted = run(forward, pair_by_pair.rule());
        for (std::size_t i = 0; i < found.size(); ++i) {
          ASSERT_TRUE(wanted[i] == -kInfinity || !masks || !forward) << "pair " << i;
          if (std::isnan(wanted[i])) {
            ASSERT_TRUE(std::isnan(found[i])) << "pair " << i;
          } else {
            ASSERT_EQ(found[i], wanted[i]) << "pair " << i;
          }
        }
        unchanged += forward && old == found ? 1 : 0;
      }
    }
  }
  EXPECT_GT(masked, 1000);
  EXPECT_GT(unchanged, 250);
}

// A rule that counts the pairs whose scores it changes.
struct Counting {
  ScoreRule inner;
  mutable std::atomic<std::int64_t> pairs = 0;

  explicit Counting(ScoreRule rule) : inner(rule) {}
  ScoreRule rule() const {
    ScoreRule rule = inner;
    rule.data = this;
    rule.forward = [](const ScoreTile& tile, const void* data) {
      const auto& self = *static_cast<const Counting*>(data);
      self.pairs += tile.rows * tile.keys, self.inner.forward(tile, self.inner.data);
    };
    rule.backward = [](const ScoreTile& tile, const void* before, double* sums, const void* data) {
      const auto& self = *static_cast<const Counting*>(data);
      self.inner.backward(tile, before, sums, self.inner.data);
    };
    if (inner.masks == nullptr) return rule;
    rule.masks = [](const ScoreTile& tile, const void* data) {
      const auto& self = *static_cast<const Counting*>(data);
      return self.inner.masks(tile, self.inner.data);
    };
    return rule;
  }
};

ScoreRule without_masks(ScoreRule rule) {
  rule.masks = nullptr;
  return rule;
}

struct Compared {
  AttentionOutputs skipping, all;
  std::int64_t skipping_pairs, all_pairs;  // how many pairs the rule changed
};
// Runs a case with the rule, and with the same rule without `masks`.
Compared compare(AttentionCase& c, const ScoreRule& rule) {
  const Counting skipping(rule), all(without_masks(rule));
  Compared result{c.make_outputs(), c.make_outputs(), 0, 0};
  c.options.score_rule = skipping.rule(), c.run(result.skipping);
  c.options.score_rule = all.rule(), c.run(result.all);
  result.skipping_pairs = skipping.pairs, result.all_pairs = all.pairs;
  return result;
}

AttentionSizes sizes() { return {.lead = {2}, .kv_heads = 2, .group = 2, .queries = 300, .keys = 300, .qk_width = 20, .v_width = 12}; }

void expect_near(const AttentionOutputs& actual, const AttentionOutputs& expected, double tolerance) {
  const auto a = actual.list(), b = expected.list();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].second) continue;
    EXPECT_TRUE(near(a[i].second, Tensor::copy_of(b[i].second), tolerance)) << a[i].first;
  }
}

TEST(ScoreMasks, SkippedBlocksChangeNoResult) {
  const Tensor table = documents(300, 75);
  Program by_head;  // documents in heads 0 and 1, all keys in the others
  const std::int32_t same = by_head.add(ScoreOp::equal, by_head.load(table, by_head.add(ScoreOp::query)), by_head.load(table, by_head.add(ScoreOp::key)));
  const std::int32_t others = by_head.add(ScoreOp::less, by_head.number(1.5), by_head.add(ScoreOp::head));
  const ScoreProgram programs[] = {same_document(table), by_head.kept(by_head.add(ScoreOp::logical_or, same, others))};
  for (const Backend* const backend : backends()) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      if (dtype != DType::f64 && backend == &find_backend("reference")) continue;  // the reference computes in float64 anyway
      for (int variant = 0; variant < 5; ++variant) {
        SCOPED_TRACE(testing::Message() << backend_name(*backend) << " " << info(dtype).name << " variant " << variant);
        Random random(static_cast<std::uint64_t>(variant) + 1);
        AttentionCase c = case_of(random, dtype, sizes(), backend);
        const Tensor lengths = Tensor::of<std::int64_t>({2}, {300, 170}), sink = random.tensor(dtype, {4});
        if (variant == 1) c.options.mask.causal = Causal::top_left();
        if (variant == 2) c.options.mask.key_lengths = lengths;
        if (variant == 3) c.options.dropout = {.p = 0.25, .seed = 7};
        if (variant == 4) c.options.sink = sink;
        const ScoreRule rule = programs[variant % 2].rule();
        const auto check = [&] {
          const Compared found = compare(c, rule);
          const std::int64_t most = found.all_pairs * (backend == &find_backend("reference") ? 10 : variant % 2 == 0 ? 7 : 9) / 10;  // the reference calls the rule for masked pairs too
          EXPECT_LE(found.skipping_pairs, most);
          expect_near(found.skipping, found.all, dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 0.04);
        };
        for_each_instruction_set(backend, dtype, check);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(ScoreMasks, NonFiniteNumbersReachTheSameResults) {
  const Tensor table = documents(300, 75);
  const ScoreProgram program = same_document(table);
  for (const Backend* const backend : backends()) {
    for (int tensor = 0; tensor < 4; ++tensor) {
      SCOPED_TRACE(testing::Message() << backend_name(*backend) << ", tensor " << tensor);
      Random random(static_cast<std::uint64_t>(tensor) + 1);
      AttentionCase c = case_of(random, DType::f32, sizes(), backend);
      Tensor q = Tensor::copy_of(c.q), k = Tensor::copy_of(c.k), v = Tensor::copy_of(c.v), d_out = Tensor::copy_of(c.d_out);
      Tensor& changed = *std::array{&q, &k, &v, &d_out}[static_cast<std::size_t>(tensor)];
      changed.data<float>()[changed.numel() / 2] = static_cast<float>(tensor % 2 == 0 ? kNaN : kInfinity);
      c.q = q, c.k = k, c.v = v, c.d_out = d_out;
      for_each_instruction_set(backend, DType::f32, [&] {
        const Compared found = compare(c, program.rule());
        const auto a = found.skipping.list(), b = found.all.list();
        for (std::size_t i = 0; i < a.size(); ++i) {
          if (!a[i].second) continue;
          const Tensor x = Tensor::copy_of(a[i].second), y = Tensor::copy_of(b[i].second);
          for (std::int64_t j = 0; j < x.numel(); ++j) ASSERT_EQ(std::isfinite(x.data<float>()[j]), std::isfinite(y.data<float>()[j])) << a[i].first << " " << j;
        }
      });
      if (HasFailure()) return;
    }
  }
}

TEST(ScoreMasks, OptionsThatCouldChangeAResultKeepAllBlocks) {
  const Tensor table = documents(300, 75);
  const ScoreProgram program = same_document(table);
  Random random(1);
  const Tensor bias = random.tensor(DType::f32, {300}), slopes = random.tensor(DType::f32, {4}, 0, 1);
  for (int variant = 0; variant < 4; ++variant) {
    SCOPED_TRACE(variant);
    AttentionCase c = case_of(random, DType::f32, sizes());
    if (variant == 0) c.options.softcap = 3;
    if (variant == 1) c.options.bias = bias;
    if (variant == 2) c.options.relative_bias.slopes = slopes;
    if (variant == 3) c.options.empty_rows = EmptyRows::uniform;
    const Compared found = compare(c, program.rule());
    EXPECT_EQ(found.skipping_pairs, found.all_pairs);
    expect_same_bits(found.skipping, found.all);
  }
}

TEST(ScoreMasks, SameBitsForAnyNumberOfThreads) {
  const ThreadCount restored;
  const Tensor table = documents(300, 75);
  const ScoreProgram program = same_document(table);
  Random random(9);
  AttentionCase c = case_of(random, DType::f32, sizes(), &find_backend("cpu"));
  c.options.score_rule = program.rule();
  for_each_instruction_set([&] {
    AttentionOutputs runs[3];
    for (int i = 0; i < 3; ++i) {
      set_num_threads(std::array{1, 2, 5}[static_cast<std::size_t>(i)]);
      runs[i] = c.make_outputs();
      c.run(runs[i]);
      expect_same_bits(runs[i], runs[0]);
    }
  });
}

// A rule that gives -infinity to all keys of some queries: these rows are empty.
TEST(ScoreMasks, RowsWithoutAPairAreEmpty) {
  Program p;
  const ScoreProgram program = p.kept(p.add(ScoreOp::less, p.add(ScoreOp::query), p.number(130)));
  for (const Backend* const backend : backends()) {
    Random random(1);
    AttentionCase c = case_of(random, DType::f32, sizes(), backend);
    const Compared found = compare(c, program.rule());
    expect_near(found.skipping, found.all, 1e-5);
    const Tensor out = Tensor::copy_of(found.skipping.out), lse = Tensor::copy_of(found.skipping.lse);
    EXPECT_EQ(out.data<float>()[out.numel() - 1], 0);
    EXPECT_EQ(lse.data<float>()[lse.numel() - 1], -static_cast<float>(kInfinity));
  }
}

}  // namespace
}  // namespace polyhead::test
