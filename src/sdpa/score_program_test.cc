// Compares the results of score programs (polyhead/score_program.h) with the same formulas in C++.
#include "polyhead/score_program.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>
#include <string>
#include <thread>

#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

ScoreInstruction op(ScoreOp which, std::int32_t a = -1, std::int32_t b = -1, std::int32_t c = -1) { return {.op = which, .a = a, .b = b, .c = c}; }
ScoreInstruction number(double value) { return {.op = ScoreOp::constant, .value = value}; }
ScoreInstruction load(std::int32_t table, std::int32_t a, std::int32_t b = -1) { return {.op = ScoreOp::load, .table = table, .a = a, .b = b}; }

// Returns the new scores of one row of scores.
std::vector<double> computed(const ScoreProgramCode& code, std::vector<double> scores, bool float64, std::int64_t query = 2, std::int64_t first_key = 5) {
  const ScoreProgram program(code);
  const ScoreRule rule = program.rule();
  ScoreTile tile;
  std::vector<float> narrow(scores.begin(), scores.end());
  tile.scores = float64 ? static_cast<void*>(scores.data()) : narrow.data(), tile.float64 = float64;
  tile.rows = 1, tile.keys = tile.row_stride = static_cast<std::int64_t>(scores.size());
  tile.first_query = query, tile.first_key = first_key, tile.batch = 1, tile.head = 3;
  rule.forward(tile, rule.data);
  return float64 ? scores : std::vector<double>(narrow.begin(), narrow.end());
}

TEST(ScorePrograms, EveryOperationAgreesWithTheCFunction) {
  const std::vector<double> xs{-90, -3.5, -1, -0.25, 0, 0.25, 1, 2.5, 3, 40, 88, 0.1, 0.2, 0.3, 1e-3, -1e-3, 5.999, -6.001, 7};
  using F = double (*)(double, double);
  const std::pair<ScoreOp, F> ops[] = {{ScoreOp::add, [](double x, double k) { return x + k; }},
                                       {ScoreOp::subtract, [](double x, double k) { return x - k; }},
                                       {ScoreOp::multiply, [](double x, double k) { return x * k; }},
                                       {ScoreOp::divide, [](double x, double k) { return x / k; }},
                                       {ScoreOp::maximum, [](double x, double k) { return std::max(x, k); }},
                                       {ScoreOp::minimum, [](double x, double k) { return std::min(x, k); }},
                                       {ScoreOp::less, [](double x, double k) { return x < k ? 1.0 : 0.0; }},
                                       {ScoreOp::less_equal, [](double x, double k) { return x <= k ? 1.0 : 0.0; }},
                                       {ScoreOp::equal, [](double x, double k) { return x == k ? 1.0 : 0.0; }},
                                       {ScoreOp::logical_and, [](double x, double k) { return x != 0 && k != 0 ? 1.0 : 0.0; }},
                                       {ScoreOp::logical_or, [](double x, double k) { return x != 0 || k != 0 ? 1.0 : 0.0; }},
                                       {ScoreOp::negate, [](double x, double) { return -x; }},
                                       {ScoreOp::absolute, [](double x, double) { return std::abs(x); }},
                                       {ScoreOp::square_root, [](double x, double) { return std::sqrt(x); }},
                                       {ScoreOp::exp, [](double x, double) { return std::exp(x); }},
                                       {ScoreOp::log, [](double x, double) { return std::log(x); }},
                                       {ScoreOp::tanh, [](double x, double) { return std::tanh(x); }},
                                       {ScoreOp::sigmoid, [](double x, double) { return 1 / (1 + std::exp(-x)); }},
                                       {ScoreOp::floor, [](double x, double) { return std::floor(x); }},
                                       {ScoreOp::logical_not, [](double x, double) { return x == 0 ? 1.0 : 0.0; }},
                                       {ScoreOp::select, [](double x, double k) { return x != 0 ? k : 2.0; }},
                                       {ScoreOp::sine, [](double x, double) { return std::sin(x); }},
                                       {ScoreOp::cosine, [](double x, double) { return std::cos(x); }},
                                       {ScoreOp::arctangent, [](double x, double) { return std::atan(x); }},
                                       {ScoreOp::error_function, [](double x, double) { return std::erf(x); }},
                                       {ScoreOp::complementary_error, [](double x, double) { return std::erfc(x); }},
                                       {ScoreOp::round, [](double x, double) { return std::nearbyint(x); }}};
  std::set<ScoreOp> computed_ops{ScoreOp::constant, ScoreOp::score, ScoreOp::batch, ScoreOp::head, ScoreOp::query, ScoreOp::key, ScoreOp::load};
  for (const auto& [which, f] : ops) computed_ops.insert(which);
  EXPECT_EQ(computed_ops.size(), kScoreOps);
  for (const bool float64 : {true, false}) {
    for (const auto& [which, f] : ops) {
      for_each_instruction_set([&, which = which, f = f] {
        SCOPED_TRACE(static_cast<int>(which));
        const std::vector<double> found = computed({.instructions = {op(ScoreOp::score), op(ScoreOp::key), op(ScoreOp::query), op(which, 0, 1, 2)}, .result = 3}, xs, float64);
        for (std::size_t i = 0; i < xs.size(); ++i) {
          const double x = float64 ? xs[i] : static_cast<double>(static_cast<float>(xs[i])), wanted = f(x, static_cast<double>(5 + i));
          if (std::isnan(wanted)) {
            EXPECT_TRUE(std::isnan(found[i])) << x;
          } else if (std::isinf(wanted)) {
            EXPECT_EQ(found[i], wanted) << x;
          } else {
            EXPECT_NEAR(found[i], wanted, (float64 ? 1e-14 : 1e-6) * std::max(1e-30, std::abs(wanted)) + (float64 ? 1e-300 : 1e-37)) << x;
          }
        }
      });
    }
  }
}

