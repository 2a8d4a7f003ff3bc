// Trains a language model of characters from random parameters: embeddings, pre-norm layers with a causal mask (as in GPT-2), and their backward pass.
//   char_transformer [TEXT_FILE [STEPS [RUN.safetensors]]]     a stopped run continues from its file with the same bits; "": the text of the program
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include "check.h"
#include "polyhead/io.h"
#include "polyhead/polyhead.h"

using namespace polyhead;

constexpr std::int64_t kBatch = 16, kLength = 128, kWidth = 128, kLayers = 4, kHeads = 4, kTokens = 256;
const Workspace kWorkspace;  // keeps memory, so that a step can use that of the step before
const nn::AttentionOptions kCausal{.mask = {.causal = Causal::top_left()}, .workspace = &kWorkspace};

struct CharTransformer : nn::Module<CharTransformer> {
  nn::Embedding tokens{{.count = kTokens, .width = kWidth, .seed = 1}}, positions{{.count = kLength, .width = kWidth, .seed = 2}};
  nn::Encoder layers{{.width = kWidth, .heads = kHeads, .norm_position = nn::NormPosition::pre, .seed = 3}, kLayers};
  nn::Linear output{{.in_width = kWidth, .out_width = kTokens, .seed = 4}};
  struct Saved {
    Tensor x, y, d_x, d_y;  // [B,T,E], the layers' input and output
    Tensor logits;          // [B,T,tokens]
    nn::Encoder::Saved layers;
  };

  static ConstTensorView places(const Tensor& ids) {  // 0, 1, ..., T - 1 for each text
    static std::vector<std::int64_t> numbers(kLength);
    std::iota(numbers.begin(), numbers.end(), 0);
    return ConstTensorView(numbers.data(), {ids.extent(1)}).expand(ids.shape());
  }
  void forward(const Tensor& ids, Saved& saved) const {  // ids [B,T]
    const Shape shape{ids.extent(0), ids.extent(1), kWidth};
    if (saved.x.shape() != shape)  // otherwise reuse the memory of the previous step
      saved = {.x{DType::f32, shape}, .y{DType::f32, shape}, .d_x{DType::f32, shape}, .d_y{DType::f32, shape}, .logits{DType::f32, {shape[0], shape[1], kTokens}}};
    tokens.forward(ids, saved.x);
    positions.forward(places(ids), saved.x, {.write = nn::Write::add});
    layers.forward(saved.x, saved.y, kCausal, &saved.layers);
    output.forward(saved.y, saved.logits);
  }
  void backward(const Tensor& ids, const Tensor& d_logits, Saved& saved, CharTransformer& gradients) const {
    output.backward(saved.y, d_logits, {.x = saved.d_y, .parameters = &gradients.output}, {.workspace = &kWorkspace});
    layers.backward(saved.layers, saved.d_y, {.x = saved.d_x, .parameters = &gradients.layers}, {.workspace = &kWorkspace});
    positions.backward(places(ids), saved.d_x, {.parameters = &gradients.positions});
    tokens.backward(ids, saved.d_x, {.parameters = &gradients.tokens});
  }
  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("tokens", self.tokens...), f("positions", self.positions...), f("layers", self.layers...), f("output", self.output...);
  }
};

int main(int argc, char** argv) {
  const bool own_text = argc == 1 || *argv[1] == '\0';
  std::ifstream file(own_text ? "" : argv[1], std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  for (int i = 0; own_text && i < 2500; ++i) text += std::to_string(i % 50) + " + " + std::to_string(i % 49) + " = " + std::to_string(i % 50 + i % 49) + "\n";
  const std::int64_t steps = argc > 2 ? std::atoll(argv[2]) : 40, starts = std::ssize(text) - kLength;  // places where a text may start
  if (starts < 1) return std::fprintf(stderr, "a text needs %d characters or more; this has %zu\n", static_cast<int>(kLength) + 1, text.size()), 1;
  CharTransformer model;
  CharTransformer gradients = nn::zeros_like(model);
  nn::AdamW optimizer(model, {.learning_rate = 1e-3});
  if (argc > 3 && std::filesystem::exists(argv[3])) io::load_parameters(model, optimizer, argv[3]);
  CharTransformer::Saved saved;
  Tensor ids(DType::i64, {kBatch, kLength}), targets = ids;
  std::vector<double> losses;
  for (const std::int64_t end = optimizer.steps() + steps; optimizer.steps() < end;) {
    for (std::int64_t i = 0; i < kBatch * kLength; ++i) {
      const auto at = static_cast<std::size_t>((optimizer.steps() * kBatch + i / kLength) * 7919 % starts + i % kLength);
      ids.data<std::int64_t>()[i] = static_cast<unsigned char>(text[at]), targets.data<std::int64_t>()[i] = static_cast<unsigned char>(text[at + 1]);
    }
    model.forward(ids, saved);
    losses.push_back(nn::cross_entropy(saved.logits, targets, saved.logits).loss);  // the logits become their gradient
    model.backward(ids, saved.logits, saved, gradients);
    optimizer.step(model, gradients);
    std::printf("step %d: loss %.8f\n", static_cast<int>(optimizer.steps()), losses.back());
  }
  if (argc > 3) io::save_parameters(model, optimizer, argv[3]);
  std::vector<std::int64_t> line{'\n'};  // a newline, to which the likeliest continuation is added
  for (Tensor next(DType::i64, {1}); line.size() < 40 && (line.size() == 1 || line.back() != '\n');) {
    model.forward(Tensor::of<std::int64_t>({1, std::ssize(line)}, line), saved);
    nn::greedy_tokens(saved.logits.view().select(1, std::ssize(line) - 1), next);
    line.push_back(next.data<std::int64_t>()[0]);
    std::putchar(static_cast<int>(line.back()));
  }
  std::putchar('\n');
  example::Claims claims;
  if (own_text) claims.add("the loss falls by half or more", losses.back() < losses.front() / 2);
  return claims.status();
}
