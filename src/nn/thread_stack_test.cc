// Measures how much of the calling thread's stack the library uses (docs/promises.md).
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "polyhead/maps.h"
#include "polyhead/nn/encoder_decoder.h"
#include "polyhead/nn/optimizer.h"
#include "polyhead/nn/stack_cache.h"
#include "polyhead/sdpa_derivatives.h"
#include "support/kernel_case.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::Random;

// The promises are only made for optimised code. Without optimisation every temporary has its own stack slot, and sanitizers need more stack.
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr std::size_t kOfAttention = 64 << 10, kOfLayers = 256 << 10;
#else
constexpr std::size_t kOfAttention = 1 << 20, kOfLayers = 2 << 20;
#endif

// Returns how many bytes of stack a thread uses while it calls f. The stack is first filled with a pattern; afterwards the changed bytes are counted.
std::size_t stack_of(const std::function<void()>& f) {
  constexpr std::size_t kSize = 3 << 20, kPage = 4096;
  constexpr unsigned char kPaint = 0xa5;
  static std::vector<unsigned char> memory(kSize + kPage);
  static const std::vector<unsigned char> painted(kPage, kPaint);
  unsigned char* const first = memory.data() + (kPage - reinterpret_cast<std::uintptr_t>(memory.data()) % kPage) % kPage;
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
  // Pages with the pattern are compared as a whole. Tests are not optimised, so a loop over bytes would take longer than the calls.
  const unsigned char *used = first, *const end = first + kSize;
  while (used < end && std::memcmp(used, painted.data(), kPage) == 0) used += kPage;
  while (used < end && *used == kPaint) ++used;
  return static_cast<std::size_t>(end - used);
}

// Runs calls on a new thread, and keeps the largest number of bytes of stack that one of them used. The arguments of the calls are not on that thread's stack.
class Measure {
 public:
  template <class F>
  void operator()(const F& call) {
    most_ = std::max(most_, stack_of(call));
  }
  std::size_t most() const { return most_; }

 private:
  std::size_t most_ = 0;
};

// Measures the forward pass, the backward pass with all gradients, forward mode, the gradient of the backward pass, and maps.
void attend(DType dtype, std::int64_t length, Executor* executor, Measure& measure) {
  Random random(1);
  const Shape shape{1, 4, length, 64}, keys{1, 2, length, 64};
  const Tensor q = random.tensor(dtype, shape), k = random.tensor(dtype, keys), v = random.tensor(dtype, keys), bias = random.tensor(dtype, {4, length, length}), d_out = random.tensor(dtype, shape);
  const DType sums = dtype == DType::f64 ? DType::f64 : DType::f32;
  const Tensor sink = random.tensor(sums, {4});
  Tensor out(dtype, shape), lse(sums, shape.first(3)), d_q(dtype, shape), d_k(dtype, keys), d_v(dtype, keys), d_bias(dtype, bias.shape()), d_sink(sums, {4}), weights(dtype, {1, 4, length, length}), tangent(dtype, shape);
  const SdpaOptions all{.mask = {.causal = Causal::top_left(), .window = {.left = length / 2}}, .bias = bias, .softcap = 30, .sink = sink, .dropout = {.p = 0.1, .seed = 1}, .executor = executor};
  const SdpaOptions plain{.mask = {.causal = Causal::top_left()}, .executor = executor};
  const SdpaForward forward{.q = q, .k = k, .v = v, .out = out, .lse = lse, .attention_weights = weights}, forward_alone{.q = q, .k = k, .v = v, .out = out, .lse = lse};
  const SdpaBackward backward{.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_bias = d_bias, .d_sink = d_sink};
  const SdpaBackward backward_alone{.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v};
  const SdpaJvp jvp{.q = q, .k = k, .v = v, .out = out, .lse = lse, .tangents = {.q = q, .k = k, .v = v}, .out_tangent = tangent};
  const SdpaBackwardBackward second{.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out, .d_gradients = {.q = q, .k = k, .v = v}, .d_q = d_q, .d_k = d_k, .d_v = d_v, .d_d_out = tangent};
  const MapsInput maps{.q = q, .k = k};
  measure([&] { sdpa_forward(forward, all); });
  measure([&] { sdpa_backward(backward, all); });
  measure([&] { sdpa_forward(forward_alone, plain); });
  measure([&] { sdpa_backward(backward_alone, plain); });
  measure([&] { sdpa_jvp(jvp, plain); });
  measure([&] { sdpa_backward_backward(second, plain); });
  measure([&] { attention_map(maps, weights, plain); });
}