// Tests arguments of every size, also those for which a naive formula cancels, overflows or loses all digits.
TEST(ScorePrograms, SpecialFunctionsKeepTheirDigits) {
  std::vector<double> xs{0, -0.0, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(),
                         std::numbers::pi, 22, 355, 710, 1e6 + 0.5, 1.0471975e6, 1.7e6, 1e12, 1e22, 5.9, 6.0, 13, 26.5, 27.2, 40};
  for (double x = 1e-12; x < 60; x *= 1.0173) xs.push_back(x), xs.push_back(-x);
  using F = double (*)(double);
  const std::pair<ScoreOp, F> ops[] = {{ScoreOp::sine, [](double x) { return std::sin(x); }}, {ScoreOp::cosine, [](double x) { return std::cos(x); }},
                                       {ScoreOp::arctangent, [](double x) { return std::atan(x); }}, {ScoreOp::error_function, [](double x) { return std::erf(x); }},
                                       {ScoreOp::complementary_error, [](double x) { return std::erfc(x); }}, {ScoreOp::round, [](double x) { return std::nearbyint(x); }}};
  for (const bool float64 : {true, false}) {
    for (const auto& [which, f] : ops) {
      for_each_instruction_set([&, which = which, f = f] {
        SCOPED_TRACE(testing::Message() << static_cast<int>(which) << (float64 ? ", float64" : ", float32"));
        const std::vector<double> found = computed({.instructions = {op(ScoreOp::score), op(which, 0)}, .result = 1}, xs, float64);
        for (std::size_t i = 0; i < xs.size(); ++i) {
          const double x = float64 ? xs[i] : static_cast<double>(static_cast<float>(xs[i])), wanted = f(x);
          if (std::isnan(wanted)) {
            EXPECT_TRUE(std::isnan(found[i])) << x;
          } else if (std::isinf(wanted)) {
            EXPECT_EQ(found[i], wanted) << x;
          } else {
            EXPECT_NEAR(found[i], wanted, (float64 ? 2e-15 : 1.2e-7) * std::abs(wanted) + (float64 ? 1e-307 : 1e-38)) << x;
          }
        }
      });
    }
  }
}

int calls_of_run = 0;

// A compiled function for provide_score_run(): (x + s) * (x - s), where x is one number for each pair and s is one number. No other test uses these instructions,
// because a provided function stays until the process ends.
void run_of_float(const void* const* inputs, void* const* outputs, std::int64_t vectors) {
  ++calls_of_run;
  for (std::int64_t i = 0; i < vectors * 16; ++i) {
    const float x = static_cast<const float*>(inputs[0])[i], s = *static_cast<const float*>(inputs[1]);
    const volatile float sum = x + s, difference = x - s;  // volatile, so that the compiler does not fuse a multiply-add
    static_cast<float*>(outputs[0])[i] = sum * difference;
  }
}

