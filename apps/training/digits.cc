#include "training/digits.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "core/text.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/nn/cross_entropy.h"
#include "polyhead/nn/sampling.h"
#include "training/draw.h"
#include "training/figures.h"
#include "training/order.h"

namespace polyhead::training {
namespace {

constexpr std::int64_t kDigitsOfAStep = 64;

// Returns random number `number` of the sequence that `seed` gives, uniform in [-1,1).
double draw(std::uint64_t seed, std::uint64_t number) { return 2 * uniform(seed, number) - 1; }

// Augments an image: rotates it by up to 11 degrees, scales and slants it by up to 10 % and shifts it by up to a pixel. Each pixel is
// interpolated between four pixels of the original.
void rewrite(std::span<const float> from, std::int64_t height, std::int64_t width, std::uint64_t seed, std::span<float> to) {
  const double angle = 0.2 * draw(seed, 0), scale = 1 + 0.1 * draw(seed, 1), slant = 0.1 * draw(seed, 2), down = draw(seed, 3), right = draw(seed, 4);
  const double cosine = std::cos(angle) * scale, sine = std::sin(angle) * scale;
  const double middle_y = static_cast<double>(height - 1) / 2, middle_x = static_cast<double>(width - 1) / 2;
  const auto pixel = [&](std::int64_t y, std::int64_t x) {
    return y < 0 || y >= height || x < 0 || x >= width ? 0.0 : static_cast<double>(from[static_cast<std::size_t>(y * width + x)]);
  };
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x) {
      const double dy = static_cast<double>(y) - middle_y, dx = static_cast<double>(x) - middle_x + slant * dy;
      const double from_y = cosine * dy - sine * dx + middle_y + down, from_x = sine * dy + cosine * dx + middle_x + right;
      const auto top = static_cast<std::int64_t>(std::floor(from_y)), left = static_cast<std::int64_t>(std::floor(from_x));
      const double below = from_y - static_cast<double>(top), beside = from_x - static_cast<double>(left);
      const double upper = std::lerp(pixel(top, left), pixel(top, left + 1), beside);
      const double lower = std::lerp(pixel(top + 1, left), pixel(top + 1, left + 1), beside);
      to[static_cast<std::size_t>(y * width + x)] = static_cast<float>(std::lerp(upper, lower, below));
    }
}

// Copies the images of a batch, with pixels scaled to 0 to 1; with a seed they are augmented by rewrite().
void take(const Images& images, const std::vector<std::int64_t>& which, Tensor& pixels, Tensor& labels, double white, const std::uint64_t* seed) {
  const std::int64_t height = images.pixels.extent(1), width = images.pixels.extent(2);
  const auto size = static_cast<std::size_t>(height * width);
  for (std::size_t i = 0; i < which.size(); ++i) {
    labels.data<std::int64_t>()[i] = images.labels[static_cast<std::size_t>(which[i])];
    const std::span from(images.pixels.data<float>() + static_cast<std::size_t>(which[i]) * size, size);
    const std::span to(pixels.data<float>() + i * size, size);
    if (seed != nullptr)
      rewrite(from, height, width, nn::derive_seed(*seed, i), to);
    else
      std::ranges::copy(from, to.begin());
    for (float& x : to) x /= static_cast<float>(white);
  }
}

class Digits final : public Task {
 public:
  explicit Digits(const TaskOptions& options) : images_(read_images(options.data)), seed_(options.seed) {
    for (std::int64_t i = 0; i < std::ssize(images_.labels); ++i) (validates(i) ? validation_ : training_).push_back(i);
    require(!validation_.empty(), options.data.string(), " has ", counted(images_.labels.size(), "image"), "; training and validation need at least 5");
    model_ = models::ImageClassifier({.height = images_.pixels.extent(1),
                                      .width = images_.pixels.extent(2),
                                      .white = images_.white,
                                      .classes = images_.classes,
                                      .model_width = 48,
                                      .heads = options.heads.value_or(4),
                                      .dropout = 0.1,
                                      .seed = nn::derive_seed(seed_, 0)});
    gradients_ = nn::zeros_like(model_);
  }

  std::vector<std::string> description() const override {
    return {cat(counted(images_.labels.size(), "image"), " of ", model_.config.height, " x ", model_.config.width, " pixels in ", images_.classes, " classes: ", training_.size(), " to train, ", validation_.size(), " to validate"),
            cat(model_.config.patches(), " patches of ", model_.config.patch, " x ", model_.config.patch, " pixels; ", model_.config.layers, " layers of ", model_.config.heads, " heads, ", model_.config.model_width, " wide")};
  }
  Plan plan() const override { return {.steps = 3000, .validate_every = 250, .peak_rate = 2e-3, .warmup_steps = 100, .average = 0.99, .optimizer{.weight_decay = 0.1}}; }
  nn::NamedParameters parameters() override { return nn::parameters(model_); }
  nn::NamedParameters gradients() override { return nn::parameters(gradients_); }

