// run_stack: runs stacks of encoder and decoder layers for tests/soak/stacks.py. Each line of standard input is a JSON object that describes a stack and names a folder with
// parameters.safetensors (all parameters) and in.safetensors (x, d_y, memory and the tensors of the options). The program writes out.safetensors into the folder and the line
// {"done": true}, {"refused": message} if polyhead refuses the problem, or {"error": message}.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "polyhead/io.h"
#include "polyhead/polyhead.h"

namespace {

namespace io = polyhead::io;
namespace nn = polyhead::nn;
using nlohmann::json;
using polyhead::ConstTensorView;
using polyhead::Tensor;

nn::LayerConfig config_of(const json& request, polyhead::DType dtype) {
  nn::LayerConfig config{.width = request.at("width"), .seed = 1};
  config.memory_width = request.at("decoder").get<bool>() ? request.at("memory_width").get<std::int64_t>() : 0;
  config.heads = request.at("heads");
  config.kv_heads = request.at("kv_heads");
  config.head_width = request.at("head_width");
  config.hidden_width = request.at("hidden_width");
  config.activation = nn::find_activation(request.at("activation").get<std::string>());
  config.gated = request.at("gated");
  config.bias = request.at("bias");
  config.output_bias = request.at("output_bias");
  config.feed_forward_bias = request.at("feed_forward_bias");
  config.qk_norm = request.at("qk_norm");
  config.norm = request.at("norm") == "rms_norm" ? nn::NormKind::rms_norm : nn::NormKind::layer_norm;
  const std::string position = request.at("norm_position");
  config.norm_position = position == "post" ? nn::NormPosition::post : position == "pre" ? nn::NormPosition::pre : nn::NormPosition::both;
  config.part_order = request.at("parallel").get<bool>() ? nn::PartOrder::parallel : nn::PartOrder::sequential;
  config.epsilon = request.at("epsilon");
  config.dtype = dtype;
  return config;
}

// Replaces the attention by one with the settings that LayerConfig does not have.
void replace(nn::MultiHeadAttention& attention, const json& request) {
  nn::MultiHeadAttentionConfig config = attention.config;
  config.sink = request.at("sink");
  config.gate = request.at("gate").get<bool>() ? nn::Gate::sigmoid : nn::Gate::none;
  config.softcap = request.at("softcap");
  const std::string rows = request.at("empty_rows");
  config.empty_rows = rows == "uniform" ? polyhead::EmptyRows::uniform : rows == "unmasked" ? polyhead::EmptyRows::unmasked : polyhead::EmptyRows::zero;
  config.seed = 2;
  attention = nn::MultiHeadAttention(config);
}

struct Inputs {
  io::TensorFile file;
  ConstTensorView operator()(const char* name) const {
    const Tensor* tensor = file.find(name);
    return tensor == nullptr ? ConstTensorView() : tensor->view();
  }
};

nn::AttentionOptions options_of(const json& request, const Inputs& in, polyhead::Executor* executor) {
  nn::AttentionOptions options{.executor = executor};
  const auto& causal = request.at("causal");
  if (causal.is_string()) options.mask.causal = causal == "top_left" ? polyhead::Causal::top_left() : polyhead::Causal::bottom_right();
  if (causal.is_number()) options.mask.causal = polyhead::Causal::offset(causal.get<std::int64_t>());
  const auto& window = request.at("window");
  if (!window.is_null() && !window.at(0).is_null()) options.mask.window.left = window.at(0).get<std::int64_t>();
  if (!window.is_null() && !window.at(1).is_null()) options.mask.window.right = window.at(1).get<std::int64_t>();
  options.mask.attend = in("attend");
  options.mask.attend_keys = in("attend_keys");
  options.mask.key_lengths = in("key_lengths");
  options.bias = in("attention_bias");
  options.relative_bias.slopes = in("slopes");
  options.rotary.cos = in("cos");
  options.rotary.sin = in("sin");
  options.rotary.order = request.at("order") == "pairs" ? nn::RotaryOrder::pairs : nn::RotaryOrder::halves;
  options.rotary.width = request.at("rotary_width");
  return options;
}

template <class Stack>
void prepare(Stack& stack, const json& request, const nn::LayerConfig& config) {
  if (request.at("final_norm")) stack.final_norm = nn::Norm({.width = config.width, .kind = config.norm, .epsilon = config.epsilon, .dtype = config.dtype});
  for (auto& layer : stack.layers) {
    if constexpr (std::is_same_v<Stack, nn::Encoder>) {
      replace(layer.attention, request);
    } else {
      replace(layer.self_attention, request);
      replace(layer.cross_attention, request);
    }
  }
  io::load_parameters(stack, request.at("folder").get<std::string>() + "/parameters.safetensors");
}

// Splits the tokens of x into pieces and calls step(x, y, options) for each piece.
template <class F>
Tensor in_pieces(const json& request, ConstTensorView x, nn::AttentionOptions options, const F& step) {
  Tensor y(x.dtype(), x.shape());
  std::int64_t first = 0;
  const ConstTensorView cos = options.rotary.cos, sin = options.rotary.sin;
  for (const std::int64_t count : request.at("pieces")) {
    const std::int64_t last = std::min(first + count, x.extent(1));
    if (cos) options.rotary.cos = cos.slice(0, first, last), options.rotary.sin = sin.slice(0, first, last);
    step(x.slice(1, first, last), y.view().slice(1, first, last), options);
    first = last;
  }
  return y;
}

template <class Stack>
void add_gradients(const Stack& gradients, std::vector<io::NamedTensor>& out) {
  gradients.visit([&](const std::string& name, const Tensor& tensor) { out.push_back({"parameter " + name, Tensor(tensor)}); });
}

void run(const json& request) {
  const std::string folder = request.at("folder");
  const Inputs in{io::open_tensors(folder + "/in.safetensors")};
  const ConstTensorView x = in("x"), d_y = in("d_y"), memory = in("memory");
  const auto config = config_of(request, x.dtype());
  polyhead::LimitedThreads threads(request.at("threads"));
  const auto options = options_of(request, in, &threads);
  const polyhead::Workspace workspace(polyhead::Parameters::constant);
  const bool decode = !request.at("pieces").empty();
  std::vector<io::NamedTensor> out;
  Tensor y(x.dtype(), x.shape()), other(x.dtype(), x.shape()), d_x(x.dtype(), x.shape());
  if (!request.at("decoder").get<bool>()) {
    nn::Encoder stack(config, request.at("count"));
    prepare(stack, request, config);
    nn::Encoder gradients = nn::zeros_like(stack);
    nn::Encoder::Saved saved;
    stack.forward(x, y, options, &saved);
    stack.backward(saved, d_y, {.x = d_x, .parameters = &gradients}, {.executor = &threads});
    auto evaluation = options;
    evaluation.workspace = &workspace;
    stack.forward(x, other, evaluation);
    if (decode) {
      nn::EncoderCache cache(stack, {.sequences = x.extent(0), .capacity = x.extent(1)});
      out.push_back({"decoded", in_pieces(request, x, options, [&](ConstTensorView some, polyhead::TensorView to, const nn::AttentionOptions& own) { stack.forward(some, to, cache, own); })});
    }
    add_gradients(gradients, out);
  } else {
    nn::Decoder stack(config, request.at("count"));
    prepare(stack, request, config);
    nn::Decoder gradients = nn::zeros_like(stack);
    nn::Decoder::Saved saved;
    const polyhead::Mask memory_mask{.key_lengths = in("memory_lengths"), .attend_keys = in("memory_attend_keys")};
    Tensor d_memory(x.dtype(), memory.shape());
    nn::DecoderOptions whole{.attention = options, .memory_mask = memory_mask};
    stack.forward(x, memory, y, whole, &saved);
    stack.backward(saved, d_y, {.x = d_x, .memory = d_memory, .parameters = &gradients}, {.executor = &threads});
    whole.attention.workspace = &workspace;
    stack.forward(x, memory, other, whole);
    if (decode) {
      nn::DecoderCache cache(stack, memory, {.capacity = x.extent(1), .memory_mask = memory_mask});
      out.push_back({"decoded", in_pieces(request, x, options, [&](ConstTensorView some, polyhead::TensorView to, const nn::AttentionOptions& own) { stack.forward(some, to, cache, own); })});
    }
    out.push_back({"memory", std::move(d_memory)});
    add_gradients(gradients, out);
  }
  out.push_back({"out", std::move(y)});
  out.push_back({"evaluated", std::move(other)});
  out.push_back({"x", std::move(d_x)});
  io::save_tensors(folder + "/out.safetensors", out);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    json answer = {{"done", true}};
    try {
      run(json::parse(line));
    } catch (const polyhead::Error& error) {
      answer = {{"refused", error.what()}};
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
}
