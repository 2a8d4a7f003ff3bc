#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "io/test_files.h"
#include "polyhead/io/attention_parameters.h"

namespace polyhead::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Names = std::vector<std::pair<std::string, Shape>>;

// Parses a text such as "q.weight 12x10, q.bias 12" to names and shapes.
Names names_of(const std::string& text) {
  Names names;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(", ", at), text.size()), space = text.find(' ', at);
    Shape shape;
    for (std::size_t digit = space; digit < end; digit = std::min(text.find('x', digit + 1), end)) {
      shape.push_back(std::stoll(text.substr(digit + 1)));
    }
    names.emplace_back(text.substr(at, space - at), shape);
    at = end + 2;
  }
  return names;
}

struct Facts {
  std::int64_t heads = 0, kv_heads = 0;  // numbers of heads and of key/value heads that load_attention() finds in the file
  std::int64_t given = 0;                // number of heads that the caller gives
  std::int64_t given_kv = 0;             // key/value heads that follow from `given`; 0: as many as `given`
  bool global_query = false;
  Spelling spelling = {};
};

// A layer as its library or tutorial stores it, and the result that loading it must give.
struct Sample {
  std::string layout, variant;
  std::string written, canonical;
  Facts facts;

  Names parameters() const { return names_of(written); }
};

void PrintTo(const Sample& sample, std::ostream* out) { *out << sample.layout << " " << sample.variant; }

