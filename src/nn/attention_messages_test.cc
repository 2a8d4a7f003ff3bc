// Tests which arguments an attention layer refuses, and the texts of its messages.
#include <array>
#include <limits>

#include "polyhead/nn/multi_head_attention.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using test::same_bits;

TEST(MultiHeadAttentionMessages, MessagesOfWrongSettingsGiveTheNumbers) {
  const auto config_error = [](const MultiHeadAttentionConfig& config) { return error_message([&] { MultiHeadAttention layer(config); }); };
  EXPECT_EQ(config_error({.query_width = 10, .heads = 3}), "MultiHeadAttention: query_width 10 does not divide into 3 heads; give head_width");
  EXPECT_EQ(config_error({.query_width = 8, .heads = 4, .kv_heads = 3}), "MultiHeadAttention: 4 heads are not a multiple of 3 key/value heads");
  EXPECT_EQ(config_error({}), "MultiHeadAttention: query_width is 0; it must be at least 1");
  EXPECT_EQ(config_error({.query_width = 8, .heads = -2}), "MultiHeadAttention: heads is -2; it must be at least 1");
  EXPECT_EQ(config_error({.query_width = 8}),
            "MultiHeadAttention: the initialisation needs a seed, for example .seed = 1; give each layer its own seed (derive_seed)");
  EXPECT_EQ(config_error({.query_width = 8, .dropout = 1.5}), "MultiHeadAttention: dropout is 1.5; it must lie in [0,1]");

  const MultiHeadAttention layer({.query_width = 8, .heads = 2, .seed = 1});
  const Tensor x(DType::f32, {2, 3, 8}), narrow(DType::f32, {2, 3, 6}), other_batch(DType::f32, {3, 3, 8}), longer(DType::f32, {2, 4, 8});
  Tensor out(DType::f32, {2, 3, 8});
  const auto forward_error = [&](const AttentionInput& input, TensorView target, const AttentionOptions& options = {}) {
    return error_message([&] { layer.forward(input, target, options); });
  };
  EXPECT_EQ(forward_error({.query = narrow}, out), "MultiHeadAttention.forward: query is [2,3,6]; its last extent must be query_width = 8");
  EXPECT_EQ(forward_error({.query = x, .key = other_batch}, out),
            "MultiHeadAttention.forward: key is [3,3,8]; except at axis 1 and the width its extents must be those of query [2,3,8]");
  EXPECT_EQ(forward_error({.query = x, .key = longer, .value = x}, out),
            "MultiHeadAttention.forward: value is [2,3,8] and key [2,4,8]; both must have the same number of positions");
  EXPECT_EQ(forward_error({.query = x}, during_call(Tensor(DType::f32, {2, 3, 7}))),
            "MultiHeadAttention.forward: out is [2,3,7]; it must be [2,3,8]");
  const Tensor mask(DType::boolean, {5, 2, 2, 3, 3}), bias(DType::f32, {5, 1, 2, 3, 3});
  EXPECT_EQ(forward_error({.query = x}, out, {.mask = {.attend = mask}}),
            "MultiHeadAttention.forward: attend is [5,2,2,3,3]; it must be [T,S], or [B,1,T,S] to differ by sequence, [1,N,T,S] by head, "
            "[B,N,T,S] by both, where [*,N,T,S] is [2,2,3,3]");
  EXPECT_EQ(forward_error({.query = x}, out, {.bias = bias}),
            "MultiHeadAttention.forward: bias is [5,1,2,3,3]; it must be [T,S], or [B,1,T,S] to differ by sequence, [1,N,T,S] by head, "
            "[B,N,T,S] by both, where [*,N,T,S] is [2,2,3,3]");
  EXPECT_EQ(error_message([&] { layer.backward({}, out, {}); }), "MultiHeadAttention.backward: saved is empty; give it to forward first");
}