  StepResult step(std::int64_t number) override {
    const std::vector<std::int64_t> which = batch_of_step(number, kDigitsOfAStep, std::ssize(training_), nn::derive_seed(seed_, 1));
    std::vector<std::int64_t> images;
    for (const std::int64_t i : which) images.push_back(training_[static_cast<std::size_t>(i)]);
    const std::uint64_t of_step = nn::derive_seed(nn::derive_seed(seed_, 2), static_cast<std::uint64_t>(number));
    take(images_, images, pixels_, labels_, images_.white, &of_step);
    model_.forward(pixels_, logits_, saved_, {.mode = nn::Mode::training, .dropout_seed = of_step, .workspace = &workspace_});
    const double loss = nn::cross_entropy(logits_, labels_, logits_, {.label_smoothing = 0.1}).loss;
    model_.backward(saved_, logits_, gradients_, {.workspace = &workspace_});
    return {loss, kDigitsOfAStep * model_.config.patches()};
  }

  Validation validate() override {
    const std::int64_t right = count_right(model_, images_, validation_);
    const double accuracy = static_cast<double>(right) / static_cast<double>(validation_.size());
    return {accuracy, cat("accuracy ", fixed(accuracy, 4), " (", right, " of ", validation_.size(), " images)")};
  }

  void save(const std::filesystem::path& folder) const override { models::save_image_classifier(model_, folder); }

 private:
  Images images_;
  std::uint64_t seed_;
  std::vector<std::int64_t> training_, validation_;
  models::ImageClassifier model_, gradients_;
  // Each step reuses the memory of the step before. Declared before saved_: the destructor of saved_ returns tensors to the workspace.
  Workspace workspace_;
  models::ImageClassifier::Saved saved_;
  Tensor pixels_{DType::f32, {kDigitsOfAStep, images_.pixels.extent(1), images_.pixels.extent(2)}}, labels_{DType::i64, {kDigitsOfAStep}}, logits_{DType::f32, {kDigitsOfAStep, images_.classes}};
};

}  // namespace

Images read_images(const std::filesystem::path& path) {
  const io::TensorFile file = io::open_tensors(path);
  const Tensor &pixels = file.at("images"), &labels = file.at("labels");
  require(pixels.view().rank() == 3 && labels.view().rank() == 1 && labels.extent(0) == pixels.extent(0), path.string(), ": images ", pixels.shape(), " and labels ", labels.shape(),
          " do not fit; they must be [n,height,width] and [n]");
  require(info(pixels.dtype()).kind == info(DType::f32).kind && info(labels.dtype()).kind == info(DType::i64).kind, path.string(), ": images are ", pixels.dtype(), " and labels ", labels.dtype(), "; they must be floating and integer");
  require(pixels.extent(0) > 0 && pixels.extent(1) > 0 && pixels.extent(2) > 0, path.string(), " has no images");
  Images images{.pixels = Tensor::copy_of(pixels, DType::f32)};
  for (const float x : std::span(images.pixels.data<float>(), static_cast<std::size_t>(images.pixels.numel()))) {
    require(x >= 0 && x < 1e30F, path.string(), ": a pixel is ", x, "; pixels are 0 (black) and above");
    images.white = std::max(images.white, static_cast<double>(x));
  }
  const Tensor numbers = Tensor::copy_of(labels, DType::i64);
  images.labels.assign(numbers.data<std::int64_t>(), numbers.data<std::int64_t>() + labels.extent(0));
  for (const std::int64_t label : images.labels) {
    require(label >= 0 && label < 1000, path.string(), ": a label is ", label, "; labels are 0 to 999");
    images.classes = std::max(images.classes, label + 1);
  }
  return images;
}

std::unique_ptr<Task> digits_task(const TaskOptions& options) {
  require(!options.data.empty(), "digits needs --data FILE with the tensors images [n,height,width] and labels [n]");
  return std::make_unique<Digits>(options);
}

std::int64_t count_right(const models::ImageClassifier& model, const Images& images, const std::vector<std::int64_t>& which) {
  const std::int64_t count = std::ssize(which);
  require(images.white <= model.config.white, "a pixel is ", images.white, "; the model was trained with pixels up to ", model.config.white);
  require(images.classes <= model.config.classes, "a label is ", images.classes - 1, "; the model has the classes 0 to ", model.config.classes - 1);
  Tensor pixels(DType::f32, {count, images.pixels.extent(1), images.pixels.extent(2)}), labels(DType::i64, {count}), answers = labels;
  take(images, which, pixels, labels, model.config.white, nullptr);
  Tensor logits(DType::f32, {count, model.config.classes});
  models::ImageClassifier::Saved saved;
  model.forward(pixels, logits, saved);
  nn::greedy_tokens(logits, answers);
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < count; ++i) right += answers.data<std::int64_t>()[i] == labels.data<std::int64_t>()[i];
  return right;
}

}  // namespace polyhead::training
