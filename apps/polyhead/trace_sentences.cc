#include "trace_sentences.h"

#include <cmath>

#include "core/join.h"
#include "format.h"
#include "polyhead/attention_arguments.h"

namespace polyhead::app {
namespace {

using nn::GlobalQuery;
using nn::TraceKind;

std::string parameters_of(const nn::Linear& projection) {
  return cat("weight ", projection.weight.shape(), projection.bias ? cat(", bias ", projection.bias.shape()) : std::string(", no bias"));
}

// A note for readers of source code that folds the heads into the batch: the shape [B*N,..] that the data has there.
std::string folded(const Shape& heads) {
  if (heads.size() < 4) return {};
  return cat("; the same data as (", numel(heads.first(heads.size() - 2)), ",", heads[-2], ",", heads[-1], ") where heads are folded into the batch");
}

std::string mask_parts(const Mask& mask) {
  std::vector<std::string_view> parts;
  if (mask.causal) parts.emplace_back("causal");
  if (mask.window.left || mask.window.right) parts.emplace_back("window");
  visit_given(mask, [&](std::string_view name, const ConstTensorView&) { parts.push_back(name); });
  return join(parts);
}

class Writer {
 public:
  Writer(const nn::MultiHeadAttention& layer, const nn::AttentionInput& input, const nn::AttentionOptions& options, const ProjectionNames& names)
      : layer_(layer), c_(layer.config), input_(input), options_(options), names_(names), maps_(layer.maps_shape(input)), lead_(maps_.first(maps_.size() - 3)),
        keys_(maps_[-1]), input_keys_(keys_ - (c_.add_bias_kv ? 1 : 0) - (c_.add_zero_attn ? 1 : 0)) {}