// The members of a layer are public. A member that the configuration does not have must be an Error, because it would be ignored.
TEST(MultiHeadAttentionMessages, MembersThatContradictTheConfigurationAreRefused) {
  const Tensor x(DType::f32, {2, 3, 8});
  const auto error_of = [&](const auto& change) {
    MultiHeadAttention layer({.query_width = 8, .heads = 2, .seed = 1});
    change(layer);
    Tensor out(DType::f32, {2, 3, 8});
    return error_message([&] { layer.forward({.query = x}, out); });
  };
  const std::string where = "MultiHeadAttention.forward: ";
  EXPECT_EQ(error_of([](MultiHeadAttention& layer) { layer.config.sink = true; }), where + "config.sink is true, but the layer has no sink");
  EXPECT_EQ(error_of([](MultiHeadAttention& layer) { layer.sink = Tensor(DType::f32, {2}); }), where + "the layer has a sink, but config.sink is false");
  EXPECT_EQ(error_of([](MultiHeadAttention& layer) { layer.config.qk_norm = true; }), where + "config.qk_norm is true, but the layer has no q_norm");
  EXPECT_EQ(error_of([](MultiHeadAttention& layer) { layer.k_norm = RMSNorm({.width = 4}); }), where + "the layer has a k_norm, but config.qk_norm is false");
  EXPECT_EQ(error_of([](MultiHeadAttention& layer) { layer.config.gate = Gate::sigmoid; }), where + "config.gate is sigmoid, but the layer has no gate");
  EXPECT_EQ(error_of([](MultiHeadAttention& layer) { layer.gate = Linear({.in_width = 8, .out_width = 8, .seed = 1}); }),
            where + "the layer has a gate, but config.gate is none");
  EXPECT_EQ(error_of([](MultiHeadAttention& layer) { layer.config.output = OutputProjection::none; }), where + "the layer has an output, but config.output is none");
  EXPECT_EQ(error_of([](MultiHeadAttention& layer) { layer.bias_k = Tensor(DType::f32, {1, 1, 8}); }), where + "the layer has a bias_k, but config.add_bias_kv is false");
}

TEST(MultiHeadAttentionMessages, ARotaryWidthWithoutTablesIsRefused) {
  const MultiHeadAttention layer({.query_width = 8, .heads = 2, .seed = 1});
  const Tensor x(DType::f32, {2, 3, 8});
  Tensor out(DType::f32, {2, 3, 8});
  for (const Rotary& rotary : {Rotary{.width = 2}, Rotary{.order = RotaryOrder::pairs}}) {
    EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.rotary = rotary}); }),
              "MultiHeadAttention.forward: rotary has a width or an order but no tables; nothing would be rotated");
  }
}

TEST(MakeAttention, ABiasThatContradictsTheConfigurationIsRefusedByName) {
  const auto linear = [](bool bias) { return Linear(Tensor(DType::f32, {4, 4}), bias ? Tensor(DType::f32, {4}) : Tensor()); };
  // `given` says for q, k, v and output whether the projection has a bias. The gate of a layer may have a bias or not.
  const auto made = [&](bool bias, bool output_bias, const std::array<bool, 4>& given) {
    return error_message([&] {
      make_attention({.query_width = 4, .heads = 2, .bias = bias, .output_bias = output_bias, .gate = Gate::sigmoid}, linear(given[0]), linear(given[1]), linear(given[2]),
                     linear(given[3]), linear(given[0]));
    });
  };
  const char* const names[] = {"q", "k", "v"};
  for (const bool bias : {false, true}) {
    for (const bool output_bias : {false, true}) {
      const std::array<bool, 4> right{bias, bias, bias, output_bias};
      EXPECT_EQ(made(bias, output_bias, right), "");
      for (std::size_t i = 0; i < 4; ++i) {
        std::array<bool, 4> wrong = right;
        wrong[i] = !wrong[i];
        const std::string expected = i < 3 ? std::string(names[i]) + (bias ? ": a bias is missing; bias is true, for q, k and v alike" : ": a bias is given; bias is false, for q, k and v alike")
                                   : std::string("output") + (output_bias ? ": a bias is missing; output_bias is true" : ": a bias is given; output_bias is false");
        EXPECT_EQ(made(bias, output_bias, wrong), "MultiHeadAttention." + expected);
      }
      EXPECT_NE(made(!bias, output_bias, right), "");  // the bias of each of q, k and v contradicts the configuration
    }
  }
}

TEST(MultiHeadAttentionMessages, WidthsWhoseProductOverflowsAreRefused) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  EXPECT_EQ(error_message([&] { completed({.query_width = 8, .heads = kMany, .head_width = kMany}); }),
            "the extents [1099511627776,1099511627776] have a product beyond 2^63 - 1");
}

