// Compares losses, optimizers and layers with PyTorch in float64. make_training.py wrote the expected numbers, vectors.safetensors.
#include "polyhead/io/tensor_file.h"
#include "polyhead/polyhead.h"
#include "support/compare.h"

namespace polyhead {
namespace {

using test::near;

constexpr double kTolerance = 1e-12;  // relative to the largest magnitude of the tensor

// The tensors of one case of vectors.safetensors.
class Vectors {
 public:
  explicit Vectors(std::string name) : prefix_(std::move(name) + ".") {}
  const Tensor& operator[](const std::string& name) const { return file().at(prefix_ + name); }
  void expect(ConstTensorView computed, const std::string& name) const {
    const Tensor& expected = (*this)[name];
    EXPECT_TRUE(near(computed, expected, kTolerance * test::largest_magnitude(expected))) << prefix_ << name;
  }

 private:
  static const io::TensorFile& file() {
    static const io::TensorFile opened = io::open_tensors(POLYHEAD_TRAINING_VECTORS);
    return opened;
  }
  std::string prefix_;
};

TEST(Training, CrossEntropyIsTorchs) {
  const auto run = [](const std::string& name, const nn::CrossEntropyOptions& options) {
    const Vectors vectors("cross_entropy." + name);
    Tensor d_logits(DType::f64, vectors["logits"].shape());
    const double loss = nn::cross_entropy(vectors["logits"], vectors["targets"], d_logits, options).loss;
    vectors.expect(ConstTensorView(&loss, {}), "loss");
    vectors.expect(d_logits, "d_logits");
  };
  run("mean", {});
  run("sum", {.reduction = nn::LossReduction::sum});
  run("ignored", {.ignore_index = -100});
  run("smoothed", {.ignore_index = -100, .label_smoothing = 0.1});
}

TEST(Training, AdamWAndClippingAreTorchs) {
  const Vectors vectors("adamw");
  nn::Linear layer(vectors["weight"], vectors["bias"]);
  nn::AdamW optimizer(layer, {.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1,
                              .decays = [](const std::string& name, const Tensor&) { return name == "weight"; }});
  Tensor norms(DType::f64, {3});
  for (int step = 0; step < 3; ++step) {
    const std::string prefix = "gradient" + std::to_string(step);
    nn::Linear gradient(vectors[prefix + ".weight"], vectors[prefix + ".bias"]);
    norms.data<double>()[step] = nn::clip_gradients(gradient, step > 0 ? 4 : 100);
    optimizer.step(layer, gradient, {.learning_rate = 0.01 * (step + 1)});
  }
  vectors.expect(norms, "norms");
  vectors.expect(layer.weight, "weight_after");
  vectors.expect(layer.bias, "bias_after");
}

template <class M>
void load(const Vectors& vectors, M& module) {
  module.visit([&](const std::string& name, Tensor& tensor) { copy(vectors[name], tensor); });
}

// The gradient of a key projection's bias is 0 in exact arithmetic. It holds rounding errors, which are relative to the size of other tensors.
template <class M>
void expect_gradients(const Vectors& vectors, const M& gradients) {
  gradients.visit([&](const std::string& name, const Tensor& gradient) {
    const Tensor& expected = vectors["d_" + name];
    const double unit = std::max(test::largest_magnitude(expected), test::largest_magnitude(vectors["d_y"]));
    EXPECT_TRUE(near(gradient, expected, kTolerance * unit)) << name;
  });
}

TEST(Training, RMSNormIsTorchs) {
  const Vectors vectors("rms_norm");
  const nn::RMSNorm norm(vectors["weight"], 1e-3);
  Tensor y(DType::f64, {3, 4, 10}), d_x(DType::f64, {3, 4, 10});
  nn::RMSNorm gradients = nn::zeros_like(norm);
  norm.forward(vectors["x"], y);
  norm.backward(vectors["x"], vectors["d_y"], {.x = d_x, .parameters = &gradients});
  vectors.expect(y, "y");
  vectors.expect(d_x, "d_x");
  vectors.expect(gradients.weight, "d_weight");
}

TEST(Training, SwiGLUIsTorchs) {
  const Vectors vectors("swiglu");
  nn::FeedForward layer({.width = 6, .hidden_width = 9, .out_width = 5, .activation = nn::Activation::silu, .gated = true, .dtype = DType::f64, .seed = 1});
  load(vectors, layer);
  Tensor y(DType::f64, {3, 4, 5}), d_x(DType::f64, {3, 4, 6});
  nn::FeedForward::Saved saved;
  nn::FeedForward gradients = nn::zeros_like(layer);
  layer.forward(vectors["x"], y, {}, &saved);
  layer.backward(saved, vectors["d_y"], {.x = d_x, .parameters = &gradients});
  vectors.expect(y, "y");
  vectors.expect(d_x, "d_x");
  expect_gradients(vectors, gradients);
}

struct Kind {
  std::string name;
  nn::NormPosition position;
  bool rms_norm_swiglu = false;

