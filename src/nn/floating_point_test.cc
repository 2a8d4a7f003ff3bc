// Tests that no operation raises a floating-point exception flag of the caller, and that none traps (docs/promises.md), whatever masked vector lanes compute.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "polyhead/nn/activation.h"
#include "polyhead/nn/beam_search.h"
#include "polyhead/nn/cross_entropy.h"
#include "polyhead/nn/dropout.h"
#include "polyhead/nn/layer_norm.h"
#include "polyhead/nn/linear.h"
#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/optimizer.h"
#include "polyhead/nn/rms_norm.h"
#include "polyhead/quantize.h"
#include "support/child_process.h"
#include "support/second_kernel_case.h"
#include "support/thread_count.h"

namespace polyhead::nn {
namespace {

using test::AttentionCase;
using test::AttentionOutputs;
using test::Random;

constexpr int kFlags = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;

// A call of the library, with its name. `run` must not raise exception flags; the code that makes the inputs may.
struct Call {
  std::string name;
  std::function<void()> run;
};

void expect_no_flags(const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    std::feclearexcept(FE_ALL_EXCEPT);
    call.run();
    const int raised = std::fetestexcept(kFlags);
    EXPECT_EQ(raised, 0) << call.name << ((raised & FE_INVALID) != 0 ? ": invalid" : "") << ((raised & FE_DIVBYZERO) != 0 ? ": division by zero" : "")
                         << ((raised & FE_OVERFLOW) != 0 ? ": overflow" : "");
  }
  std::feclearexcept(FE_ALL_EXCEPT);
}

// Appends calls for one case to `calls`: all passes of attention, and the operations on maps.
void add_passes(const std::string& name, AttentionCase& drawn, Random& random, std::list<test::SecondCase>& kept, std::vector<Call>& calls) {
  test::SecondCase& s = kept.emplace_back(test::SecondCase{.c = std::move(drawn), .tangents = {}, .forward = {}});
  AttentionCase& c = s.c;
  s.tangents = test::draw_tangents(random, c);
  s.forward = c.make_outputs();
  const AttentionOutputs gradients = c.make_outputs();
  AttentionOutputs with_weights = c.make_outputs();
  with_weights.attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs()));
  const test::SecondOutputs second = s.make_outputs();
  const TensorView map = c.keep(Tensor(DType::f32, c.sizes.pairs()));
  const Shape of_heads = c.sizes.with({c.sizes.heads()});
  const TensorView entropy = c.keep(Tensor(DType::f32, of_heads)), distance = c.keep(Tensor(DType::f64, of_heads));
  const TensorView divergence = c.keep(Tensor(DType::f32, c.sizes.with({c.sizes.heads(), c.sizes.heads()})));
  const TensorView pooled = c.keep(Tensor(DType::f32, c.sizes.with({c.sizes.heads(), std::min<std::int64_t>(2, c.sizes.queries), std::min<std::int64_t>(2, c.sizes.keys)})));
  calls.push_back({name + "sdpa_forward", [&s] { s.c.forward(s.forward); }});
  calls.push_back({name + "sdpa_forward with attention weights", [&s, with_weights] { s.c.forward(with_weights); }});
  calls.push_back({name + "sdpa_backward", [&s, gradients] {
                     AttentionOutputs o = gradients;
                     o.out = s.forward.out, o.lse = s.forward.lse;
                     s.c.backward(o);
                   }});
  calls.push_back({name + "sdpa_jvp", [&s, second] { s.jvp(second); }});
  calls.push_back({name + "sdpa_backward_backward", [&s, second] { s.backward_backward(second); }});
  for (const MapValue value : {MapValue::scaled_score, MapValue::capped_score, MapValue::score, MapValue::probability, MapValue::dropped})
    calls.push_back({name + "attention_map", [&c, map, value] { attention_map(c.maps(), map, c.options, value); }});
  calls.push_back({name + "attention_statistics", [&c, entropy, distance] { attention_statistics(c.maps(), {.entropy = entropy, .distance = distance}, c.options); }});
  calls.push_back({name + "attention_divergence", [&c, divergence] { attention_divergence(c.maps(), divergence, c.options); }});
  calls.push_back({name + "attention_pooled_map", [&c, pooled] { attention_pooled_map(c.maps(), pooled, c.options); }});
  calls.push_back({name + "explain", [&s] {
                     const AttentionCase& of = s.c;
                     (void)explain({.q = of.q, .k = of.k, .v = of.v, .out = s.forward.out}, of.options);
                   }});
}