TEST(MultiHeadAttentionMessages, AnInvalidAxisScaleOrSoftcapIsRefused) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto made = [](auto change) {
    MultiHeadAttentionConfig config{.query_width = 8, .seed = 1};
    change(config);
    return error_message([&] { MultiHeadAttention{config}; });
  };
  EXPECT_EQ(made([](auto& c) { c.axis = -1; }), "MultiHeadAttention: axis is -1, the axis of the width; attention runs along another axis");
  EXPECT_EQ(made([&](auto& c) { c.scale = infinity; }), "MultiHeadAttention: scale is inf; it must be finite");
  EXPECT_EQ(made([&](auto& c) { c.softcap = infinity; }), "MultiHeadAttention: softcap is inf; it must be finite and at least 0");
  EXPECT_EQ(made([](auto& c) { c.softcap = -1; }), "MultiHeadAttention: softcap is -1; it must be finite and at least 0");
  EXPECT_EQ(made([](auto& c) { c.scale = -0.5; }), "");
  const auto unprojected = [&](std::int64_t width) { return made([&](auto& c) { c.output = OutputProjection::none, c.output_width = width; }); };
  EXPECT_THAT(unprojected(5), testing::HasSubstr("MultiHeadAttention: output_width is 5 without an output projection; the output is the merged heads, "));
  EXPECT_EQ(unprojected(0), "");
}

// If there are as many sequences as heads, the first dimension of a mask or bias [2,3,3] could mean either, so it must be an Error.
TEST(MultiHeadAttentionMessages, AMaskOrBiasOfThreeDimensionsIsRefused) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dropout = 0.5, .dtype = DType::f64, .seed = 1});
  const Tensor x = Random(1).tensor(DType::f64, {2, 3, 4}), pairs(DType::boolean, {2, 3, 3}), bias = Random(2).tensor(DType::f64, {2, 3, 3});
  Tensor out(DType::f64, x.shape());
  const std::string rule = " is [2,3,3]; it must be [T,S], or [B,1,T,S] to differ by sequence, [1,N,T,S] by head, [B,N,T,S] by both, where "
                           "[*,N,T,S] is [2,2,3,3]";
  const auto refused = [&](const AttentionOptions& options) { return error_message([&] { layer.forward({.query = x}, out, options); }); };
  EXPECT_EQ(refused({.mask = {.attend = pairs}}), "MultiHeadAttention.forward: attend" + rule);
  EXPECT_EQ(refused({.mask = {.block = pairs}}), "MultiHeadAttention.forward: block" + rule);
  EXPECT_EQ(refused({.bias = bias}), "MultiHeadAttention.forward: bias" + rule);
  EXPECT_EQ(refused({.mode = Mode::training, .dropout_keep = pairs}), "MultiHeadAttention.forward: dropout_keep" + rule);
  EXPECT_EQ(refused({.bias = bias.view().unsqueeze(0)}), "");
  EXPECT_EQ(refused({.bias = bias.view().unsqueeze(1)}), "");
}

TEST(MultiHeadAttentionMessages, WithAddedKeysAWrongBiasOrMaskGivesTheSameMessage) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .add_zero_attn = true, .seed = 1});
  const Tensor x(DType::f32, {3, 4}), bias(DType::f32, {3, 5}), lengths = Tensor::of<std::int64_t>({}, {9});
  Tensor out(DType::f32, x.shape());
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.bias = bias}); }),
            "MultiHeadAttention.forward: bias is [3,5]; it must be [T,S], or [*,N,T,S] with extents of 1 where it is shared, where [*,N,T,S] is "
            "[2,3,3]");
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.mask = {.key_lengths = lengths}}); }),
            "MultiHeadAttention.forward: a key length is 9; it must lie in [0,S] = [0,3]");
}

TEST(MultiHeadAttentionMessages, DropoutInTrainingNeedsASeed) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .dropout = 0.5, .seed = 1});
  const Tensor x = Random(1).tensor(DType::f32, {2, 3, 4}), keep(DType::boolean, {2, 2, 3, 3});
  Tensor out(DType::f32, x.shape());
  const auto message = [&](const AttentionOptions& options) { return error_message([&] { layer.forward({.query = x}, out, options); }); };
  EXPECT_EQ(message({.mode = Mode::training}),
            "MultiHeadAttention.forward: dropout in training needs dropout_seed, a new one for each step, or dropout_keep");
  EXPECT_EQ(message({.mode = Mode::training, .dropout_seed = 0}), "");
  EXPECT_EQ(message({.mode = Mode::training, .dropout_keep = keep}), "");
  EXPECT_EQ(message({.mode = Mode::evaluation}), "");
  EXPECT_EQ(message({.mode = Mode::evaluation, .dropout_seed = 0}), "");
  EXPECT_EQ(message({.mode = Mode::evaluation, .dropout_keep = keep}), "MultiHeadAttention.forward: dropout_keep is given in evaluation, where nothing is dropped");
  const MultiHeadAttention plain({.query_width = 4, .heads = 2, .seed = 1});
  EXPECT_EQ(error_message([&] { plain.forward({.query = x}, out, {.mode = Mode::training, .dropout_keep = keep}); }),
            "MultiHeadAttention.forward: dropout_keep is given to a layer whose dropout is 0: nothing is dropped");
}

