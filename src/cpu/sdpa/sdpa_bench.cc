// Measures the floating-point operations per second of the attention kernels. In the same run it measures a loop of multiply-adds in registers (`roof`), which
// no kernel can exceed. Usage: `bench_sdpa --benchmark_filter=forward/D64`. Set POLYHEAD_ISA to measure another instruction set. `decode` measures one query
// with a cache, in bytes of keys and values per second; `read` measures how fast the same number of bytes can be read.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <set>

#include "polyhead/device.h"
#include "polyhead/sdpa_derivatives.h"
#include "support/random.h"

#define POLYHEAD_ISA_ROW(name, base, needs, vendor) \
  namespace polyhead::cpu::base {           \
  double fma_roof(double seconds);          \
  }
#include "cpu/isa_rows.h"
#undef POLYHEAD_ISA_ROW

namespace polyhead {
namespace {

using test::Random;

#define POLYHEAD_ISA_ROW(name, base, needs, vendor) {#name, cpu::base::fma_roof},
constexpr std::pair<std::string_view, double (*)(double seconds)> kRoofs[] = {
#include "cpu/isa_rows.h"
};
#undef POLYHEAD_ISA_ROW

enum class Rule : std::uint8_t { plain, causal, boolean_causal, boolean_documents, documents, boolean, boolean_blocks, blocks, keys, bias, shared_bias, alibi, sink, dropout };

// A pass to measure, and its number of matrix products: each multiplies a [T,S] matrix with a matrix of width D and has 2 T S D operations. jvp and
// backward_backward are measured with tangents of all inputs.
struct Pass {
  const char* name;
  int products;
};
constexpr Pass kPasses[] = {{"forward", 2}, {"forward+backward", 7}, {"jvp", 5}, {"backward_backward", 15}};
enum PassIndex : std::uint8_t { kForward, kForwardBackward, kJvp, kBackwardBackward };

constexpr std::int64_t kBlock = 128, kBlocksPerListed = 16, kDocuments = 8, kSharedRows = 16384;

double share_of_pairs(Rule rule) {
  if (rule == Rule::causal || rule == Rule::boolean_causal || rule == Rule::alibi) return 0.5;
  if (rule == Rule::blocks || rule == Rule::boolean_blocks) return 1.0 / kBlocksPerListed;
  return rule == Rule::documents || rule == Rule::boolean_documents ? 1.0 / kDocuments : 1;
}

void run(benchmark::State& state, Rule rule, int pass, DType dtype) {
  const std::int64_t width = state.range(0), length = state.range(1), heads = rule == Rule::shared_bias ? 4 : 8;
  // Many sequences share the bias, as in attention along the rows of a pair tensor.
  const std::int64_t sequences = rule == Rule::shared_bias ? kSharedRows / length : 1;
  set_num_threads(static_cast<int>(state.range(2)));
  Random random(1);
  const Shape shape{sequences, heads, length, width};
  const Tensor q = random.tensor(dtype, shape), k = random.tensor(dtype, shape), v = random.tensor(dtype, shape), d_out = random.tensor(dtype, shape);
  Tensor out(dtype, shape), lse(DType::f32, {sequences, heads, length}), d_q(dtype, shape), d_k(dtype, shape), d_v(dtype, shape), bias, d_bias, attend;
  SdpaOptions options;
  if (rule == Rule::causal) options.mask.causal = Causal::top_left();
  if (rule == Rule::dropout) options.dropout = {.p = 0.1, .seed = 3};
  if (rule == Rule::boolean) options.mask.attend = attend = random.tensor(DType::boolean, {length, length});
  if (rule == Rule::boolean_causal || rule == Rule::boolean_documents) {
    options.mask.attend = attend = Tensor(DType::boolean, {length, length});
    for (std::int64_t t = 0; t < length; ++t) {
      bool* const row = attend.data<bool>() + t * length;
      const std::int64_t size = length / kDocuments;
      rule == Rule::boolean_causal ? std::fill_n(row, t + 1, true) : std::fill_n(row + t / size * size, size, true);
    }
  }
  if (rule == Rule::blocks || rule == Rule::boolean_blocks) {
    // Each block of queries lists a random sixteenth of the blocks of keys, but at least one block.
    const std::int64_t blocks = length / kBlock, listed = std::max<std::int64_t>(1, blocks / kBlocksPerListed);
    Tensor lists(DType::i32, {heads, blocks, listed});
    if (rule == Rule::boolean_blocks) attend = Tensor(DType::boolean, {heads, length, length});
    for (std::int64_t row = 0; row < heads * blocks; ++row) {
      std::set<std::int64_t> chosen;
      while (std::ssize(chosen) < listed) chosen.insert(random.integer(0, blocks - 1));
      auto* list = lists.data<std::int32_t>() + row * listed;
      for (const std::int64_t block : chosen) {
        *list++ = static_cast<std::int32_t>(block);
        for (std::int64_t t = row * kBlock; attend && t < (row + 1) * kBlock; ++t) std::fill_n(attend.data<bool>() + t * length + block * kBlock, kBlock, true);
      }
    }
    if (rule == Rule::blocks) attend = std::move(lists);
    (rule == Rule::blocks ? options.mask.blocks.lists : options.mask.attend) = attend;
  }
  if (rule == Rule::documents) {
    attend = Tensor(DType::i64, {kDocuments + 1});
    for (std::int64_t d = 0; d <= kDocuments; ++d) attend.data<std::int64_t>()[d] = d * length / kDocuments;
    options.mask.query_offsets = attend;
  }
  if (rule == Rule::keys) options.mask.attend_keys = attend = random.tensor(DType::boolean, {length});
  Tensor slopes, d_slopes;
  if (rule == Rule::alibi) {
    slopes = alibi_slopes(heads), d_slopes = slopes;
    options.mask.causal = Causal::top_left(), options.relative_bias.slopes = slopes;
  }
  Tensor sink, d_sink;
  if (rule == Rule::sink) options.sink = sink = random.tensor(DType::f32, {heads}), d_sink = sink;
  if (rule == Rule::bias || rule == Rule::shared_bias) {
    options.bias = bias = random.tensor(dtype, {1, heads, length, length});
    d_bias = Tensor(dtype, bias.shape());
  }
  const Tensor q_tangent = random.tensor(dtype, shape), k_tangent = random.tensor(dtype, shape), v_tangent = random.tensor(dtype, shape);
  const Tensor bias_tangent = bias ? random.tensor(dtype, bias.shape()) : Tensor();
  Tensor out_tangent(dtype, shape);
  const SdpaTangents tangents{.q = q_tangent, .k = k_tangent, .v = v_tangent, .bias = bias_tangent};
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
  for (auto _ : state) {
    if (pass == kForward || pass == kForwardBackward) sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, options);
    if (pass == kForwardBackward) {
      sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_bias = d_bias,
                     .d_relative_bias = d_slopes, .d_sink = d_sink}, options);
    }
    if (pass == kJvp) sdpa_jvp({.q = q, .k = k, .v = v, .out = out, .lse = lse, .tangents = tangents, .out_tangent = out_tangent}, options);
    if (pass == kBackwardBackward) {
      sdpa_backward_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_gradients = tangents, .d_q = d_q, .d_k = d_k, .d_v = d_v,
                              .d_d_out = out_tangent, .d_bias = d_bias, .d_relative_bias = d_slopes, .d_sink = d_sink}, options);
    }
  }
  // Only pairs that the mask allows count; with a causal mask these are half of the pairs.
  const double work = 2.0 * kPasses[pass].products * static_cast<double>(sequences * heads * length * length * width) * share_of_pairs(rule);
  state.counters["flop/s"] = benchmark::Counter(work, benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(std::string(kernel_instruction_set()));
}

