// Compares the time of a score rule with the time of the built-in option that computes the same scores. Both run in turn on one thread. The program prints
// the least times of forward and backward in float32.
//   bench_score_rule [T]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "polyhead/score_function.h"
#include "polyhead/score_program.h"
#include "polyhead/sdpa.h"
#include "polyhead/tensor.h"

using namespace polyhead;

namespace {

using Code = std::vector<ScoreInstruction>;
ScoreInstruction op(ScoreOp which, std::int32_t a = -1, std::int32_t b = -1, std::int32_t c = -1) { return {.op = which, .a = a, .b = b, .c = c}; }
ScoreInstruction number(double value) { return {.op = ScoreOp::constant, .value = value}; }

struct Trial {
  Tensor q, k, v, d_out, out, lse, d_q, d_k, d_v;
  explicit Trial(std::int64_t length) {
    const Shape shape{1, 4, length, 64};
    for (Tensor* x : {&q, &k, &v, &d_out, &out, &d_q, &d_k, &d_v}) *x = Tensor(DType::f32, shape);
    lse = Tensor(DType::f32, {1, 4, length});
    std::uint32_t state = 1;
    for (Tensor* x : {&q, &k, &v, &d_out}) {
      for (std::int64_t i = 0; i < x->numel(); ++i) state = state * 1664525 + 1013904223, x->data<float>()[i] = static_cast<float>(state >> 8) * 0x1p-23F - 1;
    }
  }
  void forward(const SdpaOptions& o) { sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, o); }
  void backward(const SdpaOptions& o, TensorView d_relative = {}, TensorView d_rule = {}) {
    sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_relative_bias = d_relative, .d_score_rule = d_rule}, o);
  }
};

// Returns the processor time of f() in the calling thread, in seconds. Other programs on the machine disturb it less than elapsed time.
double seconds(const std::function<void()>& f) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  f();
  return now() - start;
}

// Runs the calls in turn, `rounds` times, and returns the least time of each call.
std::vector<double> least_times(const std::vector<std::function<void()>>& calls, int rounds) {
  std::vector<double> least(calls.size(), 1e9);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) least[i] = std::min(least[i], seconds(calls[i]));
  }
  return least;
}

}  // namespace

