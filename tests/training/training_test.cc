// What training needs, against PyTorch in float64: vectors.safetensors, made by make_training.py.
#include "polyhead/io/tensor_file.h"
#include "polyhead/polyhead.h"
#include "support/compare.h"

namespace polyhead {
namespace {

using test::near;

constexpr double kTolerance = 1e-12;  // of the tensor's largest magnitude

// The tensors of one case.
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
  run("ignored", {.ignore_target = -100});
  run("smoothed", {.ignore_target = -100, .label_smoothing = 0.1});
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

}  // namespace
}  // namespace polyhead