constexpr std::int64_t kDecodeHeads = 32, kDecodeKeyHeads = 8, kDecodeWidth = 128;

std::int64_t cache_bytes(std::int64_t batch, std::int64_t keys, DType storage) {
  return 2 * batch * kDecodeKeyHeads * keys * kDecodeWidth * static_cast<std::int64_t>(info(storage).size);
}

// Measures one query of each sequence with a cache of keys, for 32 query heads and 8 key/value heads.
void decode(benchmark::State& state, DType storage) {
  const std::int64_t batch = state.range(0), keys = state.range(1);
  set_num_threads(static_cast<int>(state.range(2)));
  Random random(1);
  const Shape cache{batch, kDecodeKeyHeads, keys, kDecodeWidth};
  const double magnitude = storage == DType::i8 ? 127 : 1;
  const Tensor q = random.tensor(DType::f32, {batch, kDecodeHeads, 1, kDecodeWidth}), k = random.tensor(storage, cache, -magnitude, magnitude),
               v = random.tensor(storage, cache, -magnitude, magnitude), scale = random.tensor(DType::f32, cache.first(3), 0.001, 0.01);
  const ConstTensorView scales = storage == DType::i8 ? ConstTensorView(scale) : ConstTensorView();
  Tensor out(DType::f32, q.shape());
  for (auto _ : state) sdpa_forward({.q = q, .k = k, .v = v, .out = out, .k_scale = scales, .v_scale = scales});
  state.counters["bytes/s"] = benchmark::Counter(static_cast<double>(cache_bytes(batch, keys, storage)), benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(std::string(kernel_instruction_set()));
}

// Measures the time to read as many bytes as decode() reads. It sums them as 64-bit words on one thread.
void read(benchmark::State& state) {
  const std::vector<std::uint64_t> words(static_cast<std::size_t>(cache_bytes(state.range(0), state.range(1), DType::f32)) / 8, 1);
  for (auto _ : state) {
    std::uint64_t sums[16] = {};
    for (std::size_t i = 0; i < words.size(); i += 16) {
      for (std::size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
    }
    benchmark::DoNotOptimize(sums);
  }
  state.counters["bytes/s"] = benchmark::Counter(static_cast<double>(words.size() * 8), benchmark::Counter::kIsIterationInvariantRate);
}

// Measures independent multiplications and additions in registers (bench/peer/roof.cc), whose speed no kernel can exceed.
void roof(benchmark::State& state) {
  double best = 0;
  for (auto _ : state) {
    for (const auto& [name, measure] : kRoofs) {
      if (name == kernel_instruction_set()) best = std::max(best, measure(0.05) * 1e9);
    }
  }
  state.counters["flop/s"] = best;
  state.SetLabel(std::string(kernel_instruction_set()));
}

void register_all() {
  benchmark::RegisterBenchmark("roof", roof);
  const auto measure = [](const std::string& title, std::int64_t batch, std::int64_t keys, std::int64_t threads, auto run) {
    const std::string name = title + "/B" + std::to_string(batch) + "/S" + std::to_string(keys) + "/threads" + std::to_string(threads);
    benchmark::RegisterBenchmark(name.c_str(), run)->Args({batch, keys, threads})->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  const std::pair<std::int64_t, std::int64_t> caches[] = {{1, 1024}, {1, 8192}, {8, 4096}};
  for (const auto& [batch, keys] : caches) {
    measure("read", batch, keys, 1, read);
    for (const DType storage : {DType::f32, DType::bf16, DType::f16, DType::i8}) {
      for (const std::int64_t threads : {1, 2}) {
        measure("decode/" + std::string(info(storage).name), batch, keys, threads, [storage](benchmark::State& state) { decode(state, storage); });
      }
    }
  }
  const std::pair<const char*, Rule> rules[] = {{"plain", Rule::plain}, {"causal", Rule::causal},
                                                {"boolean_causal", Rule::boolean_causal}, {"boolean_documents", Rule::boolean_documents},
                                                {"documents", Rule::documents}, {"boolean", Rule::boolean}, {"boolean_blocks", Rule::boolean_blocks}, {"blocks", Rule::blocks}, {"keys", Rule::keys},
                                                {"bias", Rule::bias}, {"shared_bias", Rule::shared_bias}, {"alibi", Rule::alibi}, {"sink", Rule::sink}, {"dropout", Rule::dropout}};
  for (int pass = 0; pass < 4; ++pass) {
    for (const auto& [name, rule] : rules) {
      for (const std::int64_t width : {32, 64, 80, 128}) {
        for (const std::int64_t length : {64, 128, 256, 512, 1024, 2048, 4096}) {
          const bool wanted = rule == Rule::plain         ? true
                              : rule == Rule::shared_bias ? width == 32 && (length == 128 || length == 256 || length == 1024)
                              : rule == Rule::blocks || rule == Rule::boolean_blocks ? width == 64 && length >= 2048
                                                          : width == 64 && (length == 512 || length == 2048);
          if (!wanted) continue;
          for (const std::int64_t threads : {1, 2}) {
            for (const DType dtype : {DType::f32, DType::bf16}) {
              const std::string title = std::string(kPasses[pass].name) + (dtype == DType::bf16 ? "/bf16_" : "/") + name + "/D" + std::to_string(width) + "/S" +
                                        std::to_string(length) + "/threads" + std::to_string(threads);
              benchmark::RegisterBenchmark(title.c_str(), [rule = rule, pass, dtype](benchmark::State& state) { run(state, rule, pass, dtype); })
                  ->Args({width, length, threads})
                  ->UseRealTime()
                  ->Unit(benchmark::kMicrosecond);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead

int main(int argc, char** argv) {
  polyhead::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