// A function given to provide_score_run() has the bits of the interpreter, even if the number of keys is not a multiple of the vector size. It is called only for
// scores of the type (float32 or float64) with which the text given to provide_score_run() begins.
TEST(ScorePrograms, RunsCallTheProvidedFunction) {
  const ScoreProgramCode code{.instructions = {op(ScoreOp::score), number(0.375), op(ScoreOp::add, 0, 1), op(ScoreOp::subtract, 0, 1), op(ScoreOp::multiply, 2, 3)}, .result = 4};
  const std::string text = "float32 vs; add 0 1; subtract 0 1; multiply 2 3; 4";
  EXPECT_THAT(ScoreProgram(code).runs(false), testing::ElementsAre(text));
  if (ScoreProgram(code).interpreted_runs(false).empty()) GTEST_SKIP() << "a function stays for the life of the process, so a repetition has nothing to compare";
  EXPECT_THAT(ScoreProgram(code).interpreted_runs(true), testing::ElementsAre("float64" + text.substr(7)));
  std::vector<std::vector<double>> interpreted;
  std::vector<double> scores(1100);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = std::sin(static_cast<double>(i)) * 3;
  const std::size_t sizes[] = {1, 15, 16, 17, 512, 513, 544, 1100};  // a range has 512 keys
  for (const std::size_t size : sizes) interpreted.push_back(computed(code, std::vector<double>(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(size)), false));
  EXPECT_EQ(calls_of_run, 0);
  EXPECT_TRUE(provide_score_run(text, run_of_float));
  EXPECT_FALSE(provide_score_run(text, run_of_float));
  EXPECT_THAT(ScoreProgram(code).interpreted_runs(false), testing::IsEmpty());
  for_each_instruction_set([&] {
    calls_of_run = 0;
    for (std::size_t i = 0; i < std::size(sizes); ++i) EXPECT_EQ(computed(code, std::vector<double>(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(sizes[i])), false), interpreted[i]);
    EXPECT_EQ(calls_of_run, 1 + 1 + 1 + 1 + 1 + 2 + 2 + 3);
    computed(code, scores, true);
    EXPECT_EQ(calls_of_run, 12);
  });
}

// If several threads provide a function for the same text at once, exactly one of them succeeds.
TEST(ScorePrograms, OnlyOneOfSeveralCallersProvidesAFunction) {
  static int repetitions = 0;
  ++repetitions;
  for (int i = 0; i < 20; ++i) {
    const std::string text = "a text of no program, " + std::to_string(repetitions) + " " + std::to_string(i);
    std::atomic<int> waiting = 8, provided = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        --waiting;
        while (waiting.load() > 0) {}
        provided += provide_score_run(text, run_of_float) ? 1 : 0;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(provided.load(), 1) << text;
  }
}

TEST(ScorePrograms, AMissingFunctionIsRefused) {
  EXPECT_EQ(error_message([] { provide_score_run("float32 vv; add 0 1; multiply 0 2; 3", nullptr); }), "provide_score_run: function is nullptr; it must compute the run");
}

// What depends only on the difference of key and query is computed once for all rows of a tile. Tests that each row reads the numbers of its own query.
TEST(ScorePrograms, DistancesAreThoseOfEachRow) {
  for (const bool reversed : {false, true}) {
    const ScoreProgram program({.instructions = {op(ScoreOp::score), op(ScoreOp::query), op(ScoreOp::key), reversed ? op(ScoreOp::subtract, 1, 2) : op(ScoreOp::subtract, 2, 1), number(0.25), op(ScoreOp::multiply, 3, 4),
                                                 op(ScoreOp::tanh, 5), op(ScoreOp::add, 0, 6)},
                                .result = 7});
    const ScoreRule rule = program.rule();
    for (const std::int64_t rows : {1, 12, 16, 17, 35}) {
      for (const std::int64_t keys : {1, 16, 131, 256, 259, 600}) {
        std::vector<double> scores(static_cast<std::size_t>(rows * (keys + 3)), 0.5);
        ScoreTile tile{.scores = scores.data(), .float64 = true, .rows = rows, .keys = keys, .row_stride = keys + 3, .first_query = 7, .first_key = 20};
        rule.forward(tile, rule.data);
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t j = 0; j < keys + (i + 1 < rows ? 3 : 0); ++j) {
            const double distance = static_cast<double>(20 + j - 7 - i) * (reversed ? -1 : 1), wanted = j < keys ? 0.5 + std::tanh(distance * 0.25) : 0.5;
            ASSERT_NEAR(scores[static_cast<std::size_t>(i * (keys + 3) + j)], wanted, 1e-14) << rows << " " << keys << " " << i << " " << j;
          }
        }
      }
    }
  }
}

