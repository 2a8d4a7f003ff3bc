// Tests parameters and optimizer states in files: a run that is stopped and resumed must give the same results.
#include "io/test_files.h"
#include "polyhead/io/parameters.h"
#include "polyhead/polyhead.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead {
namespace {

using test::Random;
using test::same_bits;

nn::FeedForward new_model() { return nn::FeedForward({.width = 6, .hidden_width = 10, .out_width = 7, .seed = 1}); }

// Makes one training step. The data depend only on the number of the step.
void train(nn::FeedForward& model, nn::AdamW& optimizer) {
  Random random(static_cast<std::uint64_t>(optimizer.steps()));
  const Tensor x = random.tensor(DType::f32, {20, 6}), targets = random.tensor(DType::i64, {20}, 0, 6);
  Tensor y(DType::f32, {20, 7});
  nn::FeedForward gradients = nn::zeros_like(model);
  nn::FeedForward::Saved saved;
  model.forward(x, y, {}, &saved);
  nn::cross_entropy(y, targets, y);
  model.backward(saved, y, {.parameters = &gradients});
  nn::clip_gradients(gradients, 0.5);
  optimizer.step(model, gradients, {.learning_rate = nn::warmup_cosine(optimizer.steps() + 1, {.warmup_steps = 2, .total_steps = 9})});
}

TEST(Checkpoint, ResumedRunHasTheBitsOfOneThatWasNotStopped) {
  nn::FeedForward whole = new_model();
  nn::AdamW of_whole(whole);
  for (int step = 0; step < 8; ++step) train(whole, of_whole);
  const io::TestFolder folder;
  for (int stop = 0; stop <= 8; ++stop) {
    nn::FeedForward model = new_model();
    nn::AdamW optimizer(model);
    for (int step = 0; step < stop; ++step) train(model, optimizer);
    io::save_parameters(model, optimizer, folder / "run.safetensors", {{"epoch", "3"}});
    nn::FeedForward resumed({.width = 6, .hidden_width = 10, .out_width = 7, .seed = 99});
    nn::AdamW of_resumed(resumed);
    EXPECT_EQ(io::load_parameters(resumed, of_resumed, folder / "run.safetensors").at("epoch"), "3");
    EXPECT_EQ(of_resumed.steps(), stop);
    while (of_resumed.steps() < 8) train(resumed, of_resumed);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(*nn::parameters(resumed)[i].second, *nn::parameters(whole)[i].second)) << stop;
  }
}

TEST(Checkpoint, ModelAloneSkipsTheOptimizer) {
  nn::FeedForward model = new_model(), loaded({.width = 6, .hidden_width = 10, .out_width = 7, .seed = 99});
  const io::TestFolder folder;
  io::save_parameters(model, nn::AdamW(model), folder / "run.safetensors");
  io::load_parameters(loaded, folder / "run.safetensors");
  EXPECT_TRUE(same_bits(loaded.output.weight, model.output.weight));
  // save_parameters() takes the path as any type of string, with or without metadata.
  const auto path = folder / "model.safetensors";
  const std::string text = path.string();
  const char* const characters = text.c_str();
  const auto saves = [&](const auto& to) {
    fill(model.output.bias, *model.output.bias.data<float>() + 1);
    io::save_parameters(model, to);
    EXPECT_EQ(io::load_parameters(loaded, to), io::Metadata());
    io::save_parameters(model, to, {{"epoch", "3"}});
    EXPECT_EQ(io::load_parameters(loaded, to), (io::Metadata{{"epoch", "3"}}));
    EXPECT_TRUE(same_bits(loaded.output.bias, model.output.bias));
    EXPECT_EQ(io::open_tensors(path).tensors.size(), 4u);
  };
  saves(path);
  saves(text);
  saves(characters);
}

TEST(Checkpoint, WhatDoesNotFitIsNamedAndNothingIsChanged) {
  const io::TestFolder folder;
  const auto path = folder / "model.safetensors";
  io::save_parameters(new_model(), path);
  const auto refused = [&](auto&& module) {
    const auto before = nn::zeros_like(module);
    module.visit([](const std::string&, Tensor& tensor) { fill(tensor, 0); });
    const std::string message = test::error_message([&] { io::load_parameters(module, path); });
    for (std::size_t i = 0; i < nn::parameters(before).size(); ++i)
      EXPECT_TRUE(same_bits(*nn::parameters(module)[i].second, *nn::parameters(before)[i].second));
    return message.substr(message.find(".safetensors: ") + 14);
  };
  EXPECT_EQ(refused(nn::FeedForward({.width = 6, .hidden_width = 10, .out_width = 8, .seed = 1})), "output.weight is float32 [7,10]; it must be float32 [8,10]");
  EXPECT_EQ(refused(nn::FeedForward({.width = 6, .hidden_width = 10, .out_width = 7, .dtype = DType::f64, .seed = 1})),
            "hidden.weight is float32 [10,6]; it must be float64 [10,6]");
  EXPECT_EQ(refused(nn::FeedForward({.width = 6, .hidden_width = 10, .out_width = 7, .bias = false, .seed = 1})),
            "there is a tensor hidden.bias, which is no parameter");
  EXPECT_EQ(refused(nn::Linear({.in_width = 6, .out_width = 10, .seed = 1})), "there is no tensor weight");
  nn::FeedForward model = new_model();
  nn::AdamW optimizer(model);
  const std::string message = test::error_message([&] { io::load_parameters(model, optimizer, path); });
  EXPECT_TRUE(message.ends_with("there is no tensor optimizer.steps")) << message;
}