  TraceStep step(nn::TraceStep traced) {
    const auto say = [&](std::string step, std::string where, std::string meaning) {
      return TraceStep{std::move(traced), std::move(step), std::move(where), std::move(meaning)};
    };
    if (traced.mask) empty_rows_ = traced.mask->empty_rows;
    const std::string key = input_.key ? "key" : "query", value = input_.value ? "value" : key, query = global() ? "mean query" : "query";
    const std::int64_t width = traced.value.extent(-1);
    switch (traced.kind) {
      case TraceKind::query: {
        const int axis = c_.axis < 0 ? c_.axis + input_.query.rank() : c_.axis;
        return say("query", "input", cat(input_.key || input_.projected_key ? "" : "query, key and value: ", size_of(input_.query.extent(axis), c_.query_width)));
      }
      case TraceKind::key:
        return say("key", "input", cat(input_.value || input_.projected_key ? "" : "key and value: ", size_of(input_keys_, width)));
      case TraceKind::value: return say("value", "input", size_of(input_keys_, width));
      case TraceKind::mean_query: {
        const bool masked = c_.global_query == GlobalQuery::masked_mean;
        return say("mean query", masked ? "masked mean of query" : "mean of query",
                   cat("one query for each sequence: the mean over its ", masked ? "positions that the key mask lets through" : counted(input_keys_, "position")));
      }
      case TraceKind::projection_q: return say("projection q", cat(names_.at("q"), "(", query, ")"), projection(layer_.q));
      case TraceKind::projection_k: return say("projection k", cat(names_.at("k"), "(", key, ")"), projection(layer_.k));
      case TraceKind::projection_v: return say("projection v", cat(names_.at("v"), "(", value, ")"), projection(layer_.v));
      case TraceKind::norm_q: return say("norm q", "RMS norm of q", normed());
      case TraceKind::norm_k: return say("norm k", "RMS norm of k", normed());
      case TraceKind::rotary_q: return say("rotary q", "rotated q", rotation());
      case TraceKind::rotary_k: return say("rotary k", "rotated k", rotation());
      case TraceKind::added_key: return say("added key", cat("k", added("bias_k")), cat("added keys: ", added_keys()));
      case TraceKind::added_value: return say("added value", cat("v", added("bias_v")), cat("added values: ", added_keys()));
      case TraceKind::split_q: return say("split q", "heads of q", split("H", c_.heads, traced.shape()));
      case TraceKind::split_k: return say("split k", "heads of k", split("H", c_.kv_heads, traced.shape()));
      case TraceKind::split_v: return say("split v", "heads of v", split("V", c_.kv_heads, traced.shape()));
      case TraceKind::scores:
        return say("scores", "<q, k>",
                   cat("the dot product of each query and key over their ", counted(c_.head_width, "feature"), folded(maps_)));
      case TraceKind::scale:
        if (c_.scale) return say("scale", cat(*c_.scale, " * scores"), cat("scores times ", *c_.scale));
        return say("scale", "scores / sqrt(H)",
                   cat("scores divided by sqrt(", c_.head_width, "), so that their size does not grow with the width of a head"));
      case TraceKind::softcap:
        return say("softcap", "c tanh(scores / c)", cat("scores bounded smoothly to -", c_.softcap, " .. ", c_.softcap));
      case TraceKind::bias:
        if (options_.relative_bias) return say("bias", "scores + bias[s - t]", cat("adds the relative bias ", options_.relative_bias.parameter().shape(), ": a number for each head and distance of key and query"));
        return say("bias", "scores + bias", cat("adds the bias ", options_.bias.shape(), options_.bias.numel() < numel(maps_) ? ", which broadcasts" : ""));
      case TraceKind::mask: return say("mask", mask_parts(options_.mask), mask_meaning(*traced.mask));
      case TraceKind::softmax:
        return say("softmax", "exp(scores) / sum",
                   keys_ == 0 ? std::string("attention weights: none, because there is no key; the output of the heads is 0")
                              : cat("attention weights of each query over ", counted(keys_, "key"), "; rows sum to 1",
                                    empty_rows_ > 0 && c_.empty_rows == EmptyRows::zero ? ", except empty rows" : ""));
      case TraceKind::dropout:
        return say("dropout", "keep / (1 - p)",
                   cat("in training each attention weight is dropped with probability ", c_.dropout, c_.dropout < 1 ? cat("; the others are multiplied by ", 1 / (1 - c_.dropout)) : ""));
      case TraceKind::weighted_values:
        return say("weighted values", "p * v", cat("sum of the values times the attention weights of each query", folded(traced.shape())));
      case TraceKind::merge:
        return say("merge", "heads side by side",
                   cat(c_.heads, " * ", c_.value_head_width, " = ", counted(c_.heads * c_.value_head_width, "feature"), " for each query"));
      case TraceKind::gate:
        return say("gate", cat("sigmoid(", names_.at("gate"), "(query))"), cat("a factor from 0 to 1 for each feature: ", parameters_of(layer_.gate)));
      case TraceKind::gated:
        return say("gated", "merged * gate", global() ? "the result of each sequence times the gate of each position" : "merged heads times the gate");
      case TraceKind::output_projection:
        return say("output projection", cat(names_.at("output"), "(", c_.gate == nn::Gate::sigmoid ? "gated" : "merged", ")"),
                   cat("combines the heads to ", counted(c_.output_width, "feature"), ": ", parameters_of(layer_.output)));
    }
    return say("", "", "");
  }

 private:
  bool global() const { return c_.global_query != GlobalQuery::off; }

  std::string size_of(std::int64_t positions, std::int64_t width) const {
    return cat(lead_.empty() ? "" : cat(counted(numel(lead_), "sequence"), " of "), counted(positions, "position"), ", ", counted(width, "feature"), " each");
  }

  static std::string projection(const nn::Linear& linear) {
    return cat("a linear projection of each position to ", counted(linear.out_width(), "feature"), ": ", parameters_of(linear));
  }

  std::string normed() const { return cat("each head divided by the root mean square of its ", counted(c_.head_width, "feature"), ", times a learned weight"); }

  std::string rotation() const {
    return cat(counted(options_.rotary.cos.extent(-1), "pair"), " of features of each head turned by angles that grow with the position");
  }

  std::string added(const char* learned) const { return cat(c_.add_bias_kv ? cat(", ", learned) : "", c_.add_zero_attn ? ", 0" : ""); }

  std::string added_keys() const {
    const bool both = c_.add_bias_kv && c_.add_zero_attn;
    return cat(c_.add_bias_kv ? "a learned one" : "", both ? " and " : "", c_.add_zero_attn ? "one of zeros" : "", ", after the ", input_keys_,
               " of the input; every query may attend to ", both ? "them" : "it");
  }

  std::string split(const char* letter, std::int64_t n, const Shape& shape) const {
    const std::int64_t w = shape[-1];
    std::string meaning = cat(counted(n, "head"), " of ", letter, " = ", counted(w, "feature"));
    if (n > 1) append(meaning, w == 1 ? std::string(": head n takes feature n") : cat(": head n takes features ", w, "n to ", w, "n+", w - 1));
    if (n != c_.heads) append(meaning, cat(n == 1 ? ", which" : ", each of which", " serves ", counted(c_.heads / n, "query head")));
    return meaning + folded(shape);
  }