int main(int count, char** arguments) {
  const std::int64_t length = count > 1 ? std::atoll(arguments[1]) : 1024;
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 15;
  Trial trial(length);
  LimitedThreads one(1);
  const SdpaOptions plain{.executor = &one};
  const Tensor slopes = alibi_slopes(4);
  Tensor table(DType::f32, {4, 2 * length - 1}), distances(DType::f32, {1, 1, length, length});
  for (std::int64_t i = 0; i < table.numel(); ++i) table.data<float>()[i] = static_cast<float>(i % 7) * 0.1F;
  const float* const slope = slopes.data<float>();
  const float* const values = table.data<float>();
  const auto one_of = [](auto score, auto, auto, const ScoreTile&) { return score * 0 + 1; };
  const auto cap = score_rule([](auto score, auto, auto) { return score::tanh(score * (1 / 30.F)) * 30.F; },
                              [](auto score, auto, auto) {
                                const auto t = score::tanh(score * (1 / 30.F));
                                return 1.F - t * t;
                              });
  const auto alibi = score_rule([&](auto score, auto q, auto k, const ScoreTile& tile) { return score - score::abs(k - q) * slope[tile.head]; }, one_of);
  const auto relative = score_rule(
      [&](auto score, auto q, auto k, const ScoreTile& tile) {
        using T = score::Element<decltype(score)>;
        const float* const from = values + tile.head * (2 * length - 1) + length - 1 + static_cast<std::int64_t>(k[0] - q[0]);
        for (int i = 0; i < static_cast<int>(sizeof(score) / sizeof(T)); ++i) score[i] += static_cast<T>(from[i]);
        return score;
      },
      one_of);
  const auto documents = score_rule(
      [](auto score, auto q, auto k) {
        using V = decltype(score);
        using T = score::Element<V>;
        const T first = static_cast<T>(static_cast<std::int64_t>(q[0]) / 256 * 256);
        return ((k >= first) & (k < first + 256)) ? score : V{} - static_cast<T>(__builtin_inf());
      },
      [](auto score, auto, auto) { return score * 0 + 1; });
  const auto distance = score_rule([](auto score, auto q, auto k) { return score + score::tanh((k - q) * 0.03125F); }, [](auto score, auto, auto) { return score * 0 + 1; });
  for (std::int64_t i = 0; i < distances.numel(); ++i) distances.data<float>()[i] = std::tanh(static_cast<float>(i % length - i / length) / 32);

  using enum ScoreOp;
  const auto program = [&](Code code, std::int32_t result, std::int32_t slope_register, std::vector<ScoreTable> tables = {}) {
    return ScoreProgram({.instructions = std::move(code), .tables = std::move(tables), .result = result, .slope = slope_register, .gradients = {}, .gradient_count = 0});
  };
  const ScoreProgram programs[] = {
      program({op(score), number(1 / 30.), op(multiply, 0, 1), op(tanh, 2), number(30), op(multiply, 3, 4), number(1), op(multiply, 3, 3), op(subtract, 6, 7)}, 5, 8),
      program({op(score), op(head), op(query), op(key), op(subtract, 3, 2), op(absolute, 4), {.op = load, .table = 0, .a = 1}, op(multiply, 5, 6), op(subtract, 0, 7), number(1)}, 8, 9, {{slopes}}),
      program({op(score), op(head), op(query), op(key), op(subtract, 3, 2), number(static_cast<double>(length - 1)), op(add, 4, 5), {.op = load, .table = 0, .a = 1, .b = 6}, op(add, 0, 7), number(1)}, 8, 9,
              {{table}}),
      program({op(score), op(query), op(key), number(256), op(divide, 1, 3), op(floor, 4), op(divide, 2, 3), op(floor, 6), op(equal, 5, 7), number(-__builtin_inf()), op(select, 8, 0, 9), number(1), number(0),
               op(select, 8, 11, 12)},
              10, 13),
      program({op(score), op(query), op(key), op(subtract, 2, 1), number(0.03125), op(multiply, 3, 4), op(tanh, 5), op(add, 0, 6), number(1)}, 7, 8)};
  Tensor offsets(DType::i64, {length / 256 + 1});
  for (std::int64_t i = 0; i < offsets.numel(); ++i) offsets.data<std::int64_t>()[i] = 256 * i;
  Tensor attend(DType::boolean, {1, 1, length, length});
  for (std::int64_t i = 0; i < attend.numel(); ++i) attend.data<bool>()[i] = i / length / 256 == i % length / 256;
  const Tensor shown = Tensor::copy_of(table);
  const ConstTensorView view(shown.data<float>() + length - 1, DType::f32, {1, 4, length, length}, {0, 2 * length - 1, -1, 1});

  struct Row {
    const char* name;
    SdpaOptions built_in;
    ScoreRule rule, program;
  };
  const auto with = [&](auto change) {
    SdpaOptions o = plain;
    change(o);
    return o;
  };
  const Row rows[] = {{"softcap", with([](SdpaOptions& o) { o.softcap = 30; }), cap, programs[0].rule()},
                      {"ALiBi", with([&](SdpaOptions& o) { o.relative_bias.slopes = slopes; }), alibi, programs[1].rule()},
                      {"relative table", with([&](SdpaOptions& o) { o.bias = view; }), relative, programs[2].rule()},
                      {"documents, as attend", with([&](SdpaOptions& o) { o.mask.attend = attend; }), documents, programs[3].rule()},
                      {"tanh of distance, as bias", with([&](SdpaOptions& o) { o.bias = distances; }), distance, programs[4].rule()}};
  std::printf("T = S = %lld, 4 heads of 64, float32, one thread; ms of forward and backward\n", static_cast<long long>(length));
  for (const Row& row : rows) {
    const SdpaOptions ruled = with([&](SdpaOptions& o) { o.score_rule = row.rule; }), interpreted = with([&](SdpaOptions& o) { o.score_rule = row.program; });
    const auto forward = least_times({[&] { trial.forward(plain); }, [&] { trial.forward(row.built_in); }, [&] { trial.forward(ruled); }, [&] { trial.forward(interpreted); }}, rounds);
    trial.forward(row.built_in);
    const auto backward = least_times({[&] { trial.backward(plain); }, [&] { trial.backward(row.built_in); }, [&] { trial.backward(ruled); }, [&] { trial.backward(interpreted); }}, rounds);
    std::printf("%-26s forward: plain %.2f built in %.2f rule %.2f (%.2f) interpreted %.2f (%.2f); backward: plain %.2f built in %.2f rule %.2f (%.2f) interpreted %.2f (%.2f)\n", row.name, forward[0] * 1e3,
                forward[1] * 1e3, forward[2] * 1e3, forward[2] / forward[1], forward[3] * 1e3, forward[3] / forward[1], backward[0] * 1e3, backward[1] * 1e3, backward[2] * 1e3, backward[2] / backward[1],
                backward[3] * 1e3, backward[3] / backward[1]);
  }
}