// clang-format off
// Each layer has different widths for its inputs, keys and values, as far as its source allows that.
const std::vector<Sample>& samples() {
  static const std::vector<Sample> list{
      {"torch", "packed",
       "in_proj_weight 36x12, in_proj_bias 36, out_proj.weight 12x12, out_proj.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 4}},
      {"torch", "no_bias",
       "in_proj_weight 36x12, out_proj.weight 12x12",
       "k.weight 12x12, output.weight 12x12, q.weight 12x12, v.weight 12x12", {.given = 4}},
      {"torch", "own_widths_and_extra_key",
       "q_proj_weight 12x12, k_proj_weight 12x5, v_proj_weight 12x7, in_proj_bias 36, bias_k 1x1x12, bias_v 1x1x12, "
       "out_proj.weight 12x12, out_proj.bias 12",
       "bias_k 1x1x12, bias_v 1x1x12, k.bias 12, k.weight 12x5, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, "
       "v.bias 12, v.weight 12x7", {.given = 3}},
      {"bert", "plain",
       "attention.self.query.weight 12x10, attention.self.query.bias 12, attention.self.key.weight 12x10, "
       "attention.self.key.bias 12, attention.self.value.weight 12x10, attention.self.value.bias 12, "
       "attention.output.dense.weight 10x12, attention.output.dense.bias 10",
       "k.bias 12, k.weight 12x10, output.bias 10, output.weight 10x12, q.bias 12, q.weight 12x10, v.bias 12, v.weight 12x10", {.given = 2}},
      {"albert", "plain",
       "attention.query.weight 12x12, attention.query.bias 12, attention.key.weight 12x12, attention.key.bias 12, "
       "attention.value.weight 12x12, attention.value.bias 12, attention.dense.weight 12x12, attention.dense.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 2}},
      {"gpt2", "plain",
       "attn.c_attn.weight 12x36, attn.c_attn.bias 36, attn.c_proj.weight 12x12, attn.c_proj.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 3}},
      {"mingpt", "plain",
       "attn.c_attn.weight 36x12, attn.c_attn.bias 36, attn.c_proj.weight 12x12, attn.c_proj.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 3}},
      {"llama", "grouped",
       "q_proj.weight 24x10, k_proj.weight 12x10, v_proj.weight 12x10, o_proj.weight 10x24",
       "k.weight 12x10, output.weight 10x24, q.weight 24x10, v.weight 12x10", {.given = 4, .given_kv = 2}},
      {"llama", "qwen2_biases",
       "q_proj.weight 24x10, q_proj.bias 24, k_proj.weight 6x10, k_proj.bias 6, v_proj.weight 6x10, v_proj.bias 6, o_proj.weight 10x24",
       "k.bias 6, k.weight 6x10, output.weight 10x24, q.bias 24, q.weight 24x10, v.bias 6, v.weight 6x10", {.given = 8, .given_kv = 2}},
      {"llama", "gpt_oss_sinks",
       "q_proj.weight 24x10, q_proj.bias 24, k_proj.weight 12x10, k_proj.bias 12, v_proj.weight 12x10, v_proj.bias 12, o_proj.weight 10x24, "
       "o_proj.bias 10, sinks 4",
       "k.bias 12, k.weight 12x10, output.bias 10, output.weight 10x24, q.bias 24, q.weight 24x10, sink 4, v.bias 12, v.weight 12x10",
       {.heads = 4, .kv_heads = 2}},
      {"bart", "cross",
       "q_proj.weight 12x12, q_proj.bias 12, k_proj.weight 12x7, k_proj.bias 12, v_proj.weight 12x7, v_proj.bias 12, out_proj.weight 12x12, out_proj.bias 12",
       "k.bias 12, k.weight 12x7, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x7", {.given = 3}},
      {"whisper", "plain",
       "q_proj.weight 12x12, q_proj.bias 12, k_proj.weight 12x12, v_proj.weight 12x12, v_proj.bias 12, out_proj.weight 12x12, out_proj.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 3}},
      {"distilbert", "plain",
       "attention.q_lin.weight 12x12, attention.q_lin.bias 12, attention.k_lin.weight 12x12, attention.k_lin.bias 12, "
       "attention.v_lin.weight 12x12, attention.v_lin.bias 12, attention.out_lin.weight 12x12, attention.out_lin.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 2}},
      {"mpnet", "plain",
       "attention.attn.q.weight 12x12, attention.attn.q.bias 12, attention.attn.k.weight 12x12, attention.attn.k.bias 12, "
       "attention.attn.v.weight 12x12, attention.attn.v.bias 12, attention.attn.o.weight 12x12, attention.attn.o.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 2}},
      {"modernbert", "plain",
       "attn.Wqkv.weight 36x12, attn.Wo.weight 12x12",
       "k.weight 12x12, output.weight 12x12, q.weight 12x12, v.weight 12x12", {.given = 4}},
      {"modernbert", "biases",
       "attn.Wqkv.weight 36x12, attn.Wo.weight 12x12, attn.Wqkv.bias 36, attn.Wo.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 4}},
      {"vit", "bias",
       "attention.attention.query.weight 12x12, attention.attention.query.bias 12, attention.attention.key.weight 12x12, attention.attention.key.bias 12, "
       "attention.attention.value.weight 12x12, attention.attention.value.bias 12, attention.output.dense.weight 12x12, attention.output.dense.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 4}},
      {"vit", "no_qkv_bias",
       "attention.attention.query.weight 12x12, attention.attention.key.weight 12x12, attention.attention.value.weight 12x12, attention.output.dense.weight 12x12, attention.output.dense.bias 12",
       "k.weight 12x12, output.bias 12, output.weight 12x12, q.weight 12x12, v.weight 12x12", {.given = 4}},
      {"timm", "bias",
       "qkv.weight 36x12, qkv.bias 36, proj.weight 12x12, proj.bias 12",
       "k.bias 12, k.weight 12x12, output.bias 12, output.weight 12x12, q.bias 12, q.weight 12x12, v.bias 12, v.weight 12x12", {.given = 4}},
      {"timm", "no_qkv_bias",
       "qkv.weight 36x12, proj.weight 12x12, proj.bias 12",
       "k.weight 12x12, output.bias 12, output.weight 12x12, q.weight 12x12, v.weight 12x12", {.given = 4}},
      {"t5", "first_layer",
       "q.weight 12x10, k.weight 12x10, v.weight 12x10, o.weight 10x12, relative_attention_bias.weight 32x4",
       "k.weight 12x10, output.weight 10x12, q.weight 12x10, relative_attention_bias 32x4, v.weight 12x10", {.heads = 4, .kv_heads = 4}},
      {"t5", "later_layer",
       "q.weight 12x10, k.weight 12x10, v.weight 12x10, o.weight 10x12",
       "k.weight 12x10, output.weight 10x12, q.weight 12x10, v.weight 12x10", {.given = 4}},
      {"d2l", "bias",
       "W_q.weight 24x9, W_q.bias 24, W_k.weight 24x7, W_k.bias 24, W_v.weight 24x11, W_v.bias 24, W_o.weight 24x24, "
       "W_o.bias 24",
       "k.bias 24, k.weight 24x7, output.bias 24, output.weight 24x24, q.bias 24, q.weight 24x9, v.bias 24, v.weight 24x11", {.given = 4}},
      {"d2l", "no_bias",
       "W_q.weight 24x9, W_k.weight 24x7, W_v.weight 24x11, W_o.weight 24x24",
       "k.weight 24x7, output.weight 24x24, q.weight 24x9, v.weight 24x11", {.given = 4}},
      {"alphafold", "gated",
       "linear_q.weight 24x8, linear_k.weight 24x8, linear_v.weight 24x8, linear_g.weight 24x8, linear_g.bias 24, "
       "linear_o.weight 8x24, linear_o.bias 8",
       "gate.bias 24, gate.weight 24x8, k.weight 24x8, output.bias 8, output.weight 8x24, q.weight 24x8, v.weight 24x8", {.given = 4}},
      {"alphafold", "global",
       "linear_q.weight 24x8, linear_k.weight 6x8, linear_v.weight 6x8, linear_o.weight 8x24, linear_o.bias 8",
       "k.weight 6x8, output.bias 8, output.weight 8x24, q.weight 24x8, v.weight 6x8", {.heads = 4, .kv_heads = 1, .global_query = true}},
      {"alphafold", "embedding_bias",
       "linear_q.weight 24x8, linear_q.bias 24, linear_k.weight 24x8, linear_k.bias 24, linear_v.weight 24x8, linear_v.bias 24, "
       "linear_o.weight 8x24, linear_o.bias 8",
       "k.bias 24, k.weight 24x8, output.bias 8, output.weight 8x24, q.bias 24, q.weight 24x8, v.bias 24, v.weight 24x8", {.given = 4}},
      {"multi_atten", "unequal",
       "Wq.weight 15x24, Wq.bias 15, Wk.weight 15x24, Wk.bias 15, Wv.weight 27x24, Wv.bias 27",
       "k.bias 15, k.weight 15x24, q.bias 15, q.weight 15x24, v.bias 27, v.weight 27x24", {.given = 3}},
      {"multi_head_dim_qk_dim_v", "unequal",
       "q.weight 12x30, q.bias 12, k.weight 12x30, k.bias 12, v.weight 21x30, v.bias 21, out.weight 30x21, out.bias 30",
       "k.bias 12, k.weight 12x30, output.bias 30, output.weight 30x21, q.bias 12, q.weight 12x30, v.bias 21, v.weight 21x30", {.given = 3}},
      {"single_head", "unequal",
       "q.weight 7x20, q.bias 7, k.weight 7x20, k.bias 7, v.weight 11x20, v.bias 11",
       "k.bias 7, k.weight 7x20, q.bias 7, q.weight 7x20, v.bias 11, v.weight 11x20", {.heads = 1, .kv_heads = 1}},
      {"keras", "with_colon",
       "query/kernel:0 10x4x3, query/bias:0 4x3, key/kernel:0 9x4x3, key/bias:0 4x3, value/kernel:0 8x4x5, value/bias:0 4x5, "
       "attention_output/kernel:0 4x5x10, attention_output/bias:0 10",
       "k.bias 12, k.weight 12x9, output.bias 10, output.weight 10x20, q.bias 12, q.weight 12x10, v.bias 20, v.weight 20x8", {.heads = 4, .kv_heads = 4, .spelling = {'/', ":0"}}},
      {"keras", "grouped",
       "query/kernel 10x4x3, key/kernel 9x2x3, value/kernel 8x2x5, attention_output/kernel 4x5x10",
       "k.weight 6x9, output.weight 10x20, q.weight 12x10, v.weight 10x8", {.heads = 4, .kv_heads = 2, .spelling = {'/', ""}}},
      {"flax", "slashes",
       "query/kernel 10x4x3, query/bias 4x3, key/kernel 9x4x3, key/bias 4x3, value/kernel 8x4x3, value/bias 4x3, "
       "out/kernel 4x3x10, out/bias 10",
       "k.bias 12, k.weight 12x9, output.bias 10, output.weight 10x12, q.bias 12, q.weight 12x10, v.bias 12, v.weight 12x8", {.heads = 4, .kv_heads = 4, .spelling = {'/', ""}}},
      {"flax", "dots",
       "query.kernel 10x4x3, key.kernel 9x4x3, value.kernel 8x4x3, out.kernel 4x3x10",
       "k.weight 12x9, output.weight 10x12, q.weight 12x10, v.weight 12x8", {.heads = 4, .kv_heads = 4}},
  };
  return list;
}
// clang-format on

TensorFile file_of(const Names& parameters, const std::string& prefix = "", DType dtype = DType::f64) {
  TensorFile file{.path = "model.safetensors"};
  std::uint32_t seed = 1;
  for (const auto& [name, shape] : parameters) file.tensors.push_back({prefix + name, random_tensor(dtype, shape, seed++)});
  return file;
}

void expect_same_tensors(const std::vector<NamedTensor>& stored, const std::vector<NamedTensor>& original) {
  EXPECT_EQ(stored.size(), original.size());
  for (const NamedTensor& item : original) {
    SCOPED_TRACE(item.name);
    const auto found = std::ranges::find(stored, item.name, &NamedTensor::name);
    ASSERT_NE(found, stored.end());
    expect_same(found->tensor, item.tensor);
  }
}

class EverySample : public ::testing::TestWithParam<Sample> {};

TEST_P(EverySample, IsRecognisedAmongOtherTensors) {
  const Sample& sample = GetParam();
  const std::string prefix = sample.facts.spelling.separator == '/' ? "params/encoder/block_0/" : "model.encoder.0.";
  for (const std::string& at : {std::string(), prefix}) {
    TensorFile file = file_of(sample.parameters(), at);
    std::vector<std::string> names;
    for (const NamedTensor& item : file.tensors) names.push_back(item.name);
    // Adds tensors that are no parameters of the layer, as in real files and the golden vectors: gradients, inputs, masks, other modules.
    for (std::size_t i = 0; at.empty() && i < sample.parameters().size(); ++i)
      file.tensors.push_back({"d_" + sample.parameters()[i].first, Tensor::copy_of(file.tensors[i].tensor)});
    for (const char* other :
         {"query", "key", "q", "k", "v", "bias", "out", "d_out", "block", "LayerNorm.weight", "mlp.c_proj.weight", "attn.bias"}) {
      if (std::ranges::find(names, other) == names.end()) file.tensors.push_back({other, random_tensor(DType::f64, {12, 12})});
    }
    const std::vector<LayoutMatch> matches = find_attention(file.tensors);
    ASSERT_EQ(matches.size(), 1u);
    EXPECT_EQ(matches[0].layout, sample.layout);
    EXPECT_EQ(matches[0].prefix, at);
    EXPECT_EQ(matches[0].heads, sample.facts.heads);
    EXPECT_EQ(matches[0].kv_heads, sample.facts.kv_heads);
    EXPECT_EQ(matches[0].spelling, sample.facts.spelling);
    EXPECT_THAT(matches[0].names, ::testing::UnorderedElementsAreArray(names));
  }
}

TEST_P(EverySample, HasTheCanonicalShapes) {
  TensorFile file = file_of(GetParam().parameters());
  const AttentionParameters parameters = load_attention(file);
  Names shapes;
  for (const auto& [name, tensor] : parameters.tensors) shapes.emplace_back(name, tensor.shape());
  EXPECT_EQ(shapes, names_of(GetParam().canonical));
  EXPECT_EQ(parameters.global_query, GetParam().facts.global_query);
  EXPECT_EQ(parameters.scale, GetParam().layout == "t5" ? std::optional(1.0) : std::nullopt);
}

TEST_P(EverySample, ComesBackThroughAFileInEveryDtypeWithItsBytes) {
  const Sample& sample = GetParam();
  const TestFolder folder;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(info(dtype).name);
    const TensorFile original = file_of(sample.parameters(), "layer.7.", dtype);
    save_tensors(folder / "a.safetensors", original.tensors);
    const AttentionParameters parameters = load_attention(folder / "a.safetensors", {.heads = sample.facts.given});
    EXPECT_EQ(parameters.heads, std::max(sample.facts.given, sample.facts.heads));
    EXPECT_EQ(parameters.kv_heads, sample.facts.given_kv != 0 ? sample.facts.given_kv : std::max(sample.facts.given, sample.facts.kv_heads));
    for (const auto& [name, tensor] : parameters.tensors) EXPECT_EQ(tensor.dtype(), dtype) << name;
    expect_same_tensors(store_attention(parameters), original.tensors);
  }
}

TEST_P(EverySample, WithoutOneOfItsParametersItDoesNotFit) {
  const Sample& sample = GetParam();
  for (std::size_t drop = 0; drop < sample.parameters().size(); ++drop) {
    Names rest = sample.parameters();
    const std::string dropped = rest[drop].first;
    SCOPED_TRACE(dropped);
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(drop));
    TensorFile file = file_of(rest);
    static const std::set<std::string> kOptionalAlone{"relative_attention_bias.weight", "sinks", "o_proj.bias", "qkv.bias", "proj.bias"};
    if (kOptionalAlone.contains(dropped)) continue;
    const std::string error = error_of([&] { load_attention(file, {.layout = sample.layout}); });
    EXPECT_THAT(error, AllOf(StartsWith("format: model.safetensors: there is no attention layer in the layout \"" + sample.layout),
                             HasSubstr(dropped)));
  }
}

TEST_P(EverySample, WithAParameterOfAnotherShapeItDoesNotFit) {
  const Sample& sample = GetParam();
  for (std::size_t change = 0; change < sample.parameters().size(); ++change) {
    Names changed = sample.parameters();
    Shape& shape = changed[change].second;
    shape.push_back(2);
    SCOPED_TRACE(changed[change].first);
    TensorFile file = file_of(changed);
    EXPECT_TRUE(find_attention(file.tensors).empty());
    EXPECT_THAT(error_of([&] { load_attention(file); }), HasSubstr("the nearest "));
  }
}

TEST_P(EverySample, IsOneOfTheDescribedLayoutsWithTheseParameters) {
  const std::vector<LayoutDescription> all = layouts();
  const auto row = std::ranges::find(all, GetParam().layout, &LayoutDescription::name);
  ASSERT_NE(row, all.end());
  for (std::string name : {GetParam().parameters()[0].first, GetParam().parameters().back().first}) {
    if (name.ends_with(":0")) name.resize(name.size() - 2);
    if (row->name == "flax") std::ranges::replace(name, '.', '/');
    EXPECT_THAT(row->parameters, ::testing::Contains(StartsWith(name + " [")));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, EverySample, ::testing::ValuesIn(samples()),
                         [](const auto& sample) { return sample.param.layout + "_" + sample.param.variant; });

const Sample& sample(const std::string& layout, const std::string& variant) {
  return *std::ranges::find_if(samples(), [&](const Sample& s) { return s.layout == layout && s.variant == variant; });
}

TEST(Layouts, TellWhatTheSourceCallsItsProjections) {
  using Projections = std::map<std::string, std::string>;
  std::map<std::string_view, Projections> found;
  for (const LayoutDescription& row : layouts()) found[row.name] = row.projections;
  EXPECT_EQ(found["torch"], (Projections{{"q", "in_proj q"}, {"k", "in_proj k"}, {"v", "in_proj v"}, {"output", "out_proj"}}));
  EXPECT_EQ(found["t5"], (Projections{{"q", "q"}, {"k", "k"}, {"v", "v"}, {"output", "o"}}));
  EXPECT_EQ(found["multi_atten"], (Projections{{"q", "Wq"}, {"k", "Wk"}, {"v", "Wv"}}));
  EXPECT_EQ(found["keras"], (Projections{{"q", "query"}, {"k", "key"}, {"v", "value"}, {"output", "attention_output"}}));
  EXPECT_EQ(found["alphafold"]["gate"], "linear_g");
  EXPECT_EQ(found["bert"]["output"], "attention.output.dense");
}

// Element (row, column) of a loaded weight must be the element of the file by which the library that wrote the file multiplies input feature `column` for output
// feature `row`.
TEST(Layouts, KernelsAreTransposedAndHeadsStayInOrder) {
  Tensor kernel(DType::f64, {2, 3, 4});  // (in,heads,width)
  for (int i = 0; i < 24; ++i) kernel.data<double>()[i] = i;
  TensorFile file{.path = "m"};
  for (const char* name : {"query/kernel", "key/kernel", "value/kernel"}) file.tensors.push_back({name, kernel});
  Tensor output(DType::f64, {3, 4, 5});  // (heads,width,out)
  for (int i = 0; i < 60; ++i) output.data<double>()[i] = i;
  file.tensors.push_back({"out/kernel", output});
  const AttentionParameters parameters = load_attention(file);
  const Tensor q = Tensor::copy_of(parameters.tensors.at("q.weight")), out = Tensor::copy_of(parameters.tensors.at("output.weight"));
  for (int in = 0; in < 2; ++in) {
    for (int row = 0; row < 12; ++row) EXPECT_EQ(q.data<double>()[row * 2 + in], in * 12 + row);
  }
  for (int o = 0; o < 5; ++o) {
    for (int column = 0; column < 12; ++column) EXPECT_EQ(out.data<double>()[o * 12 + column], column * 5 + o);
  }
}

TEST(Layouts, PackedProjectionsSplitIntoQueryKeyAndValueInThisOrder) {
  for (const bool gpt2 : {false, true}) {
    SCOPED_TRACE(gpt2 ? "gpt2" : "mingpt");
    Tensor packed(DType::f64, gpt2 ? Shape{2, 6} : Shape{6, 2}), projection = Tensor::of<double>({2, 2}, {0, 1, 2, 3});
    for (int row = 0; row < 6; ++row) {
      for (int in = 0; in < 2; ++in) packed.data<double>()[gpt2 ? in * 6 + row : row * 2 + in] = 10 * row + in;
    }
    TensorFile file{.path = "m"};
    file.tensors.push_back({"attn.c_attn.weight", packed});
    file.tensors.push_back({"attn.c_proj.weight", projection});
    const AttentionParameters parameters = load_attention(file);
    EXPECT_EQ(parameters.layout, gpt2 ? "gpt2" : "mingpt");
    expect_same(parameters.tensors.at("q.weight"), Tensor::of<double>({2, 2}, {0, 1, 10, 11}));
    expect_same(parameters.tensors.at("k.weight"), Tensor::of<double>({2, 2}, {20, 21, 30, 31}));
    expect_same(parameters.tensors.at("v.weight"), Tensor::of<double>({2, 2}, {40, 41, 50, 51}));
    expect_same(parameters.tensors.at("output.weight"), gpt2 ? Tensor::of<double>({2, 2}, {0, 2, 1, 3}) : Tensor::copy_of(projection));
  }
}

TEST(Layouts, LoadedTensorsShareTheMemoryOfTheFile) {
  TensorFile file = file_of(sample("gpt2", "plain").parameters());
  const auto* packed = static_cast<const char*>(file.at("attn.c_attn.weight").view().data());
  const AttentionParameters parameters = load_attention(file);
  EXPECT_EQ(static_cast<const char*>(parameters.tensors.at("k.weight").view().data()), packed + 12 * sizeof(double));
  const Tensor before = Tensor::copy_of(parameters.tensors.at("k.weight"));
  file = {};
  expect_same(parameters.tensors.at("k.weight"), before);
}

TEST(Layouts, EveryLayerOfAModelIsFoundInOrderAndThePrefixChooses) {
  TensorFile file{.path = "model.safetensors"};
  for (int layer = 0; layer < 11; ++layer) {
    TensorFile one = file_of(sample("bert", "plain").parameters(), "encoder.layer." + std::to_string(layer) + ".");
    std::ranges::move(one.tensors, std::back_inserter(file.tensors));
  }
  const std::vector<LayoutMatch> matches = find_attention(file.tensors);
  ASSERT_EQ(matches.size(), 11u);
  for (std::size_t layer = 0; layer < 11; ++layer) EXPECT_EQ(matches[layer].prefix, "encoder.layer." + std::to_string(layer) + ".");
  EXPECT_EQ(
      error_of([&] { load_attention(file); }).substr(0, 140),
      std::string("format: model.safetensors: 11 attention layers fit: \"bert\" at \"encoder.layer.0.\", \"bert\" at \"encoder.layer.1.\", "
                  "\"bert\" at \"encoder.layer.2.\", ")
          .substr(0, 140));
  EXPECT_EQ(load_attention(file, {.prefix = "encoder.layer.1."}).prefix, "encoder.layer.1.");
  EXPECT_EQ(load_attention(file, {.prefix = "encoder.layer.1"}).prefix, "encoder.layer.1.");
  EXPECT_THAT(error_of([&] { load_attention(file, {.prefix = "encoder.layer.11"}); }),
              HasSubstr("there is no attention layer at \"encoder.layer.11\"; the layers that fit are \"bert\" at \"encoder.layer.0.\", "));
}

TEST(Layouts, AnEmptyPrefixChoosesALayerWithoutAPrefix) {
  TensorFile file = file_of(sample("torch", "packed").parameters());
  TensorFile other = file_of(sample("torch", "packed").parameters(), "decoder.");
  std::ranges::move(other.tensors, std::back_inserter(file.tensors));
  EXPECT_THAT(error_of([&] { load_attention(file); }), HasSubstr("2 attention layers fit"));
  EXPECT_EQ(load_attention(file, {.prefix = ""}).prefix, "");
  EXPECT_EQ(load_attention(file, {.prefix = "decoder"}).prefix, "decoder.");
  EXPECT_THAT(error_of([&] { load_attention(other, {.prefix = ""}); }), HasSubstr("there is no attention layer without a prefix"));
}

TEST(Layouts, ExtentsWhoseProductOverflowsDoNotFit) {
  constexpr std::int64_t kMany = std::int64_t{1} << 62;
  TensorFile file{.path = "m"};
  file.tensors.push_back({"attn.c_attn.weight", Tensor::share(TensorView(nullptr, DType::f32, {kMany, 0}), nullptr)});
  file.tensors.push_back({"attn.c_proj.weight", Tensor::share(TensorView(nullptr, DType::f32, {0, kMany}), nullptr)});
  for (const char* name : {"query/kernel", "key/kernel", "value/kernel", "attention_output/kernel"}) {
    file.tensors.push_back({name, Tensor::share(TensorView(nullptr, DType::f32, {0, kMany, kMany}), nullptr)});
  }
  EXPECT_TRUE(find_attention(file.tensors).empty());
}

TEST(Layouts, AFileThatFitsSeveralNamesTheCandidates) {
  Names both = sample("flax", "slashes").parameters();
  both.push_back({"attention_output/kernel", {4, 3, 10}});
  both.push_back({"attention_output/bias", {10}});
  TensorFile file = file_of(both);
  EXPECT_EQ(error_of([&] { load_attention(file); }),
            "format: model.safetensors: 2 attention layers fit: \"keras\" without a prefix, \"flax\" without a prefix; name the layout and "
            "the prefix of one of "
            "them");
  EXPECT_EQ(load_attention(file, {.layout = "keras"}).layout, "keras");
  EXPECT_EQ(load_attention(file, {.layout = "flax"}).layout, "flax");
}

TEST(Layouts, T5AndTheTutorialsMultiHeadAttentionDifferByTheNameOfTheOutput) {
  const Names qkv{{"q.weight", {12, 12}}, {"k.weight", {12, 12}}, {"v.weight", {12, 12}}};
  const auto found = [&](const Names& more) {
    Names all = qkv;
    all.insert(all.end(), more.begin(), more.end());
    const std::vector<LayoutMatch> matches = find_attention(file_of(all).tensors);
    return matches.size() == 1 ? matches[0].layout : std::to_string(matches.size()) + " matches";
  };
  EXPECT_EQ(found({}), "single_head");
  EXPECT_EQ(found({{"o.weight", {12, 12}}}), "t5");
  EXPECT_EQ(found({{"out.weight", {12, 12}}}), "multi_head_dim_qk_dim_v");
  EXPECT_EQ(found({{"o.weight", {12, 12}}, {"out.weight", {12, 12}}}), "2 matches");
  // If the shape of an output projection does not fit, load_attention() must not load the layer without this projection.
  EXPECT_EQ(found({{"out.weight", {12, 13}}}), "0 matches");
  EXPECT_EQ(found({{"o.weight", {12, 12}}, {"q.bias", {12}}, {"k.bias", {12}}, {"v.bias", {12}}}), "0 matches");
}

TEST(Layouts, UnknownParametersInsideALayerAreNotIgnored) {
  Names names = sample("d2l", "no_bias").parameters();
  names.push_back({"W_q.lora_A.weight", {2, 9}});
  TensorFile file = file_of(names);
  EXPECT_THAT(error_of([&] { load_attention(file); }),
              HasSubstr("the nearest is \"d2l\" without a prefix, but there is \"W_q.lora_A.weight\", which this layout does not have"));
  Names normalised = sample("flax", "slashes").parameters();
  normalised.push_back({"query_ln/scale", {3}});
  TensorFile other = file_of(normalised);
  EXPECT_THAT(error_of([&] { load_attention(other); }), HasSubstr("but there is \"query_ln/scale\", which this layout does not have"));
}

TEST(Layouts, ATensorThatChangesTheResultIsNotIgnored) {
  const std::pair<const char*, const char*> added[] = {
      {"bert", "attention.self.relative_position_bias_table"},  // Swin has this parameter
      {"bert", "attention.self.distance_embedding.weight"},     // BERT with relative_key has this parameter
      {"llama", "q_norm.weight"},                               // Qwen 3 has this parameter
      {"llama", "g_proj.weight"},                               // the projection of a gate
      {"bart", "relative_position.weight"},
      {"timm", "q_bias"},                                       // BEiT has this parameter
      {"timm", "relative_position_bias_table"},                 // Swin has this parameter
      {"timm", "rel_pos_h"}};                                   // SAM has this parameter
  for (const auto& [layout, name] : added) {
    const auto first = std::ranges::find(samples(), layout, &Sample::layout);
    Names names = first->parameters();
    names.emplace_back(name, Shape{3});
    TensorFile file = file_of(names, "layers.0.");
    EXPECT_THAT(error_of([&] { load_attention(file); }), HasSubstr(std::string("but there is \"layers.0.") + name + "\", which this layout does not have")) << layout;
  }
  // Older checkpoints also hold the buffer rotary_emb.inv_freq, which is no parameter and is ignored.
  Names llama = sample("llama", "grouped").parameters();
  llama.emplace_back("rotary_emb.inv_freq", Shape{3});
  TensorFile file = file_of(llama, "layers.0.self_attn.");
  EXPECT_EQ(load_attention(file).layout, "llama");
}

TEST(Layouts, ARefusalNamesTheNearestLayoutsAndAllNamesThatTheyMiss) {
  TensorFile file = file_of({{"x.q_proj.weight", {12, 12}}, {"x.k_proj.weight", {12, 12}}, {"x.v_proj.weight", {12, 12}}, {"x.dense.weight", {12, 12}}});
  const std::string error = error_of([&] { load_attention(file); });
  EXPECT_THAT(error, HasSubstr("; the nearest are \"llama\" at \"x.\", but there is no \"x.o_proj.weight\"; \"bart\" at \"x.\", but there is no "
                               "\"x.out_proj.weight\"; \"whisper\" at \"x.\", but there is no \"x.out_proj.weight\", \"x.q_proj.bias\""));
}

TEST(Layouts, AKeyWithoutABiasGetsABiasOfZerosThatIsNotStored) {
  TensorFile file = file_of(sample("whisper", "plain").parameters());
  AttentionParameters parameters = load_attention(file, {.heads = 3});
  expect_same(parameters.tensors.at("k.bias"), Tensor(DType::f64, {12}));
  expect_same_tensors(store_attention(parameters), file.tensors);
  parameters.tensors.at("k.bias").data<double>()[5] = 1;
  EXPECT_THAT(error_of([&] { store_attention(parameters); }), HasSubstr("has no place for k.bias [12]"));
}

TEST(Layouts, OnlyLlamasAndModernBertsLayersAskForRotaryPositions) {
  for (const Sample& sample : samples()) {
    TensorFile file = file_of(sample.parameters());
    EXPECT_EQ(load_attention(file).rotary, sample.layout == "llama" || sample.layout == "modernbert") << sample.layout;
  }
}

TEST(Layouts, AFileWithoutALayerNamesTheLayoutsAndTheNearestMiss) {
  TensorFile nothing = file_of({{"weight", {3}}});
  std::string names;
  for (const LayoutDescription& row : layouts()) names += (names.empty() ? "" : ", ") + std::string(row.name);
  EXPECT_EQ(error_of([&] { load_attention(nothing); }),
            "format: model.safetensors: there is no attention layer in any known layout (" + names +
                "); no tensor has a name that such a layer requires; the file has \"weight\"");
  TensorFile near = file_of({{"x.in_proj_weight", {36, 12}}, {"x.in_proj_bias", {36}}});
  EXPECT_THAT(error_of([&] { load_attention(near); }),
              HasSubstr("; the nearest is \"torch\" at \"x.\", but there is no \"x.out_proj.weight\""));
  TensorFile odd = file_of({{"W_q.weight", {24, 9}}, {"W_k.weight", {23, 9}}, {"W_v.weight", {24, 9}}, {"W_o.weight", {24, 24}}});
  EXPECT_THAT(error_of([&] { load_attention(odd); }),
              HasSubstr("\"d2l\" without a prefix, but q.weight has 24 rows, k.weight 23; they must be equal"));
  EXPECT_THAT(error_of([&] { load_attention(odd, {.layout = "d2 l"}); }),
              HasSubstr("invalid_argument: load_attention: the layout \"d2 l\" is not known; torch, "));
}

TEST(Layouts, HeadsThatDoNotFitTheFileAreRefused) {
  TensorFile d2l = file_of(sample("d2l", "bias").parameters()), keras = file_of(sample("keras", "grouped").parameters());
  TensorFile global = file_of(sample("alphafold", "global").parameters()), one = file_of(sample("single_head", "unequal").parameters());
  EXPECT_EQ(
      error_of([&] { load_attention(d2l, {.heads = 5}); }),
      "invalid_argument: model.safetensors: the layer \"d2l\" without a prefix has 24 rows in q.weight, which do not divide into 5 heads");
  EXPECT_THAT(error_of([&] { load_attention(d2l, {.heads = -1}); }), HasSubstr("heads is -1"));
  EXPECT_THAT(error_of([&] { load_attention(keras, {.heads = 2}); }), HasSubstr("has 4 heads, not 2"));
  EXPECT_THAT(error_of([&] { load_attention(global, {.heads = 2}); }), HasSubstr("has 4 heads, not 2"));
  EXPECT_THAT(error_of([&] { load_attention(one, {.heads = 7}); }), HasSubstr("has 1 heads, not 7"));
  EXPECT_EQ(load_attention(keras, {.heads = 4}).kv_heads, 2);
  TensorFile llama = file_of(sample("llama", "grouped").parameters());
  EXPECT_THAT(error_of([&] { load_attention(llama, {.heads = 3}); }), HasSubstr("has 2 query heads for each key/value head; 3 heads are not a multiple of that"));
  EXPECT_THAT(error_of([&] { load_attention(llama, {.heads = 16}); }), HasSubstr("has 24 rows in q.weight, which do not divide into 16 heads"));
  TensorFile unequal =
      file_of({{"query/kernel", {10, 4, 3}}, {"key/kernel", {9, 3, 3}}, {"value/kernel", {8, 3, 5}}, {"out/kernel", {4, 5, 10}}});
  EXPECT_THAT(error_of([&] { load_attention(unequal); }), HasSubstr("4 query heads do not divide among 3 key/value heads"));
  TensorFile differing =
      file_of({{"query/kernel", {10, 4, 3}}, {"key/kernel", {9, 4, 3}}, {"value/kernel", {8, 2, 5}}, {"out/kernel", {4, 5, 10}}});
  EXPECT_THAT(error_of([&] { load_attention(differing); }),
              HasSubstr("\"value/kernel\" has 2 heads where another parameter of the layer has 4"));
}

TEST(Layouts, ALayerTranslatesToAnotherLayout) {
  TensorFile torch = file_of(sample("torch", "packed").parameters());
  const AttentionParameters parameters = load_attention(torch, {.heads = 4});
  for (const char* layout : {"bert", "albert", "gpt2", "mingpt", "llama", "bart", "vit", "timm", "d2l", "multi_head_dim_qk_dim_v", "keras", "flax"}) {
    SCOPED_TRACE(layout);
    TensorFile translated{.path = "m"};
    translated.tensors = store_attention(parameters, layout, "to/");
    AttentionParameters again = load_attention(translated, {.heads = 4});
    EXPECT_EQ(again.layout, layout);
    EXPECT_EQ(again.tensors.size(), parameters.tensors.size());
    for (const auto& [name, tensor] : parameters.tensors) expect_same(again.tensors.at(name), tensor);
    expect_same_tensors(store_attention(again, "torch", ""), torch.tensors);
  }
}

TEST(Layouts, TheLastSeparatorOfAPrefixMayBeLeftOut) {
  TensorFile torch = file_of(sample("torch", "packed").parameters());
  const AttentionParameters parameters = load_attention(torch, {.heads = 4});
  expect_same_tensors(store_attention(parameters, "torch", "layer.0"), store_attention(parameters, "torch", "layer.0."));
  expect_same_tensors(store_attention(parameters, "flax", "layer/0"), store_attention(parameters, "flax", "layer/0/"));
}

TEST(Layouts, WhatALayoutCannotHoldIsRefused) {
  const auto load = [](const std::string& layout, const std::string& variant, std::int64_t heads) {
    TensorFile file = file_of(sample(layout, variant).parameters());
    return load_attention(file, {.heads = heads});
  };
  const auto error = [](const AttentionParameters& parameters, std::string_view layout) {
    return error_of([&] { store_attention(parameters, layout, ""); });
  };
  EXPECT_THAT(error(load("alphafold", "gated", 4), "d2l"), HasSubstr("the layout \"d2l\" has no place for gate.bias [24]"));
  EXPECT_THAT(error(load("torch", "packed", 4), "multi_atten"), HasSubstr("the layout \"multi_atten\" has no place for output.bias [12]"));
  EXPECT_THAT(error(load("multi_atten", "unequal", 3), "torch"),
              HasSubstr("in_proj_weight packs q.weight [15,24] of float64 with v.weight [27,24] of float64; both must have the same shape and dtype"));
  EXPECT_THAT(error(load("multi_atten", "unequal", 3), "single_head"), HasSubstr("the layer has 3 heads and 3 key/value heads"));
  EXPECT_THAT(error(load("t5", "later_layer", 4), "d2l"),
              HasSubstr("the layer's scale is 1, but a layer in the layout \"d2l\" has 1/sqrt(H)"));
  EXPECT_THAT(error(load("d2l", "no_bias", 4), "t5"), HasSubstr("the layer's scale is 1/sqrt(H), but a layer in the layout \"t5\" has 1"));
  EXPECT_THAT(error(load("d2l", "no_bias", 0), "keras"), HasSubstr("the number of heads must be given"));
  EXPECT_THAT(error(load("d2l", "bias", 4), "mingpt"),
              HasSubstr("attn.c_attn.weight packs q.weight [24,9] of float64 with k.weight [24,7]"));
  EXPECT_THAT(error(load("alphafold", "global", 0), "multi_head_dim_qk_dim_v"), HasSubstr("there is \"out.bias\", but no \"v.bias\""));
  EXPECT_THAT(error(load("keras", "grouped", 0), "d2l"), HasSubstr("q.weight has 12 rows, k.weight 6; they must be equal"));
  EXPECT_THAT(error(load("d2l", "bias", 4), "nothing"), HasSubstr("the layout \"nothing\" is not known"));
}

}  // namespace
}  // namespace polyhead::io
