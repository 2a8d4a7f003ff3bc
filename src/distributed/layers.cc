#include "polyhead/distributed/layers.h"

#include "core/text.h"
#include "polyhead/attention_arguments.h"

namespace polyhead::distributed {
namespace {

Tensor rows_of(const Tensor& tensor, std::int64_t first, std::int64_t last) { return tensor ? Tensor::copy_of(tensor.view().slice(0, first, last)) : Tensor(); }
Tensor columns_of(const Tensor& tensor, std::int64_t first, std::int64_t last) { return tensor ? Tensor::copy_of(tensor.view().slice(-1, first, last)) : Tensor(); }
nn::Linear rows_of(const nn::Linear& linear, std::int64_t first, std::int64_t last) { return {rows_of(linear.weight, first, last), rows_of(linear.bias, first, last)}; }

void require_part(const char* operation, int rank, int ranks) {
  require(ranks >= 1 && rank >= 0 && rank < ranks, operation, ": part is ", rank, " and the number of parts ", ranks, "; part must lie in [0, parts)");
}

// Returns the heads [first, first + count) of a tensor that broadcasts to [*,N,T,S].
template <class View>
View heads_of(const View& view, std::int64_t heads, std::int64_t first, std::int64_t count) {
  return view && view.rank() >= 3 && view.extent(-3) == heads && heads > 1 ? view.slice(-3, first, first + count) : view;
}

}  // namespace

nn::MultiHeadAttention part_of(const nn::MultiHeadAttention& layer, int rank, int ranks) {
  require_part("part_of", rank, ranks);
  const nn::MultiHeadAttentionConfig& whole = layer.config;
  require(whole.kv_heads % ranks == 0, "part_of: ", whole.kv_heads, " key/value heads do not divide among ", ranks, " ranks; the number of key/value heads must be a multiple of the number of ranks");
  require(whole.output == nn::OutputProjection::linear, "part_of: the layer has no output projection; only outputs of this projection can be summed over ranks");
  require(whole.dropout == 0, "part_of: the layer has dropout ", whole.dropout, "; several ranks would drop other attention weights than one rank, so it must be 0");
  require(!whole.qk_norm, "part_of: the layer has norms of q and k (qk_norm), whose weights all heads share: the heads of one rank cannot compute the gradient of these weights");
  nn::MultiHeadAttentionConfig part = whole;
  part.heads /= ranks, part.kv_heads /= ranks;
  part.output_bias = whole.output_bias && rank == 0;
  const std::int64_t n = part.heads * rank, last = n + part.heads, kv = part.kv_heads * rank, last_kv = kv + part.kv_heads;
  const std::int64_t h = whole.head_width, v = whole.value_head_width;
  return nn::make_attention(part, rows_of(layer.q, n * h, last * h), rows_of(layer.k, kv * h, last_kv * h), rows_of(layer.v, kv * v, last_kv * v),
                            {columns_of(layer.output.weight, n * v, last * v), part.output_bias ? Tensor::copy_of(layer.output.bias) : Tensor()},
                            layer.gate.weight ? rows_of(layer.gate, n * v, last * v) : nn::Linear(), columns_of(layer.bias_k, kv * h, last_kv * h),
                            columns_of(layer.bias_v, kv * v, last_kv * v), rows_of(layer.sink, n, last));
}

nn::FeedForward part_of(const nn::FeedForward& layer, int rank, int ranks) {
  require_part("part_of", rank, ranks);
  const std::int64_t units = layer.hidden.out_width(), first = units * rank / ranks, last = units * (rank + 1) / ranks;
  require(units >= ranks, "part_of: ", units, " hidden units do not suffice for ", ranks, " ranks; each rank needs one");
  return {rows_of(layer.hidden, first, last), {columns_of(layer.output.weight, first, last), rank == 0 && layer.output.bias ? Tensor::copy_of(layer.output.bias) : Tensor()}, layer.activation,
          layer.gated() ? rows_of(layer.gate, first, last) : nn::Linear()};
}

TensorParallelAttention::TensorParallelAttention(Communicator& communicator, const nn::MultiHeadAttention& whole, const CollectiveOptions& options)
    : part(part_of(whole, communicator.rank(), communicator.size())),
      communicator_(communicator),
      options_(options),
      heads_(whole.config.heads),
      first_head_(whole.config.heads / communicator.size() * communicator.rank()) {}

void TensorParallelAttention::forward(const nn::AttentionInput& input, TensorView out, const nn::AttentionOptions& options, nn::MultiHeadAttention::Saved* saved) const {
  require(!input.projected_key && !input.projected_value && options.cache == nullptr, "TensorParallelAttention: projected keys and values and a cache are not supported");
  require(!options.dropout_keep, "TensorParallelAttention: dropout_keep is not supported");
  require(!options.score_rule, "TensorParallelAttention: score_rule is not supported; a rule reads the number of its head, and each rank numbers its heads from 0");
  nn::AttentionOptions own = options;
  const std::int64_t count = part.config.heads;
  visit_shared_arguments(own, TensorArguments{[&](const Argument& argument, ConstTensorView& view) {
    if (!view) return;
    const bool of_pairs = argument.extent == ArgumentExtent::pairs || argument.extent == ArgumentExtent::query_blocks;
    const bool by_head = argument.extent == ArgumentExtent::heads || argument.extent == ArgumentExtent::rows;
    if (of_pairs) {
      view = heads_of(view, heads_, first_head_, count);
    } else if (by_head && (view.rank() == 1 || argument.extent == ArgumentExtent::heads)) {
      view = view.slice(0, first_head_, first_head_ + count);
    } else if (by_head && view.extent(-2) == heads_) {
      view = view.slice(-2, first_head_, first_head_ + count);
    }
  }});
  part.forward(input, out, own, saved);
  all_reduce(communicator_, out, options_);
}

void TensorParallelAttention::backward(const nn::MultiHeadAttention::Saved& saved, ConstTensorView d_out, const nn::MultiHeadAttention::Gradients& gradients, const nn::RunOptions& options) const {
  require(!gradients.sink && !gradients.relative_bias, "TensorParallelAttention: gradients of options.sink and options.relative_bias are not supported; the gradient of a learned sink is");
  require(!gradients.projected_key && !gradients.projected_value, "TensorParallelAttention: gradients of projected keys and values are not supported");
  nn::MultiHeadAttention::Gradients own = gradients;
  std::vector<nn::AttentionWeightsGradient> of_heads;  // gradients of the attention weights of this rank's heads
  for (nn::AttentionWeightsGradient gradient : gradients.attention_weights) {
    require(gradient.head >= 0 && gradient.head < heads_, "TensorParallelAttention: a gradient of attention weights is given for head ", gradient.head, "; there are ", heads_, " heads");
    gradient.head -= first_head_;
    if (gradient.head >= 0 && gradient.head < part.config.heads) of_heads.push_back(gradient);
  }
  own.attention_weights = of_heads;
  own.bias = heads_of(gradients.bias, heads_, first_head_, part.config.heads);
  if (gradients.bias) fill(gradients.bias, 0);
  part.backward(saved, d_out, own, options);
  for (const TensorView& view : {gradients.query, gradients.key, gradients.value, gradients.bias}) {
    if (view) all_reduce(communicator_, view, options_);
  }
}

TensorParallelFeedForward::TensorParallelFeedForward(Communicator& communicator, const nn::FeedForward& whole, const CollectiveOptions& options)
    : part(part_of(whole, communicator.rank(), communicator.size())), communicator_(communicator), options_(options) {}

void TensorParallelFeedForward::forward(ConstTensorView x, TensorView y, const nn::RunOptions& options, nn::FeedForward::Saved* saved) const {
  part.forward(x, y, options, saved);
  all_reduce(communicator_, y, options_);
}

void TensorParallelFeedForward::backward(const nn::FeedForward::Saved& saved, ConstTensorView d_y, const nn::Gradients<nn::FeedForward>& gradients, const nn::RunOptions& options) const {
  require(gradients.x_write == nn::Write::replace, "TensorParallelFeedForward: x_write must be replace, as the gradients of all ranks are added up");
  part.backward(saved, d_y, gradients, options);
  if (gradients.x) all_reduce(communicator_, gradients.x, options_);
}

PairAttention::PairAttention(Communicator& communicator, const nn::MultiHeadAttention& attention, const nn::Linear& bias, PairAxis axis, const CollectiveOptions& options)
    : communicator_(communicator), attention_(attention), bias_(bias), axis_(axis), options_(options) {
  const nn::MultiHeadAttentionConfig& c = attention.config;
  require(c.axis == -2 && c.query_width == c.key_width && c.output_width == c.query_width, "PairAttention: the layer must be self-attention along axis -2 with outputs as wide as inputs");
  require(c.global_query == nn::GlobalQuery::off && !c.add_bias_kv && !c.add_zero_attn && c.dropout == 0, "PairAttention: a layer with a global query, added keys or dropout is not supported");
  require(bias.in_width() == c.query_width && bias.out_width() == c.heads && !bias.bias, "PairAttention: the bias layer is ", bias.in_width(), " -> ", bias.out_width(),
          "; it must be ", c.query_width, " -> ", c.heads, " without a bias of its own");
}

Tensor PairAttention::as_rows(ConstTensorView z) const {
  if (axis_ == PairAxis::rows) return Tensor::copy_of(z);
  // This rank gets as many columns as it has rows.
  Tensor columns = Tensor::uninitialised(z.dtype(), {z.extent(1), z.extent(0), z.extent(2)});
  all_to_all(communicator_, z, 0, 1, columns, options_);
  return Tensor::copy_of(columns.view().transpose(0, 1));
}

void PairAttention::as_given(ConstTensorView rows, TensorView to) const {
  if (axis_ == PairAxis::rows) return copy(rows, to);
  all_to_all(communicator_, rows.transpose(0, 1), 1, 0, to, options_);
}

void PairAttention::forward(ConstTensorView z, TensorView out, const nn::RunOptions& options, Saved* saved) const {
  require(z.rank() == 3 && z.extent(2) == attention_.config.query_width, "PairAttention: z is ", z.shape(), "; it must be [R_r,R,", attention_.config.query_width, "]");
  require(out.shape() == z.shape() && out.dtype() == z.dtype(), "PairAttention: out is ", out.shape(), "; it must be as z, ", z.shape());
  Saved own;
  Saved& s = saved != nullptr ? *saved : own;
  s.z = as_rows(z);
  const std::int64_t heads = attention_.config.heads, length = z.extent(1);
  Tensor own_bias = Tensor::uninitialised(z.dtype(), {z.extent(0), length, heads});
  bias_.forward(s.z, own_bias, options);
  s.bias = Tensor::uninitialised(z.dtype(), {length, length, heads});
  all_gather(communicator_, own_bias, 0, s.bias, options_);
  Tensor rows = Tensor::uninitialised(z.dtype(), z.shape());
  attention_.forward({.query = s.z}, rows, {.bias = s.bias.view().move_axis(2, 0).unsqueeze(0), .executor = options.executor, .workspace = options.workspace}, saved != nullptr ? &s.attention : nullptr);
  as_given(rows, out);
}

void PairAttention::backward(const Saved& saved, ConstTensorView d_out, const Gradients& gradients, const nn::RunOptions& options) const {
  require(d_out.shape() == saved.z.shape(), "PairAttention: d_out is ", d_out.shape(), "; it must be ", saved.z.shape());
  const Tensor d_rows = as_rows(d_out);
  Tensor d_bias(saved.bias.dtype(), saved.bias.shape()), d_z = Tensor::uninitialised(saved.z.dtype(), saved.z.shape());
  attention_.backward(saved.attention, d_rows, {.query = d_z, .bias = d_bias.view().move_axis(2, 0).unsqueeze(0), .parameters = gradients.attention}, options);
  Tensor own_d_bias = Tensor::uninitialised(d_bias.dtype(), {saved.z.extent(0), saved.z.extent(1), d_bias.extent(2)});
  reduce_scatter(communicator_, d_bias, 0, own_d_bias, options_);
  bias_.backward(saved.z, own_d_bias, {.x = d_z, .parameters = gradients.bias, .x_write = nn::Write::add}, options);
  if (gradients.z) as_given(d_z, gradients.z);
}

}  // namespace polyhead::distributed