// Returns calls for random problems, and for problems in which infinities occur: rows without keys, a bias of -infinity, widths of 0, keys cut into splits.
std::vector<Call> attention_calls(std::list<test::SecondCase>& kept) {
  std::vector<Call> calls;
  for (const std::uint64_t seed : test::seeds(0, 60)) {
    Random random(seed);
    AttentionCase c = test::draw_kernel_case(random, seed);
    if (seed % 6 == 5) c.options.backend = &find_backend("reference");
    add_passes("seed " + std::to_string(seed) + ": ", c, random, kept, calls);
  }
  Random random(3);
  const auto add = [&](const char* name, const test::AttentionSizes& sizes, const auto& edit, DType dtype = DType::f32) {
    AttentionCase c = test::case_of(random, dtype, sizes);
    edit(c);
    add_passes(std::string(name) + ": ", c, random, kept, calls);
  };
  const test::AttentionSizes usual{.lead = {2}, .group = 2, .queries = 90, .keys = 90, .qk_width = 48, .v_width = 48};
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    add("plain", usual, [](AttentionCase&) {}, dtype);
    add("rows without keys", usual, [](AttentionCase& c) { c.options.mask.causal = Causal::offset(-5); }, dtype);
    add("rows without keys, uniform", usual, [](AttentionCase& c) { c.options.mask.causal = Causal::offset(-5), c.options.empty_rows = EmptyRows::uniform; }, dtype);
    add("a bias of -infinity", usual,
        [&](AttentionCase& c) {
          Tensor bias = random.tensor(c.dtype, {90, 90});
          fill(bias.view().slice(0, 3, 8), -HUGE_VAL), fill(bias.view().slice(1, 20, 40), -HUGE_VAL);
          c.options.bias = c.keep(std::move(bias));
        },
        dtype);
    add("a sink beside rows without keys", usual,
        [](AttentionCase& c) {
          c.options.mask.causal = Causal::offset(-5);
          c.options.sink = c.keep(Tensor::of<double>({2}, {0.5, -HUGE_VAL}));
          if (c.dtype != DType::f64) c.options.sink = c.keep(Tensor::copy_of(c.options.sink, DType::f32));
        },
        dtype);
    add("large scores", usual, [](AttentionCase& c) { c.options.scale = 1000; }, dtype);
  }
  add("without width of q", {.queries = 90, .keys = 90, .qk_width = 0, .v_width = 48}, [](AttentionCase&) {});
  add("without keys", {.queries = 90, .keys = 0, .qk_width = 8, .v_width = 48}, [](AttentionCase&) {});
  add("without queries", {.queries = 0, .keys = 90, .qk_width = 8, .v_width = 48}, [](AttentionCase&) {});
  add("no documents", {.queries = 0, .keys = 0, .qk_width = 8, .v_width = 48}, [](AttentionCase& c) { c.options.mask.query_offsets = c.options.mask.key_offsets = c.keep(Tensor::of<std::int64_t>({1}, {0})); });
  add("key splits", {.queries = 2, .keys = 9000, .qk_width = 64, .v_width = 64}, [](AttentionCase&) {});
  add("key splits without pairs", {.queries = 2, .keys = 9000, .qk_width = 64, .v_width = 64}, [](AttentionCase& c) { c.options.mask.causal = Causal::offset(-2); });
  return calls;
}

