#include "polyhead/nn/trace.h"

#include <cmath>

#include "core/text.h"
#include "nn/attention_shapes.h"
#include "nn/elementwise.h"
#include "sdpa/dense_mask.h"

namespace polyhead::nn {
namespace {

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) append(text, cat(text.empty() ? "" : separator, part));
  return text;
}

std::string counted(std::int64_t count, std::string_view noun) { return cat(count, " ", noun, count == 1 ? "" : "s"); }

std::string parameters_of(const Linear& map) {
  return cat("weight ", map.weight.shape(), map.bias ? cat(", bias ", map.bias.shape()) : std::string(", no bias"));
}

std::vector<std::string> mask_parts(const Mask& mask) {
  std::vector<std::string> parts;
  if (mask.causal) parts.emplace_back("causal");
  if (mask.window.left || mask.window.right) parts.emplace_back("window");
  mask.visit([&](std::string_view name, ConstTensorView) { parts.emplace_back(name); });
  return parts;
}

class Tracer {
 public:
  Tracer(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options, const TraceNames& names)
      : layer_(layer), config_(layer.config), input_(input), options_(options), names_(names),
        shapes_(attention_shapes("trace", layer.config, input)), out_(layer.config.dtype, layer.output_shape(input)) {
    layer.forward(input, out_, options, &saved_);
    queries_ = config_.global_query == GlobalQuery::off ? "T" : "1";
    keys_ = shapes_.added_keys == 0 ? "S" : cat("S+", shapes_.added_keys);
    key_heads_ = config_.kv_heads == config_.heads ? "N" : config_.kv_heads == 1 ? "1" : "K";
  }

  std::vector<TraceStep> run() {
    inputs();
    projections();
    heads();
    pairs();
    outputs();
    return std::move(steps_);
  }

 private:
  void add(std::string step, std::string where, std::string letters, std::string meaning, Tensor value) {
    steps_.push_back({std::move(step), std::move(where), std::move(letters), std::move(meaning), std::move(value)});
  }

  std::string batch_letter(int i) const { return shapes_.lead.size() == 1 ? "B" : cat("B", i + 1); }

  // "[B1,T,B2,E]" of a tensor whose dimensions are in the order of the inputs.
  std::string input_letters(const std::string& positions, const std::string& width) const {
    std::vector<std::string> parts;
    for (int i = 0; i < shapes_.lead.size(); ++i) parts.push_back(batch_letter(i));
    parts.insert(parts.begin() + shapes_.axis, positions);
    parts.push_back(width);
    return cat("[", joined(parts, ","), "]");
  }

  // "[B,N,T,H]" of a tensor in heads.
  std::string head_letters(const std::string& count, const std::string& rows, const std::string& columns) const {
    std::vector<std::string> parts;
    for (int i = 0; i < shapes_.lead.size(); ++i) parts.push_back(batch_letter(i));
    for (const std::string& part : {count, rows, columns}) parts.push_back(part);
    return cat("[", joined(parts, ","), "]");
  }

  // Many sources give each head a place in the batch instead of a dimension of its own.
  static std::string folded(const Shape& heads) {
    if (heads.size() < 4) return {};
    std::int64_t batch = 1;
    for (const std::int64_t extent : heads.first(heads.size() - 2)) batch *= extent;
    return cat("; the same data as (", batch, ",", heads[-2], ",", heads[-1], ") where heads are folded into the batch");
  }

  std::string key_width(const char* width) const { return key_heads_ == "1" ? width : cat(key_heads_, "*", width); }

  std::string sequences() const { return shapes_.lead.empty() ? "" : cat(counted(numel(shapes_.lead), "sequence"), " of "); }

  void inputs() {
    const std::string query_size =
        cat(sequences(), counted(shapes_.positions, "position"), ", ", counted(config_.query_width, "feature"), " each");
    const std::string asks = !input_.key ? "what asks and what is looked at" : "what asks";
    add("query", "input", input_letters("T", input_.key ? "Eq" : "E"), cat(asks, ": ", query_size), Tensor::copy_of(input_.query));
    if (input_.key) {
      add("key", "input", input_letters("S", "Ek"),
          cat(input_.value ? "what queries are compared with" : "what is looked at, as key and as value", ": ", sequences(),
              counted(shapes_.keys, "position"), ", ", counted(config_.key_width, "feature"), " each"),
          Tensor::copy_of(input_.key));
    }
    if (input_.value) {
      add("value", "input", input_letters("S", "Ev"),
          cat("what is averaged: ", sequences(), counted(shapes_.keys, "position"), ", ", counted(config_.value_width, "feature"), " each"),
          Tensor::copy_of(input_.value));
    }
    if (config_.global_query == GlobalQuery::off) return;
    const bool masked = config_.global_query == GlobalQuery::masked_mean;
    add("mean query", masked ? "masked mean of query" : "mean of query", input_letters("1", "Eq"),
        cat("one query for each sequence: the mean over its ", masked ? "positions that the key mask keeps" : counted(shapes_.positions, "position")),
        Tensor::copy_of(saved_.query_mean));
  }