// Measures a training step and an evaluation.
void train(DType dtype, Executor* executor, Measure& measure) {
  const LayerConfig config{.width = 64, .heads = 4, .activation = Activation::silu, .gated = true, .norm = NormKind::rms_norm, .norm_position = NormPosition::pre, .dropout = 0.1,
                                  .attention_dropout = 0.1, .dtype = dtype, .seed = 1};
  Encoder encoder(config, 2), gradients = zeros_like(encoder);
  const Tensor x = Random(2).tensor(dtype, {2, 150, 64});
  Tensor y(dtype, x.shape()), d_x(dtype, x.shape());
  const Workspace workspace;
  Encoder::Saved saved;
  const AttentionOptions training{.mode = Mode::training, .dropout_seed = 3, .executor = executor, .workspace = &workspace}, evaluation{.executor = executor, .workspace = &workspace};
  measure([&] { encoder.forward(x, y, training, &saved); });
  measure([&] { encoder.backward(saved, x, {.x = d_x, .parameters = &gradients, .parameters_write = Write::add}, {executor, &workspace}); });
  measure([&] { encoder.forward(x, y, evaluation); });

  EncoderDecoder translator({.source_count = 9, .layer = {.width = 64, .heads = 4, .dropout = 0.1, .attention_dropout = 0.1, .dtype = dtype, .seed = 1}}), d_translator = zeros_like(translator);
  const Tensor ids(DType::i64, {2, 40});
  Tensor logits(dtype, {2, 40, 9});
  EncoderDecoder::Saved pass;
  const EncoderDecoderOptions options{.mode = Mode::training, .dropout_seed = 3, .executor = executor};
  measure([&] { translator.forward(ids, ids, logits, options, &pass); });
  measure([&] { translator.backward(pass, logits, {.parameters = &d_translator}, {.executor = executor}); });
  DecoderCache cache(translator.decoder, x, {.capacity = 40}, {.executor = executor});
  measure([&] { translator.decode(ids, logits, cache, {.executor = executor}); });
  if (dtype != DType::f32 && dtype != DType::f64) return;
  AdamW optimizer(encoder);
  measure([&] { clip_gradients(gradients, 1, executor); });
  measure([&] { optimizer.step(encoder, gradients, {.executor = executor}); });
}

TEST(ThreadStack, CallsOfAThreadWithASmallStack) {
  Measure of_attention, of_layers;
  const auto measure = [&] {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      for (const int count : {1, 3}) {
        LimitedThreads threads(count);
        for (const std::int64_t length : {1, 70, 600}) {
          // The calling thread uses no more stack if there are more threads, so long sequences on several threads are tested for one dtype only.
          if (length == 70 || count == 1 || dtype == DType::f32) attend(dtype, length, &threads, of_attention);
        }
        train(dtype, &threads, of_layers);
      }
    }
  };
  // The promise is made for optimised kernels. A quick run only optimises the kernels that the machine chooses, so it only measures those.
  test::quick() ? measure() : test::for_each_instruction_set(measure);
  EXPECT_LE(of_attention.most(), kOfAttention);
  EXPECT_LE(of_layers.most(), kOfLayers);
  RecordProperty("bytes of attention", std::to_string(of_attention.most()));
  RecordProperty("bytes of layers", std::to_string(of_layers.most()));
}

}  // namespace
}  // namespace polyhead::nn