TEST(MultiHeadAttentionMessages, TrainingWithAWorkspaceOfConstantParametersIsRefused) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 1});
  MultiHeadAttention grads = zeros_like(layer);
  const Tensor x = Random(1).tensor(DType::f32, {2, 3, 4});
  Tensor out(DType::f32, x.shape()), d_x(DType::f32, x.shape());
  const Workspace constant(Parameters::constant);
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.mode = Mode::training, .workspace = &constant}); }),
            "MultiHeadAttention.forward: a workspace of Parameters::constant cannot be used in training, because it keeps copies of the parameters of the first call; "
            "use Parameters::may_change");
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {.workspace = &constant}, &saved);
  EXPECT_EQ(error_message([&] { layer.backward(saved, out, {.parameters = &grads}); }),
            "MultiHeadAttention.backward: gradients of parameters cannot be computed with a workspace that takes them as constant (Parameters::constant); train with a "
            "Workspace of Parameters::may_change");
  // without gradients of the parameters such a workspace is allowed, as for a frozen layer below a trained layer
  EXPECT_EQ(error_message([&] { layer.backward(saved, out, {.query = d_x}); }), "");
  layer.forward({.query = x}, out, {}, &saved);
  EXPECT_NE(error_message([&] { layer.backward(saved, out, {.parameters = &grads}, {.workspace = &constant}); }), "");
}

TEST(MultiHeadAttentionMessages, APassSavedByALayerOfAnotherStructureIsRefused) {
  const MultiHeadAttentionConfig config{.query_width = 4, .heads = 2, .seed = 1};
  const MultiHeadAttention layer(config);
  const Tensor x = Random(1).tensor(DType::f32, {4, 4, 4});
  Tensor out(DType::f32, x.shape()), d_x(DType::f32, x.shape());
  const auto refused = [&](auto change) {
    MultiHeadAttentionConfig other = config;
    change(other);
    const MultiHeadAttention saver(other);
    MultiHeadAttention::Saved saved;
    Tensor its_out(other.dtype, saver.output_shape({.query = x}));
    saver.forward({.query = x}, its_out, {}, &saved);
    return error_message([&] { layer.backward(saved, out, {.query = d_x}); });
  };
  const std::string start = "MultiHeadAttention.backward: saved comes from a layer with ";
  EXPECT_EQ(refused([](auto& c) { c.gate = Gate::sigmoid; }), start + "a gate: yes; this layer: no");
  EXPECT_EQ(refused([](auto& c) { c.output = OutputProjection::none; }), start + "an output projection: no; this layer: yes");
  EXPECT_EQ(refused([](auto& c) { c.heads = 4; }), start + "heads 4; this layer: 2");
  EXPECT_EQ(refused([](auto& c) { c.kv_heads = 1; }), start + "kv_heads 1; this layer: 2");
  EXPECT_EQ(refused([](auto& c) { c.value_head_width = 1; }), start + "value_head_width 1; this layer: 2");
  EXPECT_EQ(refused([](auto& c) { c.axis = 0; }), start + "axis 0; this layer: -2");
  EXPECT_EQ(refused([](auto& c) { c.add_bias_kv = true; }), start + "add_bias_kv: yes; this layer: no");
  EXPECT_EQ(refused([](auto& c) { c.add_zero_attn = true; }), start + "add_zero_attn: yes; this layer: no");
  EXPECT_EQ(refused([](auto& c) { c.sink = true; }), start + "learned sink logits: yes; this layer: no");
  EXPECT_EQ(refused([](auto& c) { c.seed = 7, c.dropout = 0.5, c.bias = false; }), "");
}