  void projections() {
    const std::string key = input_.key ? "key" : "query", value = input_.value ? "value" : key;
    const std::string query = config_.global_query == GlobalQuery::off ? "query" : "mean query";
    project("q", names_.q, query, queries_, "N*H", layer_.q, ConstTensorView(saved_.q));
    const auto own = [&](const Tensor& x) { return x.view().slice(shapes_.axis, 0, shapes_.keys); };
    project("k", names_.k, key, "S", key_width("H"), layer_.k, own(saved_.k));
    project("v", names_.v, value, "S", key_width("V"), layer_.v, own(saved_.v));
    if (shapes_.added_keys == 0) return;
    const std::string zero = config_.add_zero_attn ? ", 0" : "";
    std::vector<std::string> what;
    if (config_.add_bias_kv) what.emplace_back("a learned one");
    if (config_.add_zero_attn) what.emplace_back("one of zeros");
    const std::string which = cat(joined(what, " and "), ", after the ", shapes_.keys, " of the input; every query may attend to ", what.size() == 1 ? "it" : "them");
    add("added key", cat("k, ", config_.add_bias_kv ? "bias_k" : "", config_.add_bias_kv ? zero : std::string("0")), input_letters(keys_, key_width("H")),
        cat("further keys: ", which), Tensor::copy_of(saved_.k));
    add("added value", cat("v, ", config_.add_bias_kv ? "bias_v" : "", config_.add_bias_kv ? zero : std::string("0")), input_letters(keys_, key_width("V")),
        cat("their values: ", which), Tensor::copy_of(saved_.v));
  }

  void project(const char* name, const std::string& module, const std::string& of, const std::string& rows, const std::string& width, const Linear& map,
               ConstTensorView value) {
    add(cat("projection ", name), cat(module, "(", of, ")"), input_letters(rows, width),
        cat("a linear map of each position to ", counted(map.out_width(), "feature"), ": ", parameters_of(map)), Tensor::copy_of(value));
  }

  void heads() {
    split("q", "N", queries_, "H", config_.heads, saved_.q_heads);
    split("k", key_heads_, keys_, "H", config_.kv_heads, saved_.k_heads);
    split("v", key_heads_, keys_, "V", config_.kv_heads, saved_.v_heads);
  }

  void split(const char* name, const std::string& count, const std::string& rows, const char* width, std::int64_t n, ConstTensorView value) {
    const std::int64_t w = value.extent(-1);
    std::string meaning = cat(counted(n, "head"), " of ", width, " = ", counted(w, "feature"));
    if (n > 1)
      append(meaning, w == 1 ? std::string(": head n takes feature n") : cat(": head n takes features ", w, "n to ", w, "n+", w - 1));
    if (n != config_.heads)
      append(meaning, cat(n == 1 ? ", which" : ", each of which", " serves ", counted(config_.heads / n, "query head")));
    add(cat("split ", name), cat("heads of ", name), head_letters(count, rows, width), meaning + folded(value.shape()), Tensor::copy_of(value));
  }

  Tensor map(SdpaOptions options, MapValue value) const {
    options.executor = options_.executor;
    Tensor result(accumulation_dtype(config_.dtype), layer_.maps_shape(input_));
    attention_map(saved_.maps(), result, options, value);
    return result;
  }