  nn::LayerConfig config() const {
    nn::LayerConfig c{.width = 8, .heads = 2, .hidden_width = 12, .norm_position = position, .dtype = DType::f64, .seed = 1};
    if (rms_norm_swiglu) c.norm = nn::NormKind::rms_norm, c.activation = nn::Activation::silu, c.gated = true;
    return c;
  }
};

const Kind kKinds[] = {{"post", nn::NormPosition::post},
                       {"pre", nn::NormPosition::pre},
                       {"post.rms_norm_swiglu", nn::NormPosition::post, true},
                       {"pre.rms_norm_swiglu", nn::NormPosition::pre, true}};

TEST(Training, EncodersAreTorchs) {
  for (const Kind& kind : kKinds) {
    const Vectors vectors("encoder." + kind.name);
    nn::Encoder encoder(kind.config(), 2);
    load(vectors, encoder);
    const Tensor lengths = Tensor::of<std::int64_t>({2}, {5, 3});
    Tensor y(DType::f64, {2, 5, 8}), d_x(DType::f64, {2, 5, 8});
    nn::Encoder::Saved saved;
    nn::Encoder gradients = nn::zeros_like(encoder);
    encoder.forward(vectors["x"], y, {.mask = {.key_lengths = lengths}}, &saved);
    encoder.backward(saved, vectors["d_y"], {.x = d_x, .parameters = &gradients});
    vectors.expect(y, "y");
    vectors.expect(d_x, "d_x");
    expect_gradients(vectors, gradients);
  }
}

TEST(Training, DecodersAreTorchs) {
  for (const Kind& kind : kKinds) {
    const Vectors vectors("decoder." + kind.name);
    nn::Decoder decoder(kind.config(), 2);
    load(vectors, decoder);
    const Tensor lengths = Tensor::of<std::int64_t>({2}, {2, 4});
    Tensor y(DType::f64, {2, 5, 8}), d_x(DType::f64, {2, 5, 8}), d_memory(DType::f64, {2, 4, 8});
    nn::Decoder::Saved saved;
    nn::Decoder gradients = nn::zeros_like(decoder);
    decoder.forward(vectors["x"], vectors["memory"], y, {.memory_mask = {.key_lengths = lengths}}, &saved);
    decoder.backward(saved, vectors["d_y"], {.x = d_x, .memory = d_memory, .parameters = &gradients});
    vectors.expect(y, "y");
    vectors.expect(d_x, "d_x");
    vectors.expect(d_memory, "d_memory");
    expect_gradients(vectors, gradients);
  }
}

TEST(Training, EncoderDecodersAreTorchs) {
  for (const bool tied : {false, true}) {
    const Vectors vectors(tied ? "encoder_decoder.pre" : "encoder_decoder.post");
    nn::EncoderDecoder model({.source_count = 9, .target_count = tied ? 9 : 7, .layers = 2, .layer = {.width = 8, .heads = 2, .hidden_width = 12, .norm_position = tied ? nn::NormPosition::pre : nn::NormPosition::post, .dtype = DType::f64, .seed = 1}, .shared_embedding = tied, .tied_output = tied});
    load(vectors, model);
    const Tensor lengths = Tensor::of<std::int64_t>({2}, {5, 3});
    Tensor y(DType::f64, vectors["y"].shape());
    nn::EncoderDecoder::Saved saved;
    nn::EncoderDecoder gradients = nn::zeros_like(model);
    model.forward(vectors["source"], vectors["target"], y, {.source_mask = {.key_lengths = lengths}}, &saved);
    model.backward(saved, vectors["d_y"], {.parameters = &gradients});
    vectors.expect(y, "y");
    expect_gradients(vectors, gradients);
  }
}

TEST(Training, LossesOnAttentionWeightsAreTorchs) {
  const Vectors vectors("attention_weights");
  nn::MultiHeadAttention layer({.query_width = 8, .heads = 2, .dtype = DType::f64, .seed = 1});
  load(vectors, layer);
  const Tensor lengths = Tensor::of<std::int64_t>({2}, {5, 3});
  Tensor y(DType::f64, {2, 3, 8}), d_query(DType::f64, {2, 3, 8}), d_key(DType::f64, {2, 5, 8});
  nn::MultiHeadAttention::Saved saved;
  nn::MultiHeadAttention gradients = nn::zeros_like(layer);
  layer.forward({.query = vectors["query"], .key = vectors["key"]}, y, {.mask = {.key_lengths = lengths}}, &saved);
  const nn::AttentionWeightsGradient of_weights[] = {{.head = 1, .d_p = vectors["d_weights"]}};
  layer.backward(saved, vectors["d_y"], {.query = d_query, .key = d_key, .parameters = &gradients, .attention_weights = of_weights});
  vectors.expect(d_query, "d_query");
  vectors.expect(d_key, "d_key");
  expect_gradients(vectors, gradients);
}

struct Model : nn::Module<Model> {
  nn::Encoder encoder;
  nn::Linear head;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("encoder", self.encoder...);
    f("head", self.head...);
  }
};

// Trains for 200 steps in float64 and in float32. Each loss must be near that of PyTorch in float64.
TEST(Training, ARunFollowsTorchs) {
  const Vectors vectors("run");
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-10}, std::pair{DType::f32, 1e-5}}) {
    Model model;
    model.encoder = nn::Encoder(
        {.width = 8, .heads = 2, .hidden_width = 12, .norm_position = nn::NormPosition::pre, .dtype = dtype, .seed = 1}, 2);
    model.head = nn::Linear({.in_width = 8, .out_width = 11, .dtype = dtype, .seed = 1});
    load(vectors, model);
    Model gradients = nn::zeros_like(model);
    nn::AdamW optimizer(model, {.weight_decay = 0.05});
    const Tensor x = Tensor::copy_of(vectors["x"], dtype);
    Tensor y(dtype, x.shape()), d_y(dtype, x.shape()), d_x(dtype, x.shape()), logits(dtype, {6, 7, 11});
    nn::Encoder::Saved saved;
    const Tensor& losses = vectors["losses"];
    for (std::int64_t step = 0; step < losses.numel(); ++step) {
      model.encoder.forward(x, y, {}, &saved);
      model.head.forward(y, logits);
      const double loss = nn::cross_entropy(logits, vectors["targets"], logits, {.label_smoothing = 0.1}).loss;
      const double expected = losses.data<double>()[step];
      ASSERT_NEAR(loss, expected, tolerance * expected) << "step " << step << " in " << info(dtype).name;
      model.head.backward(y, logits, {.x = d_y, .parameters = &gradients.head});
      model.encoder.backward(saved, d_y, {.x = d_x, .parameters = &gradients.encoder});
      nn::clip_gradients(gradients, 0.5);
      optimizer.step(model, gradients, {.learning_rate = nn::warmup_cosine(step + 1, {.peak = 0.003, .warmup_steps = 20, .total_steps = 200})});
    }
  }
}

}  // namespace
}  // namespace polyhead
