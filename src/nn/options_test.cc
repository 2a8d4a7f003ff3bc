// Tests that a plain value does not convert to a struct of options. If NamedMembers did not prevent it, GCC would set the struct's first member to the value.
#include <gtest/gtest.h>

#include <optional>

#include "polyhead/nn/decoder_layer.h"
#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/sdpa.h"
#include "polyhead/sdpa_derivatives.h"

namespace polyhead {
namespace {

#define POLYHEAD_TAKES(member)                                                      \
  template <class Options, class Value>                                             \
  concept takes_##member = requires(Value& value) { Options{.member = value}; }

POLYHEAD_TAKES(dropout);
POLYHEAD_TAKES(mask);
POLYHEAD_TAKES(window);
POLYHEAD_TAKES(relative_bias);
POLYHEAD_TAKES(rotary);
POLYHEAD_TAKES(attention);
POLYHEAD_TAKES(memory_mask);
POLYHEAD_TAKES(tangents);
POLYHEAD_TAKES(d_gradients);
POLYHEAD_TAKES(causal);
POLYHEAD_TAKES(scale);

// Checks that Options{.member = value} does not compile if the value is a number, a bool, a Causal or a tensor.
#define POLYHEAD_REFUSES_VALUES(Options, member)                                                                                             \
  static_assert(!takes_##member<Options, double> && !takes_##member<Options, int> && !takes_##member<Options, bool>);                        \
  static_assert(!takes_##member<Options, std::int64_t> && !takes_##member<Options, std::optional<std::int64_t>>);                            \
  static_assert(!takes_##member<Options, Causal> && !takes_##member<Options, std::optional<Causal>>);                                        \
  static_assert(!takes_##member<Options, Tensor> && !takes_##member<Options, TensorView> && !takes_##member<Options, ConstTensorView>)

POLYHEAD_REFUSES_VALUES(SdpaOptions, dropout);
POLYHEAD_REFUSES_VALUES(SdpaOptions, mask);
POLYHEAD_REFUSES_VALUES(SdpaOptions, relative_bias);
POLYHEAD_REFUSES_VALUES(Mask, window);
POLYHEAD_REFUSES_VALUES(SdpaJvp, tangents);
POLYHEAD_REFUSES_VALUES(SdpaBackwardBackward, d_gradients);
POLYHEAD_REFUSES_VALUES(nn::AttentionOptions, mask);
POLYHEAD_REFUSES_VALUES(nn::AttentionOptions, relative_bias);
POLYHEAD_REFUSES_VALUES(nn::AttentionOptions, rotary);
POLYHEAD_REFUSES_VALUES(nn::DecoderOptions, attention);
POLYHEAD_REFUSES_VALUES(nn::DecoderOptions, memory_mask);
static_assert(!takes_attention<nn::DecoderOptions, Mask>);
static_assert(!takes_causal<Mask, bool> && !takes_causal<Mask, int> && !takes_causal<Mask, std::int64_t>);

// With a value of the member's own type, Options{.member = value} compiles.
static_assert(takes_dropout<SdpaOptions, Dropout> && takes_mask<SdpaOptions, Mask> && takes_window<Mask, Window> && takes_relative_bias<SdpaOptions, RelativeBias>);
static_assert(takes_rotary<nn::AttentionOptions, nn::Rotary> && takes_attention<nn::DecoderOptions, nn::AttentionOptions> && takes_causal<Mask, Causal>);
static_assert(takes_scale<SdpaOptions, double> && takes_tangents<SdpaJvp, SdpaTangents>);

TEST(Options, DesignatedInitialisersSetTheNamedMembers) {
  const SdpaOptions options{.mask = {.causal = Causal::top_left(), .window = {.left = 3}}, .dropout = {.p = 0.25, .seed = 7}};
  EXPECT_EQ(options.dropout.p, 0.25);
  EXPECT_EQ(options.dropout.seed, 7u);
  EXPECT_EQ(options.mask.window.left, 3);
  EXPECT_FALSE(options.mask.window.right);
}

}  // namespace
}  // namespace polyhead
