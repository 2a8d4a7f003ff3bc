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

}  // namespace
}  // namespace polyhead