  std::string mask_meaning(const nn::MaskCounts& mask) const {
    std::string text = cat("-inf where a query may not attend: ", mask.attended, " of ", counted(mask.pairs, "pair"), mask.attended == 1 ? " is" : " are",
                           " attended", mask.shared_by_heads ? ", the same in every head" : "");
    if (mask.empty_rows == 0) return text;
    append(text, cat("; ", counted(mask.empty_rows, "row"), " without a key: "));
    switch (c_.empty_rows) {
      case EmptyRows::zero: return text + "attention weights and output are 0";
      case EmptyRows::uniform: return text + "every key gets the same attention weight";
      case EmptyRows::unmasked: return text + "as if nothing were masked";
    }
    return text;
  }

  const nn::MultiHeadAttention& layer_;
  const nn::MultiHeadAttentionConfig& c_;
  const nn::AttentionInput& input_;
  const nn::AttentionOptions& options_;
  const ProjectionNames& names_;
  const Shape maps_, lead_;
  // keys_: number of keys, with those that the layer appends. input_keys_: number of keys without them.
  const std::int64_t keys_, input_keys_;
  std::int64_t empty_rows_ = 0;
};

// The letter (q, k, v, ...) of the projection that this step computes, splits into heads or merges from heads.
char letter_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::projection_q: case TraceKind::norm_q: case TraceKind::rotary_q: case TraceKind::split_q: return 'q';
    case TraceKind::projection_k: case TraceKind::norm_k: case TraceKind::rotary_k: case TraceKind::added_key: case TraceKind::split_k: return 'k';
    case TraceKind::projection_v: case TraceKind::added_value: case TraceKind::split_v: return 'v';
    case TraceKind::weighted_values: case TraceKind::merge: return 'o';
    default: return 0;
  }
}

std::string source_text(const SourceStep& step) {
  const bool says_shape = step.code.starts_with("reshape") || step.code.starts_with("view");
  return says_shape ? step.code : cat(step.code, " to ", step.value.shape());
}

void add_parameters(const nn::MultiHeadAttention& layer, const ProjectionNames& names, TraceKind kind, std::vector<std::pair<std::string, Tensor>>* parameters) {
  const auto add = [&](const std::string& name, const Tensor& tensor) {
    if (tensor) parameters->emplace_back(name, Tensor::copy_of(tensor));
  };
  const auto add_linear = [&](const char* letter, const nn::Linear& linear) {
    add(names.at(letter) + ".weight", linear.weight);
    add(names.at(letter) + ".bias", linear.bias);
  };
  switch (kind) {
    case TraceKind::projection_q: return add_linear("q", layer.q);
    case TraceKind::projection_k: return add_linear("k", layer.k);
    case TraceKind::projection_v: return add_linear("v", layer.v);
    case TraceKind::gate: return add_linear("gate", layer.gate);
    case TraceKind::output_projection: return add_linear("output", layer.output);
    case TraceKind::added_key: return add("bias_k", layer.bias_k);
    case TraceKind::added_value: return add("bias_v", layer.bias_v);
    default: return;
  }
}

}  // namespace

std::vector<TraceStep> trace_sentences(const nn::MultiHeadAttention& layer, const nn::AttentionInput& input, const nn::AttentionOptions& options,
                                       const ProjectionNames& names, std::string_view layout) {
  Writer writer(layer, input, options, names);
  std::map<char, Tensor> heads;  // by the projection's letter: the tensor that is split into heads, or whose heads are merged
  std::vector<TraceStep> steps;
  for (nn::TraceStep& traced : nn::trace(layer, input, options)) {
    const TraceKind kind = traced.kind;
    const char letter = has_source_steps(layout) ? letter_of(kind) : '\0';
    std::vector<SourceStep> source;
    if (const auto before = heads.find(letter); before != heads.end()) source = source_steps(layout, layer.config, input.query.rank(), traced, before->second);
    if (letter != 0) heads.insert_or_assign(letter, Tensor::copy_of(traced.value));
    TraceStep step = writer.step(std::move(traced));
    if (!source.empty()) append(step.meaning, cat("; in the source: ", join(source, source_text)));
    step.source = std::move(source);
    add_parameters(layer, names, kind, &step.parameters);
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace polyhead::app
