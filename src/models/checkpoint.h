// The tensors of a checkpoint, taken one after the other by name. Errors name the tensor.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/nn/encoder_layer.h"
#include "polyhead/nn/linear.h"
#include "polyhead/nn/norm.h"
#include "polyhead/tensor.h"

namespace polyhead::models {

// Words that complete the messages of Checkpoint::prefix_of().
struct CheckpointWords {
  std::string_view models = "models";  // "holds two models"
  std::string type{};                  // TYPE in the message "is not TYPE"; if empty, TYPE is "a model of the type " and the model_type
  std::string such_as{};               // text after "with or without a prefix"
};

class Checkpoint {
 public:
  // The dtype is unknown until the first prefix_of().
  Checkpoint(io::TensorFile file, std::string_view model_type) : file_(std::move(file)), model_type_(model_type) {}
  Checkpoint(const std::filesystem::path& folder, std::string_view model_type) : Checkpoint(io::open_tensors(folder), model_type) {}
  // `words`: possible names of the embedding, without the prefix. The first of these names that the file has determines the dtype, and whether all names have
  // the prefix.
  Checkpoint(const std::filesystem::path& folder, std::string_view model_type, std::string_view prefix, std::span<const std::string_view> words)
      : Checkpoint(folder, model_type) {
    const io::NamedTensor* found = nullptr;
    for (const std::string_view name : words) {
      for (const std::string_view before : {prefix, std::string_view()}) {
        if (found != nullptr) break;
        found = named(cat(before, name, ".weight"));
        prefix_ = before;
        words_ = name;
      }
    }
    if (found == nullptr)
      fail(ErrorCode::format, file_name(), ": is not a model of the type ", model_type, ": none of its ", file_.tensors.size(), " tensors is named '", prefix, words[0], ".weight' or '", words[0],
           ".weight'");
    take_dtype_of(*found);
  }

  // Returns what precedes `ending` in the name of the only tensor whose name ends with it: "vit." or "". Error if there is none, or more than one. The tensor's
  // dtype becomes that of the model, if no earlier tensor has determined it.
  std::string prefix_of(std::string_view ending, const CheckpointWords& words = {}) {
    const io::NamedTensor* found = nullptr;
    for (const io::NamedTensor& tensor : file_.tensors) {
      const std::string_view name = tensor.name;
      if (!name.ends_with(ending) || (name.size() > ending.size() && name[name.size() - ending.size() - 1] != '.')) continue;
      if (found != nullptr) fail(ErrorCode::format, file_name(), ": holds two ", words.models, ", '", found->name, "' and '", name, "'; one is needed");
      found = &tensor;
    }
    if (found == nullptr)
      fail(ErrorCode::format, file_name(), ": is not ", words.type.empty() ? cat("a model of the type ", model_type_) : words.type, ": none of its ", file_.tensors.size(), " tensors is named '", ending,
           "', with or without a prefix", words.such_as);
    if (first_.empty()) take_dtype_of(*found);
    return found->name.substr(0, found->name.size() - ending.size());
  }

  DType dtype() const { return dtype_; }
  const std::string& prefix() const { return prefix_; }
  const std::string& embedding_name() const { return words_; }  // the name of the embedding in the file
  const Tensor* find(std::string_view name) const { return file_.find(name); }

  // Returns a tensor on the file's memory. Error if it is missing or has another shape or dtype.
  Tensor take(const std::string& name, const Shape& shape) {
    const Tensor& tensor = taken(name, shape);
    if (tensor.dtype() != dtype_) fail(ErrorCode::format, file_name(), ": '", name, "' is ", tensor.dtype(), "; it must be ", dtype_, ", as '", first_, "'");
    return part(tensor, [](TensorView view) { return view; });
  }

  // Takes a tensor as take() does, but leading extents of 1 may be missing or added: a stored [1,T,E] serves as [T,E].
  Tensor take_reshaped(const std::string& name, const Shape& shape) {
    const Tensor* stored = find(name);
    if (stored == nullptr || without_ones(stored->shape()) != without_ones(shape)) return take(name, shape);
    return part(take(name, stored->shape()), [&](TensorView view) { return view.reshape(shape); });
  }

  // Takes a tensor of any floating dtype as take() does; the tensor is rounded to the model's dtype.
  Tensor take_rounded(const std::string& name, const Shape& shape) {
    const Tensor& tensor = taken(name, shape);
    if (!is_floating(tensor.dtype())) fail(ErrorCode::format, file_name(), ": '", name, "' is ", tensor.dtype(), "; a floating dtype is needed");
    return tensor.dtype() == dtype_ ? take(name, shape) : Tensor::copy_of(tensor.view(), dtype_);
  }

  // Takes a linear layer whose weight is stored as [out,in] or, if `transposed`, as [in,out].
  nn::Linear linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias = true, bool transposed = false) {
    const Tensor stored = take(name + ".weight", transposed ? Shape{in, out} : Shape{out, in});
    Tensor weight = part(stored, [&](TensorView view) { return transposed ? view.transpose(0, 1) : view; });
    return nn::Linear(std::move(weight), bias ? take(name + ".bias", {out}) : Tensor());
  }

  struct Projections {
    nn::Linear q, k, v;
  };
  // Takes the projections q, k and v: three linear layers, or, if names.k is empty, the rows of one linear layer that names.q names.
  template <class Names>
  Projections qkv(const std::string& prefix, const Names& names, std::int64_t q_rows, std::int64_t k_rows, std::int64_t in, bool bias, bool transposed = false) {
    const auto taken = [&](std::string_view name, std::int64_t out) { return linear(cat(prefix, name), out, in, bias, transposed); };
    if (!names.k.empty()) return {taken(names.q, q_rows), taken(names.k, k_rows), taken(names.v, k_rows)};
    const nn::Linear packed = taken(names.q, q_rows + 2 * k_rows);
    return {rows_of(packed, 0, q_rows), rows_of(packed, q_rows, q_rows + k_rows), rows_of(packed, q_rows + k_rows, q_rows + 2 * k_rows)};
  }

