// Tests that a layer with a workspace allocates no tensors after its first call. A replaced operator new counts the large allocations.
#include "polyhead/workspace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

#include "polyhead/models/bert.h"
#include "support/compare.h"
#include "support/random.h"

namespace {

std::atomic<std::int64_t> large{0};  // total bytes of all allocations of at least kLarge bytes

constexpr std::size_t kLarge = 1 << 20;  // activations of these tests are at least this large; memory for packing one product is smaller

void* take(std::size_t bytes, std::size_t alignment) {
  if (bytes >= kLarge) large += static_cast<std::int64_t>(bytes);
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  return memory != nullptr ? memory : throw std::bad_alloc();
}

constexpr std::size_t kDefault = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t bytes) { return take(bytes, kDefault); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return take(bytes, static_cast<std::size_t>(alignment)); }
// If operator delete were inlined, GCC would warn that memory of operator new is freed with free().
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace polyhead::models {
namespace {

// f(workspace) has activations of 1 MiB. Calls f without a workspace, then twice with one workspace: the second of these two calls must allocate nothing large.
template <class F>
void expect_nothing_large(const F& f) {
  const auto bytes_of = [&](const Workspace* workspace) {
    const std::int64_t before = large;
    f(workspace);
    return large - before;
  };
  const Workspace workspace;
  EXPECT_GT(bytes_of(nullptr), 2 << 20);
  EXPECT_GT(bytes_of(&workspace), 2 << 20);
  EXPECT_EQ(bytes_of(&workspace), 0);
  EXPECT_GT(workspace.idle_bytes(), 2 << 20);
}

class LayerWorkspace : public testing::TestWithParam<int> {
 protected:
  LimitedThreads threads{GetParam()};
  test::Random random{1};
  Tensor x = random.tensor(DType::f32, {8, 512, 64}), d_y = random.tensor(DType::f32, {8, 512, 64});
  Tensor y{DType::f32, {8, 512, 64}}, d_x{DType::f32, {8, 512, 64}};
};
INSTANTIATE_TEST_SUITE_P(Threads, LayerWorkspace, testing::Values(1, 2));

TEST_P(LayerWorkspace, ASecondPassOfAttentionReusesTheMemoryOfTheFirst) {
  const nn::MultiHeadAttention layer({.query_width = 64, .heads = 2, .gate = nn::Gate::sigmoid, .seed = 1});
  nn::MultiHeadAttention grads = nn::zeros_like(layer);
  expect_nothing_large([&](const Workspace* workspace) {
    const nn::AttentionOptions options{.mask = {.window = {.left = 7, .right = 7}}, .executor = &threads, .workspace = workspace};
    nn::MultiHeadAttention::Saved saved;
    layer.forward({.query = x}, y, options, &saved);
    layer.backward(saved, d_y, {.query = d_x, .parameters = &grads}, {&threads, workspace});
  });
}

TEST_P(LayerWorkspace, ASecondPassOfAnEncoderLayerReusesTheMemoryOfTheFirst) {
  const EncoderLayer layer({.width = 64, .heads = 2, .hidden_width = 64, .seed = 0});
  EncoderLayer grads = nn::zeros_like(layer);
  expect_nothing_large([&](const Workspace* workspace) {
    const nn::AttentionOptions options{.mask = {.window = {.left = 7, .right = 7}}, .executor = &threads, .workspace = workspace};
    EncoderLayer::Saved saved;
    layer.forward(x, y, options, &saved);
    layer.backward(saved, d_y, {.x = d_x, .parameters = &grads}, {&threads, workspace});
  });
}

// A single sequence is evaluated in one chunk.
TEST_P(LayerWorkspace, ASecondEvaluationReusesTheMemoryOfTheFirst) {
  const EncoderLayer layer({.width = 64, .heads = 2, .hidden_width = 64, .seed = 0});
  const Shape one{1, 4096, 64};
  Tensor out(DType::f32, one);
  expect_nothing_large([&](const Workspace* workspace) {
    layer.forward(x.view().reshape(one), out, {.mask = {.window = {.left = 7, .right = 7}}, .executor = &threads, .workspace = workspace});
  });
}

// Two packed parameters of 2 MiB each are used for all 16 sequences.
TEST_P(LayerWorkspace, ASecondEvaluationInChunksReusesThePackedParameters) {
  const nn::FeedForward layer({.width = 64, .hidden_width = 8192, .seed = 1});
  const ConstTensorView parts = x.view().slice(0, 0, 1).slice(1, 0, 256).reshape({16, 16, 64});
  Tensor out(DType::f32, parts.shape());
  expect_nothing_large([&](const Workspace* workspace) { layer.forward(parts, out, {&threads, workspace}); });
}

TEST_P(LayerWorkspace, WithoutAWorkspaceEachLayerReusesTheMemoryOfTheLayerBefore) {
  const Tensor ids(DType::i64, {8, 512});
  const auto bytes_of = [&](std::int64_t layers) {
    const BertEncoder encoder(
        {.vocabulary = 1, .positions = 512, .segments = 1, .width = 64, .layers = layers, .heads = 2, .hidden_width = 64}, 0);
    const std::int64_t before = large;
    encoder.forward({.ids = ids}, {.hidden = y}, {.executor = &threads});
    return large - before;
  };
  EXPECT_GE(bytes_of(1), 3 << 20);
  EXPECT_EQ(bytes_of(3), bytes_of(1));
}

TEST_P(LayerWorkspace, ResultsDoNotDependOnTheWorkspace) {
  EncoderLayer layer({.width = 64, .heads = 2, .hidden_width = 64, .seed = 0});
  const Workspace workspace;
  Tensor expected, expected_d_x;
  for (const Workspace* given : {static_cast<const Workspace*>(nullptr), &workspace, &workspace}) {
    EncoderLayer grads = nn::zeros_like(layer);
    EncoderLayer::Saved saved;
    layer.forward(x, y, {.mask = {.window = {.left = 7, .right = 7}}, .executor = &threads, .workspace = given}, &saved);
    layer.backward(saved, d_y, {.x = d_x, .parameters = &grads}, {&threads, given});
    if (given == nullptr) expected = y, expected_d_x = d_x;
    EXPECT_TRUE(test::same_bits(y, expected));
    EXPECT_TRUE(test::same_bits(d_x, expected_d_x));
  }
  layer.attention.q.weight.data<float>()[0] += 1;  // the parameters may change, because the workspace does not cache them
  Tensor with(DType::f32, x.shape()), without(DType::f32, x.shape());
  layer.forward(x, with, {.workspace = &workspace});
  layer.forward(x, without);
  EXPECT_TRUE(test::same_bits(with, without));
  EXPECT_FALSE(test::same_bits(with, expected));
}

// The results are the same with one or several chunks, with or without `saved`. Parameters are packed once: if a caller changes parameters although they were
// declared constant, the change has no effect until clear().
TEST_P(LayerWorkspace, ConstantParametersArePackedOnce) {
  EncoderLayer layer({.width = 64, .heads = 2, .hidden_width = 64, .seed = 0});
  nn::Linear* const linears[] = {&layer.attention.q,      &layer.attention.k,         &layer.attention.v,
                                 &layer.attention.output, &layer.feed_forward.hidden, &layer.feed_forward.output};
  for (const std::int64_t sequences : {1, 8}) {
    for (const bool saves : {false, true}) {
      const Workspace constant(Parameters::constant);
      const ConstTensorView some = x.view().slice(0, 0, sequences);
      const auto forward = [&](const Workspace* workspace) {
        Tensor out(DType::f32, some.shape());
        EncoderLayer::Saved saved;
        layer.forward(some, out, {.mask = {.window = {.left = 7, .right = 7}}, .executor = &threads, .workspace = workspace},
                      saves ? &saved : nullptr);
        return out;
      };
      const Tensor before = forward(nullptr);
      EXPECT_TRUE(test::same_bits(forward(&constant), before));
      EXPECT_TRUE(test::same_bits(forward(&constant), before));
      for (nn::Linear* linear : linears) {
        float& weight = linear->weight.data<float>()[5];
        const float own = std::exchange(weight, weight + 1);
        const Tensor after = forward(nullptr);
        EXPECT_FALSE(test::same_bits(after, before));
        EXPECT_TRUE(test::same_bits(forward(&constant), before));
        constant.clear();
        EXPECT_TRUE(test::same_bits(forward(&constant), after));
        weight = own;
        constant.clear();
        EXPECT_TRUE(test::same_bits(forward(&constant), before));
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::models