// One parameter of each kind that quantize_parameters() treats differently.
struct Kinds : nn::Module<Kinds> {
  Tensor wide{DType::f32, {3, 40}}, heads{DType::f32, {2, 5, 16}}, table{DType::f32, {4, 32, 1}}, narrow{DType::f32, {9, 15}}, one_row{DType::f32, {100}};
  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("wide", self.wide...), f("heads", self.heads...), f("table", self.table...), f("narrow", self.narrow...), f("one_row", self.one_row...);
  }
};

Kinds random_kinds() {
  Kinds kinds;
  Random random(7);
  kinds.visit([&](const std::string&, Tensor& tensor) { tensor = random.tensor(DType::f32, tensor.shape()); });
  fill(kinds.wide.view().select(0, 1), 0);
  kinds.wide.data<float>()[5] = 300;
  return kinds;
}

TEST(QuantizedParameters, RowsComeBackWithinHalfAScale) {
  const io::TestFolder folder;
  const auto path = folder / "model.safetensors";
  const Kinds model = random_kinds();
  Kinds loaded;
  io::save_parameters(model, path, {{"epoch", "3"}});
  io::quantize_parameters(path, path);
  EXPECT_EQ(io::load_parameters(loaded, path), (io::Metadata{{"epoch", "3"}}));
  const io::TensorFile file = io::open_tensors(path);
  const auto compare = [&](const Tensor& from, const Tensor& to, const char* name, const Shape& rows, std::int64_t width) {
    EXPECT_EQ(file.at(name).dtype(), DType::i8);
    EXPECT_EQ(file.at(std::string(name) + ".scale").shape(), rows);
    bool changed = false;
    for (std::int64_t row = 0; row < from.numel() / width; ++row) {
      const float *x = from.data<float>() + row * width, *y = to.data<float>() + row * width;
      float largest = 0;
      for (int i = 0; i < width; ++i) largest = std::max(largest, std::abs(x[i]));
      for (int i = 0; i < width; ++i) {
        EXPECT_LE(std::abs(x[i] - y[i]), largest / 127 * 0.5001) << name << ' ' << row << ' ' << i;
        changed = changed || x[i] != y[i];
      }
    }
    EXPECT_TRUE(changed) << name;
  };
  compare(model.wide, loaded.wide, "wide", {3}, 40);
  compare(model.heads, loaded.heads, "heads", {2, 5}, 16);
  compare(model.table, loaded.table, "table", {4}, 32);
  compare(model.narrow, loaded.narrow, "narrow", {9}, 15);
  EXPECT_TRUE(same_bits(loaded.one_row, model.one_row));
}

TEST(QuantizedParameters, RowsWithoutTheirScalesAreRefused) {
  const io::TestFolder folder;
  const auto path = folder / "model.safetensors";
  io::save_parameters(random_kinds(), path);
  io::quantize_parameters(path, path);
  const io::TensorFile file = io::open_tensors(path);
  const auto refused = [&](const auto& change) {
    std::vector<io::NamedTensor> tensors;
    for (const auto& [name, tensor] : file.tensors) tensors.push_back({name, Tensor::copy_of(tensor)});
    change(tensors);
    io::save_tensors(folder / "other.safetensors", tensors);
    Kinds model = random_kinds();
    const std::string message = test::error_message([&] { io::load_parameters(model, folder / "other.safetensors"); });
    EXPECT_TRUE(same_bits(model.wide, random_kinds().wide));
    return message.substr(message.find(".safetensors: ") + 14);
  };
  const auto scale = [](auto& tensors) { return std::ranges::find(tensors, "heads.scale", &io::NamedTensor::name); };
  EXPECT_EQ(refused([&](auto& tensors) { tensors.erase(scale(tensors)); }), "heads is int8, and there is no tensor heads.scale");
  for (const Shape& shape : {Shape{2, 4}, {5}, {2, 5, 16}, {2, 5, 1}})
    EXPECT_EQ(refused([&](auto& tensors) { scale(tensors)->tensor = Tensor(DType::f32, shape); }),
              cat("heads.scale is float32 ", shape, "; it must be float32 with the first dimensions of [2,5,16]"));
  EXPECT_EQ(refused([&](auto& tensors) { scale(tensors)->tensor = Tensor(DType::f64, {2, 5}); }),
            "heads.scale is float64 [2,5]; it must be float32 with the first dimensions of [2,5,16]");
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    EXPECT_EQ(refused([&](auto& tensors) { scale(tensors)->tensor.template data<float>()[9] = bad; }), "heads.scale is not finite");
  EXPECT_EQ(refused([&](auto& tensors) { tensors.push_back({"one_row.scale", Tensor(DType::f32, {})}); }), "there is a tensor one_row.scale, which is no parameter");
  EXPECT_TRUE(test::error_message([&] { io::quantize_parameters(path, path); }).ends_with(".scale already"));
  Kinds broken = random_kinds();
  broken.heads.data<float>()[150] = std::numeric_limits<float>::quiet_NaN();
  io::save_parameters(broken, path);
  EXPECT_TRUE(test::error_message([&] { io::quantize_parameters(path, path); }).ends_with("heads is not finite"));
}

}  // namespace
}  // namespace polyhead