  nn::Norm layer_norm(const std::string& name, std::int64_t width, double epsilon) {
    Tensor weight = take(name + ".weight", {width});
    return nn::LayerNorm(std::move(weight), take(name + ".bias", {width}), epsilon);
  }

  // Error if the file has a tensor of the model that was not taken: the results would differ from the checkpoint's.
  template <class F>
  void require_all_taken(const F& is_buffer) const {
    for (const io::NamedTensor& tensor : file_.tensors) {
      const auto begins = [&name = tensor.name](const std::string& beginning) { return name.starts_with(beginning); };
      if (taken_.contains(tensor.name) || std::ranges::any_of(ignored_, begins) || is_buffer(tensor.name)) continue;
      fail(ErrorCode::format, file_name(), ": '", tensor.name, "' ", tensor.tensor.shape(), " has no place in a model of the type ", model_type_, " with this config.json");
    }
  }

  void require_all_taken() const {
    require_all_taken([](std::string_view) { return false; });
  }

  void ignore(const std::string& name) { taken_.insert(name); }
  void ignore_beginning(std::string beginning) { ignored_.push_back(std::move(beginning)); }
  // Returns whether the file has a tensor of this name with the same bits as `other`.
  bool is_copy(const std::string& name, const Tensor& other) const {
    const Tensor* tensor = find(name);
    return tensor != nullptr && tensor->dtype() == other.dtype() && tensor->shape() == other.shape() &&
           std::memcmp(tensor->view().data(), other.view().data(), static_cast<std::size_t>(other.numel()) * info(other.dtype()).size) == 0;
  }

  std::string file_name() const { return file_.path.filename().string(); }

  // Returns a part of a tensor. The part keeps the memory of the whole tensor alive.
  template <class F>
  static Tensor part(const Tensor& whole, const F& view) {
    const ConstTensorView all = whole.view();
    return Tensor::share(view(TensorView(const_cast<void*>(all.data()), all.dtype(), all.shape(), all.strides())), whole.owner());
  }
  // Returns the rows [first, last) of a linear layer, on its memory.
  static nn::Linear rows_of(const nn::Linear& whole, std::int64_t first, std::int64_t last) {
    const auto slice = [&](const Tensor& tensor) { return tensor ? part(tensor, [&](TensorView view) { return view.slice(0, first, last); }) : Tensor(); };
    return {slice(whole.weight), slice(whole.bias)};
  }

 private:
  void take_dtype_of(const io::NamedTensor& tensor) {
    dtype_ = tensor.tensor.dtype(), first_ = tensor.name;
    if (!is_floating(dtype_)) fail(ErrorCode::format, file_name(), ": '", first_, "' is ", dtype_, "; a floating dtype is needed");
  }

  static Shape without_ones(Shape shape) {
    while (!shape.empty() && shape[0] == 1) shape.erase(0);
    return shape;
  }

  const Tensor& taken(const std::string& name, const Shape& shape) {
    const Tensor* tensor = file_.find(name);
    if (tensor == nullptr) fail(ErrorCode::format, file_name(), ": has no tensor '", name, "', which config.json implies");
    if (tensor->shape() != shape) fail(ErrorCode::format, file_name(), ": '", name, "' is ", tensor->shape(), "; config.json makes it ", shape);
    taken_.insert(name);
    return *tensor;
  }

  const io::NamedTensor* named(std::string_view name) const {
    for (const io::NamedTensor& tensor : file_.tensors)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }

  io::TensorFile file_;
  std::string model_type_, prefix_, words_;
  std::string first_;  // name of the tensor that determined the dtype
  DType dtype_ = DType::f32;
  std::set<std::string> taken_;
  std::vector<std::string> ignored_;  // beginnings of names
};

// Takes the tensors of a layer. norm(NAME) takes a norm; a norm without a name is absent. With a gate, the tensor names.hidden holds the gate, then the hidden layer.
template <class Names, class F>
nn::EncoderLayer load_encoder_layer(Checkpoint& file, const Names& names, const nn::LayerConfig& config, const std::string& prefix, const F& norm) {
  const std::int64_t width = config.width, hidden_width = config.hidden_width;
  const auto named = [&](std::string_view name) { return cat(prefix, name); };
  nn::EncoderLayer layer;
  auto [q, k, v] = file.qkv(prefix, names, width, width, width, config.bias);
  layer.attention = nn::make_attention({.query_width = width, .heads = config.heads, .bias = config.bias, .output_bias = config.output_bias, .dtype = config.dtype}, std::move(q), std::move(k),
                                       std::move(v), file.linear(named(names.attention_output), width, width, config.output_bias));
  if (!names.attention_norm.empty()) layer.attention_norm = norm(named(names.attention_norm));
  nn::Linear hidden = file.linear(named(names.hidden), (config.gated ? 2 : 1) * hidden_width, width, config.feed_forward_bias), gate;
  if (config.gated) gate = Checkpoint::rows_of(hidden, 0, hidden_width), hidden = Checkpoint::rows_of(hidden, hidden_width, 2 * hidden_width);
  layer.feed_forward = nn::FeedForward(std::move(hidden), file.linear(named(names.feed_forward_output), width, hidden_width, config.feed_forward_bias), config.activation, std::move(gate));
  layer.feed_forward_norm = norm(named(names.feed_forward_norm));
  layer.norm_position = config.norm_position.value_or(nn::NormPosition::post);
  return layer;
}

}  // namespace polyhead::models