TEST(ScorePrograms, TablesAreReadInPlace) {
  const Tensor table = Tensor::of<float>({4, 6}, {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 30, 31, 32, 33, 34, 35});
  // The program computes table[h, k - 7] for h = 3 and keys from 5 on. The first index is -2, and the last index lies outside of the table.
  const ScoreProgramCode code{.instructions = {op(ScoreOp::head), op(ScoreOp::key), number(7), op(ScoreOp::subtract, 1, 2), load(0, 0, 3)}, .tables = {{table}}, .result = 4};
  const std::vector<double> found = computed(code, std::vector<double>(9), true), wanted{34, 35, 30, 31, 32, 33, 34, 35};
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(found[i], wanted[i]);
  EXPECT_TRUE(std::isnan(found[8]));
  ScoreProgramCode transposed = code;
  transposed.tables[0].values = ConstTensorView(table).transpose(0, 1);
  transposed.instructions[4] = load(0, 3, 0);
  EXPECT_EQ(computed(transposed, std::vector<double>(8), false), std::vector<double>({34, 35, 30, 31, 32, 33, 34, 35}));
}

TEST(ScorePrograms, GradientsOfTablesAreThoseOfABias) {
  Random random(1);
  AttentionCase c = case_of(random, DType::f32, {.lead = {2}, .kv_heads = 2, .group = 2, .queries = 30, .keys = 40, .qk_width = 9, .v_width = 6});
  const Tensor table = random.tensor(DType::f32, {4, 69});
  // The program computes score + table[h, k - q + 29].
  ScoreProgramCode code{.instructions = {op(ScoreOp::score), op(ScoreOp::head), op(ScoreOp::query), op(ScoreOp::key), op(ScoreOp::subtract, 3, 2), number(29), op(ScoreOp::add, 4, 5), load(0, 1, 6),
                                         op(ScoreOp::add, 0, 7), number(1)},
                        .tables = {{table}},
                        .result = 8,
                        .slope = 9,
                        .gradients = {{.load = 7, .derivative = 9, .first = 0, .strides = {0, 1, 0, 0}}},
                        .gradient_count = 69};
  const ScoreProgram program(code);
  AttentionCase biased = case_of(random, DType::f32, c.sizes);
  biased.q = c.q, biased.k = c.k, biased.v = c.v, biased.d_out = c.d_out;
  const ConstTensorView view(table.data<float>() + 29, DType::f32, {4, 30, 40}, {69, -1, 1});
  biased.options.bias = view;
  Tensor d_table(DType::f32, table.shape());
  for (const Backend* const backend : backends()) {
    c.options.backend = biased.options.backend = backend;
    c.options.score_rule = program.rule();
    const AttentionOutputs a = c.make_forward_outputs(), b = biased.make_forward_outputs();
    c.forward(a), biased.forward(b);
    EXPECT_TRUE(near(a.out, Tensor::copy_of(b.out), 1e-5));
    Tensor sums(DType::f64, table.shape());
    const TensorView d_bias(d_table.data<float>() + 29, DType::f32, {4, 30, 40}, {69, -1, 1});
    sdpa_backward({.q = c.q, .k = c.k, .v = c.v, .out = a.out, .lse = a.lse, .d_out = c.d_out, .d_score_rule = sums}, c.options);
    sdpa_backward({.q = c.q, .k = c.k, .v = c.v, .out = b.out, .lse = b.lse, .d_out = c.d_out, .d_bias = d_bias}, biased.options);
    EXPECT_TRUE(near(sums, Tensor::copy_of(d_table), 1e-4)) << backend_name(*backend);
  }
}

TEST(ScorePrograms, FaultsAreNamed) {
  const auto message = [](const ScoreProgramCode& code) { return error_message([&] { const ScoreProgram program(code); }); };
  EXPECT_THAT(message({.instructions = {op(ScoreOp::exp, 0)}, .result = 0}), testing::HasSubstr("instruction 0 reads register 0"));
  EXPECT_THAT(message({.instructions = {op(ScoreOp::score)}, .result = 1}), testing::HasSubstr("the result or the slope is not the index of an instruction"));
  EXPECT_THAT(message({.instructions = {load(0, 0)}, .result = 0}), testing::HasSubstr("instruction 0 loads from no table"));
  const Tensor table(DType::f32, {4});
  EXPECT_THAT(message({.instructions = {op(ScoreOp::key), load(0, 0)}, .tables = {{table}}, .result = 1, .slope = 0, .gradients = {{.load = 1, .derivative = 0, .strides = {1}}}, .gradient_count = 3}),
              testing::HasSubstr("a gradient reaches beyond its 3 sums"));
  EXPECT_THAT(message({.instructions = {op(ScoreOp::key), load(0, 0)}, .tables = {{table}}, .result = 1, .slope = 0, .gradients = {{.load = 1, .derivative = 0, .strides = {std::int64_t{1} << 62}}}, .gradient_count = 1}),
              testing::HasSubstr("a gradient reaches beyond its 1 sums"));
}

}  // namespace
}  // namespace polyhead::test