  // The [*,N,T,S] stages: each is the layer's own problem, read at a later point of its formula.
  void pairs() {
    const std::string letters = head_letters("N", queries_, keys_);
    const std::int64_t width = config_.head_width, keys = shapes_.keys + shapes_.added_keys;
    SdpaOptions plain = saved_.sdpa;
    plain.mask = {};
    plain.bias = {};
    plain.dropout = {};
    SdpaOptions unscaled = plain;
    unscaled.scale = 1;
    add("scores", "<q, k>", letters,
        cat("raw: how well each query fits each key, the dot product of their ", counted(width, "feature"),
            folded(layer_.maps_shape(input_))),
        map(unscaled, MapValue::scaled_score));
    const double scale = config_.scale.value_or(1 / std::sqrt(static_cast<double>(width)));
    if (scale != 1) {
      add("scale", config_.scale ? cat(scale, " * scores") : std::string("scores / sqrt(H)"), letters,
          config_.scale ? cat("scores times ", scale)
                        : cat("scores divided by sqrt(", width, "), so that their spread does not grow with the width of a head"),
          map(plain, MapValue::scaled_score));
    }
    if (config_.softcap > 0) {
      add("softcap", "c tanh(scores / c)", letters, cat("scores bent smoothly into -", config_.softcap, " to ", config_.softcap),
          map(plain, MapValue::capped_score));
    }
    if (options_.bias) {
      SdpaOptions biased = plain;
      biased.bias = saved_.sdpa.bias;
      add("bias", "scores + bias", letters,
          cat("a term of its own for each pair: bias ", options_.bias.shape(), options_.bias.numel() < numel(layer_.maps_shape(input_)) ? ", repeated where it has no extent" : ""),
          map(biased, MapValue::score));
    }
    if (const std::vector<std::string> parts = mask_parts(options_.mask); !parts.empty()) {
      add("mask", joined(parts, ", "), letters, mask_meaning(), map(saved_.sdpa, MapValue::score));
    }
    add("softmax", "exp(scores) / sum", letters,
        keys == 0 ? std::string("attention weights: none, as there is no key; the output of the heads is 0")
                  : cat("attention weights: how much each query takes from each of ", counted(keys, "key"), "; rows sum to 1",
                        empty_rows_ > 0 && config_.empty_rows == EmptyRows::zero ? ", but for the empty ones" : ""),
        map(saved_.sdpa, MapValue::probability));
    if (saved_.sdpa.dropout.p > 0) {
      const double p = saved_.sdpa.dropout.p;
      add("dropout", "keep / (1 - p)", letters, cat("in training each weight is dropped with probability ", p, p < 1 ? cat("; the others are multiplied by ", 1 / (1 - p)) : ""),
          map(saved_.sdpa, MapValue::dropped));
    }
  }

  std::string mask_meaning() {
    const std::int64_t keys = shapes_.keys + shapes_.added_keys;
    const Tensor dense = dense_mask("trace", saved_.sdpa.mask, shapes_.lead, config_.heads, shapes_.queries, keys);
    const bool* attend = dense.data<bool>();
    std::int64_t kept = 0;
    const std::int64_t rows = keys == 0 ? numel(shapes_.lead) * shapes_.queries : dense.numel() / keys;
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int64_t in_row = 0;
      for (std::int64_t s = 0; s < keys; ++s) in_row += attend[row * keys + s];
      kept += in_row;
      empty_rows_ += in_row == 0;
    }
    std::string text = cat("-inf where a query may not look: ", kept, " of ", counted(dense.numel(), "pair"), " stay", kept == 1 ? "s" : "",
                           dense.extent(-3) == 1 && config_.heads > 1 ? ", alike in every head" : "");
    if (empty_rows_ == 0) return text;
    append(text, cat("; ", counted(empty_rows_, "row"), " without a key: "));
    switch (config_.empty_rows) {
      case EmptyRows::zero: return text + "weights and output are 0";
      case EmptyRows::uniform: return text + "every key gets the same weight";
      case EmptyRows::unmasked: return text + "as if nothing were masked";
    }
    return text;
  }

  void outputs() {
    add("weighted values", "weights * v", head_letters("N", queries_, "V"),
        cat("each query's average of the values, by its weights", folded(saved_.attended_heads.shape())), Tensor::copy_of(saved_.attended_heads));
    add("merge", "heads side by side", input_letters(queries_, "N*V"),
        cat(config_.heads, " * ", config_.value_head_width, " = ", counted(config_.heads * config_.value_head_width, "feature"),
            " for each query"),
        Tensor::copy_of(saved_.attended));
    std::string merged = "merged";
    if (config_.gate == Gate::sigmoid) {
      add("gate", cat("sigmoid(", names_.gate, "(query))"), input_letters("T", "N*V"),
          cat("how much of each feature passes, 0 to 1: ", parameters_of(layer_.gate)), Tensor::copy_of(saved_.gate));
      Tensor gated(config_.dtype, saved_.gate.shape());
      multiply(saved_.attended, saved_.gate, gated, options_.executor);
      add("gated", "merged * gate", input_letters("T", "N*V"),
          config_.global_query == GlobalQuery::off ? "merged heads times the gate" : "the one result of each sequence, opened at each position by its gate", std::move(gated));
      merged = "gated";
    }
    if (config_.output == OutputProjection::none) return;
    add("output map", cat(names_.output, "(", merged, ")"), input_letters(config_.gate == Gate::sigmoid ? "T" : queries_, "Eo"),
        cat("mixes the heads into ", counted(config_.output_width, "feature"), ": ", parameters_of(layer_.output)), std::move(out_));
  }

  const MultiHeadAttention& layer_;
  const MultiHeadAttentionConfig& config_;
  const AttentionInput& input_;
  const AttentionOptions& options_;
  const TraceNames& names_;
  AttentionShapes shapes_;
  Tensor out_;
  MultiHeadAttention::Saved saved_;
  std::string queries_, keys_, key_heads_;
  std::int64_t empty_rows_ = 0;
  std::vector<TraceStep> steps_;
};

}  // namespace

std::vector<TraceStep> trace(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options, const TraceNames& names) {
  return Tracer(layer, input, options, names).run();
}

}  // namespace polyhead::nn
