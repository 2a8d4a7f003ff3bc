// How much of the calling thread's stack the library uses (docs/promises.md).
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "polyhead/maps.h"
#include "polyhead/nn/encoder_layer.h"
#include "polyhead/nn/optimizer.h"
#include "polyhead/sdpa_derivatives.h"
#include "support/kernel_case.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::Random;

// The promise is that of optimised code. Without optimisation every temporary has a place of its own, and sanitizers add more.
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr std::size_t kPromised = 64 << 10;
#else
constexpr std::size_t kPromised = 1 << 20;
#endif

// Bytes of its stack that a thread uses which calls f: those that no longer hold what was painted there.
std::size_t stack_of(const std::function<void()>& f) {
  constexpr std::size_t kSize = 4 << 20;
  constexpr unsigned char kPaint = 0xa5;
  static std::vector<unsigned char> memory(kSize + 4096);
  unsigned char* const first = memory.data() + (4096 - reinterpret_cast<std::uintptr_t>(memory.data()) % 4096) % 4096;
  std::memset(first, kPaint, kSize);
  pthread_attr_t attributes;
  EXPECT_EQ(pthread_attr_init(&attributes), 0);
  EXPECT_EQ(pthread_attr_setstack(&attributes, first, kSize), 0);
  pthread_t thread;
  const auto run = [](void* given) -> void* {
    (*static_cast<const std::function<void()>*>(given))();
    return nullptr;
  };
  EXPECT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&f)), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
  return kSize - static_cast<std::size_t>(std::find_if(first, first + kSize, [](unsigned char byte) { return byte != kPaint; }) - first);
}

// Forward and backward pass with all that has a gradient, forward mode, second derivatives and maps.
void attend(DType dtype, std::int64_t length, Executor* executor) {
  Random random(1);
  const Shape shape{1, 4, length, 64}, keys{1, 2, length, 64};
  const Tensor q = random.tensor(dtype, shape), k = random.tensor(dtype, keys), v = random.tensor(dtype, keys), bias = random.tensor(dtype, {4, length, length}), d_out = random.tensor(dtype, shape);
  const DType sums = dtype == DType::f64 ? DType::f64 : DType::f32;
  const Tensor sink = random.tensor(sums, {4});
  Tensor out(dtype, shape), lse(sums, shape.first(3)), d_q(dtype, shape), d_k(dtype, keys), d_v(dtype, keys), d_bias(dtype, bias.shape()), d_sink(sums, {4}), weights(dtype, {1, 4, length, length});
  const SdpaOptions options{.mask = {.causal = Causal::top_left(), .window = {.left = length / 2}}, .bias = bias, .softcap = 30, .sink = sink, .dropout = {.p = 0.1, .seed = 1}, .executor = executor};
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .attention_weights = weights}, options);
  sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_bias = d_bias, .d_sink = d_sink}, options);
  SdpaOptions plain{.mask = {.causal = Causal::top_left()}, .executor = executor};
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, plain);
  Tensor tangent(dtype, shape);
  sdpa_jvp({.q = q, .k = k, .v = v, .out = out, .lse = lse, .tangents = {.q = q, .k = k, .v = v}, .out_tangent = tangent}, plain);
  sdpa_backward_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_gradients = {.q = q, .k = k, .v = v}, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_d_out = tangent}, plain);
  attention_map({.q = q, .k = k}, weights, plain);
}

// A step of training, and evaluation.
void train(DType dtype, Executor* executor) {
  const EncoderLayerConfig config{.width = 64, .heads = 4, .activation = Activation::silu, .gated = true, .norm = NormKind::rms_norm, .norm_position = NormPosition::pre, .dropout = 0.1,
                                  .attention_dropout = 0.1, .dtype = dtype, .seed = 1};
  Encoder encoder(config, 2), gradients = zeros_like(encoder);
  const Tensor x = Random(2).tensor(dtype, {2, 150, 64});
  Tensor y(dtype, x.shape()), d_x(dtype, x.shape());
  const Workspace workspace;
  Encoder::Saved saved;
  encoder.forward(x, y, {.mode = Mode::training, .dropout_seed = 3, .executor = executor, .workspace = &workspace}, &saved);
  encoder.backward(saved, x, {.x = d_x, .parameters = &gradients, .parameters_write = Write::add}, {executor, &workspace});
  encoder.forward(x, y, {.executor = executor});
  if (dtype != DType::f32 && dtype != DType::f64) return;
  AdamW optimizer(encoder);
  clip_gradients(gradients, 1, executor);
  optimizer.step(encoder, gradients, {.executor = executor});
}

TEST(ThreadStack, CallsOfAThreadWithASmallStack) {
  std::size_t most = 0;
  test::for_each_instruction_set([&] {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      for (const int count : {1, 3}) {
        LimitedThreads threads(count);
        const auto measure = [&](const std::string& what, const std::function<void()>& f) {
          const std::size_t used = stack_of(f);
          EXPECT_LE(used, kPromised) << what << " of " << info(dtype).name;
          most = std::max(most, used);
        };
        for (const std::int64_t length : {1, 70, 600}) measure("attention over " + std::to_string(length), [&] { attend(dtype, length, &threads); });
        measure("an encoder", [&] { train(dtype, &threads); });
      }
    }
  });
  RecordProperty("bytes", std::to_string(most));
}

}  // namespace
}  // namespace polyhead::nn