// AlphaFold's pair_mask [.., i, j] has the same order of dimensions as the pair tensor [.., i, j, c]. For attention along i, a key mask [*,S] is the transpose
// of pair_mask.
TEST(MultiHeadAttentionMessages, AKeyMaskThatFitsBothShapesIsRefused) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .global_query = GlobalQuery::masked_mean, .axis = -3, .dtype = DType::f64, .seed = 1});
  Random random(2);
  const auto out_of = [&](const Tensor& x, const AttentionOptions& options, MultiHeadAttention::Saved* saved = nullptr) {
    Tensor out(DType::f64, layer.output_shape({.query = x}));
    layer.forward({.query = x}, out, options, saved);
    return out;
  };
  const Tensor square = random.tensor(DType::f64, {2, 3, 3, 4}), table = random.tensor(DType::f64, {2, 3, 5, 4});
  Tensor mask(DType::boolean, {2, 3, 3}), of_table(DType::boolean, {2, 3, 5}), sequences(DType::boolean, {2, 1, 1});
  for (Tensor* some : {&mask, &of_table, &sequences}) {
    for (std::int64_t i = 0; i < numel(some->shape()); ++i) some->data<bool>()[i] = i % 4 != 1;
  }
  EXPECT_EQ(error_message([&] { out_of(square, {.mask = {.attend_keys = mask}}); }),
            "MultiHeadAttention.forward: attend_keys is [2,3,3], which may be [*,S] = [2,3,3], with axis 1 of the input moved last, or have the layout of the input, "
            "[2,3,3]; set mask_like_input (--mask-like-input): true means the layout of the input");
  const Tensor row(DType::boolean, {3});
  EXPECT_NE(error_message([&] { out_of(square, {.mask = {.block_keys = row}}); }), "");
  EXPECT_EQ(error_message([&] { out_of(table, {.mask = {.attend_keys = of_table}}); }),
            "MultiHeadAttention.forward: attend_keys is [2,3,5]; it must broadcast to [*,S] = [2,5,3], with axis 1 of the input moved last. It fits the layout of the input; "
            "set mask_like_input (--mask-like-input on)");
  EXPECT_EQ(error_message([&] { out_of(table, {.mask_like_input = true}); }), "");  // with mask_like_input = true, the mask may also be absent
  EXPECT_EQ(error_message([&] { out_of(table, {.mask = {.attend_keys = mask}, .mask_like_input = true}); }),
            "MultiHeadAttention.forward: attend_keys is [2,3,3]; with mask_like_input it must broadcast to [2,3,5], which has the keys along axis 1");

  const auto move = [](const Tensor& x) { return ConstTensorView(x).move_axis(1, -1); };
  for (MultiHeadAttention::Saved saved; MultiHeadAttention::Saved* to : {static_cast<MultiHeadAttention::Saved*>(nullptr), &saved}) {
    const Tensor named = out_of(square, {.mask = {.attend_keys = mask}, .mask_like_input = true}, to);
    EXPECT_TRUE(same_bits(named, out_of(square, {.mask = {.attend_keys = move(mask)}, .mask_like_input = false}, to)));
    EXPECT_FALSE(same_bits(named, out_of(square, {.mask = {.attend_keys = mask}, .mask_like_input = false}, to)));
    EXPECT_TRUE(same_bits(out_of(table, {.mask = {.block_keys = of_table}, .mask_like_input = true}, to),
                          out_of(table, {.mask = {.block_keys = move(of_table)}}, to)));
    EXPECT_TRUE(same_bits(out_of(square, {.mask = {.attend_keys = sequences}}, to),
                          out_of(square, {.mask = {.attend_keys = sequences}, .mask_like_input = true}, to)));
  }
}

TEST(MultiHeadAttentionMessages, AForwardPassThatFailsSavesNothing) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 1});
  const Tensor x = Random(1).tensor(DType::f32, {2, 3, 4});
  Tensor out(DType::f32, {2, 3, 4}), lengths(DType::i64, {2});
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {}, &saved);
  EXPECT_TRUE(saved.lse);
  lengths.data<std::int64_t>()[1] = 4;
  EXPECT_THROW(layer.forward({.query = x}, out, {.mask = {.key_lengths = lengths}}, &saved), Error);
  EXPECT_FALSE(saved.lse);
}

TEST(MultiHeadAttentionMessages, TheOutputSharesNoMemoryWithMasksOrParameters) {
  MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 1});
  const Tensor x(DType::f32, {4, 4});
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, layer.output.weight); }),
            "MultiHeadAttention.forward: out overlaps the parameter output.weight; outputs need memory of their own");
  Tensor out(DType::f32, {4, 4});
  const ConstTensorView mask(out.view().data(), DType::boolean, {4, 4});
  EXPECT_EQ(error_message([&] { layer.forward({.query = x}, out, {.mask = {.attend = mask}}); }),
            "MultiHeadAttention.forward: out overlaps attend; outputs need memory of their own");
}