// Returns calls of layers, losses and optimizers, with finite inputs of any magnitude.
std::vector<Call> layer_calls(std::list<Tensor>& kept) {
  std::vector<Call> calls;
  Random random(7);
  const auto keep = [&](Tensor tensor) -> Tensor& { return kept.emplace_back(std::move(tensor)); };
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const std::string name = std::string(info(dtype).name) + " ";
    Tensor &x = keep(random.tensor(dtype, {7, 45, 48}, -3, 3)), &y = keep(Tensor(dtype, x.shape())), &d_x = keep(Tensor(dtype, x.shape())), &wide = keep(random.tensor(dtype, {4, 1100}, -3e4, 3e4)),
           &to = keep(Tensor(dtype, wide.shape()));
    for (const Activation activation : {Activation::sigmoid, Activation::tanh, Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu, Activation::quick_gelu}) {
      for (const auto& [from, out] : {std::pair{&x, &y}, std::pair{&wide, &to}}) {
        calls.push_back({name + "activate", [activation, f = from, o = out] { activate(activation, *f, *o); }});
        calls.push_back({name + "activate_backward", [activation, f = from, o = out] { activate_backward(activation, *f, *f, *o); }});
      }
    }
    const auto linear = std::make_shared<Linear>(LinearConfig{.in_width = 48, .out_width = 48, .dtype = dtype, .seed = 1});
    const auto norm = std::make_shared<LayerNorm>(LayerNormConfig{.width = 48, .dtype = dtype});
    const auto rms = std::make_shared<RMSNorm>(RMSNormConfig{.width = 48, .dtype = dtype});
    calls.push_back({name + "Linear", [linear, &x, &y] { linear->forward(x, y); }});
    calls.push_back({name + "Linear.backward", [linear, &x, &d_x] {
                       Linear gradients = zeros_like(*linear);
                       linear->backward(x, x, {.x = d_x, .parameters = &gradients});
                     }});
    calls.push_back({name + "LayerNorm", [norm, &x, &y] { norm->forward(x, y); }});
    calls.push_back({name + "RMSNorm", [rms, &x, &y] { rms->forward(x, y); }});
    for (const Shape& shape : {Shape{7, 45}, Shape{4}}) {
      Tensor& classes = keep(Tensor(DType::i64, shape));
      Tensor &of = shape.size() == 2 ? x : wide, &d = shape.size() == 2 ? y : to;
      calls.push_back({name + "cross_entropy", [&classes, &of, &d] { cross_entropy(of, classes, d, {.label_smoothing = 0.1}); }});
    }
    calls.push_back({name + "dropout", [&x, &y] { dropout(x, y, 0.25, 3); }});
    for (const Gate gate : {Gate::none, Gate::sigmoid}) {
      const auto layer = std::make_shared<MultiHeadAttention>(MultiHeadAttentionConfig{.query_width = 48, .heads = 4, .gate = gate, .dtype = dtype, .seed = 2});
      const auto saved = std::make_shared<MultiHeadAttention::Saved>();
      const AttentionOptions options{.mask = {.causal = Causal::offset(-3)}};
      calls.push_back({name + "MultiHeadAttention", [layer, options, &x, &y] { layer->forward({.query = x}, y, options); }});
      calls.push_back({name + "MultiHeadAttention.backward", [layer, saved, options, &x, &y, &d_x] {
                         layer->forward({.query = x}, y, options, saved.get());
                         MultiHeadAttention gradients = zeros_like(*layer);
                         layer->backward(*saved, x, {.query = d_x, .parameters = &gradients});
                       }});
    }
    Tensor &narrow = keep(Tensor(DType::bf16, x.shape())), &bytes = keep(Tensor(DType::i8, x.shape())), &scales = keep(Tensor(DType::f32, {7, 45}));
    calls.push_back({name + "copy", [&x, &narrow] { copy(x, narrow); }});
    calls.push_back({name + "quantize_rows", [&x, &bytes, &scales] { quantize_rows(x, bytes, scales); }});
  }
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto linear = std::make_shared<Linear>(LinearConfig{.in_width = 48, .out_width = 48, .dtype = dtype, .seed = 1});
    const auto gradients = std::make_shared<Linear>(zeros_like(*linear));
    const auto adam = std::make_shared<AdamW>(*linear);
    calls.push_back({"AdamW.step", [linear, gradients, adam] { adam->step(*linear, *gradients); }});
    calls.push_back({"clip_gradients", [gradients] { clip_gradients(*gradients, 1); }});
  }
  Tensor& logits = keep(random.tensor(DType::f32, {3, 50}, -20, 20));
  fill(logits.view().slice(1, 10, 20), -HUGE_VAL);
  calls.push_back({"beam_search", [&logits] {
                     const std::int64_t start[] = {1};
                     (void)beam_search(start, [&](std::span<const std::int64_t>, std::span<const std::int64_t>) -> ConstTensorView { return logits; }, {.beams = 3, .max_tokens = 4});
                   }});
  return calls;
}

class FloatingPoint : public testing::Test {
 protected:
  // Calls f with each instruction set, with one thread and with several threads. With quick(), only the machine's own instruction set runs with several
  // threads. One thread is enough to see the flags: they belong to the calling thread, which then computes everything.
  template <class F>
  static void for_each_way(const F& f) {
    const test::ThreadCount restored;
    const std::string chosen = test::chosen_instruction_set();
    test::for_each_instruction_set([&] {
      for (const int threads : {1, 4}) {
        if (threads > 1 && test::quick() && kernel_instruction_set() != chosen) continue;
        set_num_threads(threads), f();
      }
    });
  }
};

TEST_F(FloatingPoint, AttentionRaisesNoFlags) {
  std::list<test::SecondCase> kept;
  const std::vector<Call> calls = attention_calls(kept);
  for_each_way([&] { expect_no_flags(calls); });
}

TEST_F(FloatingPoint, LayersRaiseNoFlags) {
  std::list<Tensor> kept;
  const std::vector<Call> calls = layer_calls(kept);
  for_each_way([&] { expect_no_flags(calls); });
}

#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__)
TEST_F(FloatingPoint, NothingTrapsIfTheCallerEnablesTraps) {
  std::list<test::SecondCase> cases;
  std::list<Tensor> tensors;
  const std::vector<Call> attention = attention_calls(cases), layers = layer_calls(tensors);
  const auto status_with_traps = [](const std::vector<Call>& calls) {
    return test::status_of_child([&] {
      feenableexcept(kFlags);
      for (const Call& call : calls) call.run();
      return 0;
    });
  };
  // A trap ends the process, whichever instruction set raised the flag. AttentionRaisesNoFlags and LayersRaiseNoFlags use all instruction sets, so one set is
  // enough here.
  const test::ThreadCount restored;
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    EXPECT_EQ(status_with_traps(attention), 0);
    EXPECT_EQ(status_with_traps(layers), 0);
  }
}
#endif

}  // namespace
}  // namespace polyhead::nn