TEST(MultiHeadAttentionMessages, AttentionWeightsNeedSavedActivationsAndAnOutputOfTheRightShapeThatOverlapsNothing) {
  const MultiHeadAttention layer({.query_width = 8, .heads = 2, .seed = 1});
  const Tensor query(DType::f32, {1, 3, 8});
  Tensor out(DType::f32, query.shape()), weights(DType::f32, {1, 2, 3, 3}), wrong(DType::f32, {1, 2, 3, 4});
  MultiHeadAttention::Saved saved;
  const auto refused = [&](TensorView given, MultiHeadAttention::Saved* to) {
    return error_message([&] { layer.forward({.query = query}, out, {}, to, given); });
  };
  EXPECT_EQ(refused(weights, nullptr), "MultiHeadAttention.forward: attention_weights can only be computed together with saved activations");
  EXPECT_EQ(refused(wrong, &saved), "MultiHeadAttention.forward: attention_weights is [1,2,3,4]; it must be [1,2,3,3]");
  EXPECT_EQ(refused(TensorView(out.data<float>(), {1, 2, 3, 3}), &saved), "MultiHeadAttention.forward: attention_weights overlaps out; outputs need memory of their own");
  layer.forward({.query = query}, out, {}, &saved, weights);
}

TEST(MultiHeadAttentionMessages, AGradientOfTheBiasHasItsShapeWithAddedKeysToo) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .add_bias_kv = true, .seed = 1});
  const Tensor x(DType::f32, {2, 3, 4}), bias(DType::f32, {3, 3});
  Tensor out(DType::f32, x.shape()), d_bias(DType::f32, {2, 2, 3, 3});
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {.bias = bias}, &saved);
  EXPECT_EQ(error_message([&] { layer.backward(saved, out, {.bias = d_bias}); }),
            "MultiHeadAttention.backward: the gradient of bias is [2,2,3,3]; it must be [3,3]");
}

TEST(MultiHeadAttentionMessages, GradientsShareNoMemoryWithEachOtherOrWithWhatIsRead) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .seed = 1});
  const Tensor key(DType::f32, {2, 3, 4});
  Tensor x(DType::f32, {2, 3, 4}), out(DType::f32, x.shape()), d_x(DType::f32, x.shape()), bias(DType::f32, {3, 3});
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x, .key = key}, out, {.bias = bias}, &saved);
  const auto refused = [&](const MultiHeadAttention::Gradients& gradients) {
    return error_message([&] { layer.backward(saved, out, gradients); });
  };
  const std::string rule = "; outputs need memory of their own";
  EXPECT_EQ(refused({.sink = d_x.view().reshape({24}).slice(0, 0, 2)}), "MultiHeadAttention.backward: the gradient of sink is requested, but forward() was called without this input");
  EXPECT_EQ(refused({.bias = bias}), "MultiHeadAttention.backward: the gradient of bias overlaps bias" + rule);
  EXPECT_EQ(refused({.bias = x.view().reshape({24}).slice(0, 0, 9).reshape({3, 3})}),
            "MultiHeadAttention.backward: the gradient of bias overlaps query" + rule);
  EXPECT_EQ(refused({.query = d_x, .bias = d_x.view().reshape({24}).slice(0, 0, 9).reshape({3, 3})}),
            "MultiHeadAttention.backward: the gradient of bias overlaps the gradient of query" + rule);
}

TEST(MultiHeadAttentionMessages, GradientsOfAnotherStructureAreRefusedBeforeAnythingIsWritten) {
  const MultiHeadAttention layer({.query_width = 4, .heads = 2, .gate = Gate::sigmoid, .seed = 1});
  const Tensor x(DType::f32, {3, 4});
  Tensor out(DType::f32, x.shape()), d_x(DType::f32, x.shape());
  fill(d_x, 7);
  MultiHeadAttention::Saved saved;
  layer.forward({.query = x}, out, {}, &saved);
  MultiHeadAttention grads({.query_width = 4, .heads = 2, .seed = 1});
  const MultiHeadAttention before = grads;
  EXPECT_EQ(error_message([&] { layer.backward(saved, out, {.query = d_x, .parameters = &grads}); }),
            "MultiHeadAttention.backward: gradients.parameters->gate.weight is missing");
  EXPECT_TRUE(same_bits(grads.output.weight, before.output.weight));
  EXPECT_EQ(test::to_doubles(d_x)[0], 7);
}

}  // namespace
}  // namespace polyhead::nn
