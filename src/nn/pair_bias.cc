#include "polyhead/nn/pair_bias.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "cpu/gemm/gemm.h"
#include "nn/attention_shapes.h"
#include "nn/check.h"
#include "nn/chunks.h"
#include "nn/elementwise.h"
#include "nn/initialiser.h"
#include "nn/normalise.h"
#include "nn/packed_linear.h"
#include "nn/parameter_gradient.h"
#include "polyhead/sdpa.h"

namespace polyhead::nn {
namespace {

constexpr const char *kPairForward = "PairBias.forward", *kPairBackward = "PairBias.backward";
constexpr std::int64_t kPieceBytes = 256 << 10;  // bytes of z that a thread normalises at once; they stay in the second-level cache until they are projected
constexpr std::int64_t kBlockBytes = 2 << 20;    // bytes of the bias that are computed at a time
constexpr std::int64_t kLeastRows = 32;          // minimum number of queries of a block; smaller blocks would be slow, because each block packs the keys again

std::int64_t pair_element_bytes(DType dtype) { return static_cast<std::int64_t>(info(dtype).size); }

void require_pair(const char* operation, const PairBias& pair) {
  const Tensor &norm = pair.norm.weight, &projection = pair.projection.weight;
  require(norm && projection, operation, ": a weight is missing");
  require_weight(operation, projection, 2, "[heads,pair_width]");
  require(norm.shape() == Shape{projection.extent(1)} && norm.dtype() == projection.dtype(), operation, ": norm is ", norm.dtype(), " ", norm.shape(),
          " and projection ", projection.dtype(), " ", projection.shape(), "; the norm's width must be the projection's in_width, and both must have one dtype");
  if (pair.projection.bias) require_exactly(operation, {"projection.bias", pair.projection.bias}, {pair.heads()}, projection.dtype());
}

Normalisation norm_of_pair(const char* operation, const PairBias& pair) { return {operation, pair.norm.weight, pair.norm.bias, pair.norm.epsilon, true}; }

// Returns the shape of the bias, [*,N,T,S], for the shape of z, [*,T,S,C].
Shape bias_shape(const Shape& z, std::int64_t heads) {
  Shape shape = z.first(z.size() - 1);
  shape.insert(z.size() - 3, heads);
  return shape;
}

void require_z(const char* operation, const PairBias& pair, ConstTensorView z) {
  require_rows(operation, {"z", z}, "pair_width", pair.pair_width(), pair.projection.weight.dtype());
  require(z.rank() >= 3, operation, ": z is ", z.shape(), "; it must be [*,T,S,pair_width]");
}

// Cuts z [*,T,S,C] into pieces. A piece is some whole rows or, if rows are long, some keys of one row. Each piece is normalised and projected while it is in
// the cache. The sizes of pieces depend only on the shape, so sums over pieces have the same bits for any number of threads.
class Pieces {
 public:
  explicit Pieces(const ConstTensorView& z)
      : lead_(z.shape().first(z.rank() - 3)), rows_(z.extent(-3)), keys_(z.extent(-2)) {
    const std::int64_t key = std::max<std::int64_t>(z.extent(-1) * pair_element_bytes(z.dtype()), 1), row = std::max<std::int64_t>(keys_ * key, 1);
    row_step_ = std::clamp<std::int64_t>(kPieceBytes / row, 1, std::max<std::int64_t>(rows_, 1));
    key_step_ = row <= kPieceBytes ? std::max<std::int64_t>(keys_, 1) : std::max<std::int64_t>(kPieceBytes / key, 1);
    row_pieces_ = (rows_ + row_step_ - 1) / row_step_;
    key_pieces_ = (keys_ + key_step_ - 1) / key_step_;
  }

  std::int64_t count() const { return numel(lead_) * row_pieces_ * key_pieces_; }
  Shape largest(std::int64_t width) const { return {std::min(row_step_, rows_), std::min(key_step_, keys_), width}; }

  // Returns the part of a view [*,T,S,·] that belongs to a piece.
  template <class View>
  View of(View view, std::int64_t piece) const {
    const std::int64_t key = piece % key_pieces_ * key_step_, row = piece / key_pieces_ % row_pieces_ * row_step_;
    std::int64_t index = piece / key_pieces_ / row_pieces_;
    for (int axis = lead_.size() - 1; axis >= 0; --axis) {
      view = view.select(axis, index % lead_[axis]);
      index /= lead_[axis];
    }
    return view.slice(0, row, std::min(row + row_step_, rows_)).slice(1, key, std::min(key + key_step_, keys_));
  }

 private:
  Shape lead_;
  std::int64_t rows_, keys_, row_step_ = 1, key_step_ = 1, row_pieces_ = 0, key_pieces_ = 0;
};

// Returns a part of the scratch memory with as many rows and keys as the piece.
TensorView like_piece(Tensor& scratch, const ConstTensorView& piece) { return scratch.view().slice(0, 0, piece.extent(0)).slice(1, 0, piece.extent(1)); }

class PairBiasForward {
 public:
  PairBiasForward(const PairBias& pair, const RunOptions& options) : pair_(pair), options_(options), projection_(pair.projection, PackFor::several_products, options) {}

  void run(ConstTensorView z, TensorView bias) const {
    const Pieces pieces(z);
    const TensorView heads_last = bias.move_axis(-3, -1);
    parallel_for(pieces.count(), 1, options_.executor, [&](std::int64_t first, std::int64_t last) {
      LimitedThreads one(1);
      Tensor scratch = uninitialised(z.dtype(), pieces.largest(z.extent(-1)), options_.workspace);
      for (std::int64_t i = first; i < last; ++i) {
        const ConstTensorView piece = pieces.of(z, i);
        const TensorView normed = like_piece(scratch, piece);
        normalise(norm_of_pair(kPairForward, pair_), piece, normed, &one);
        projection_.forward(normed, pieces.of(heads_last, i), &one);
      }
    });
  }

 private:
  const PairBias& pair_;
  const RunOptions options_;
  const PackedLinear projection_;
};

// Computes the gradients of z and of the parameters, block by block. Each piece has its own sums of the parameters' gradients. finish() adds them in the order
// of the pieces.
class PairBiasBackward {
 public:
  // Pass the number of pieces of all blocks together as `pieces`.
  PairBiasBackward(const PairBias& pair, PairBias* gradients, Write write, std::int64_t pieces, const RunOptions& options)
      : pair_(pair), gradients_(gradients), write_(write), options_(options) {
    if (gradients == nullptr) return;
    const auto sums = [&](const Tensor& parameter) {
      if (!parameter) return Tensor();
      Shape shape = parameter.shape();
      shape.insert(0, pieces);
      return uninitialised(parameter.dtype(), shape, options.workspace);
    };
    norm_weight_ = sums(pair.norm.weight), norm_bias_ = sums(pair.norm.bias);
    weight_ = sums(pair.projection.weight), bias_ = sums(pair.projection.bias);
  }

  void run(ConstTensorView z, ConstTensorView d_bias, TensorView d_z, Write z_write) {
    const Pieces pieces(z);
    const ConstTensorView d_heads_last = d_bias.move_axis(-3, -1);
    const std::int64_t before = done_;
    done_ += pieces.count();
    parallel_for(pieces.count(), 1, options_.executor, [&](std::int64_t first, std::int64_t last) {
      LimitedThreads one(1);
      const Shape shape = pieces.largest(z.extent(-1));
      Tensor of_norm = gradients_ ? uninitialised(z.dtype(), shape, options_.workspace) : Tensor(), of_gradient = uninitialised(z.dtype(), shape, options_.workspace);
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t at = before + i;
        const ConstTensorView d = pieces.of(d_heads_last, i);
        ConstTensorView x = pieces.of(z, i);
        const Tensor reached = without_unreached_rows(x, d, &one, options_.workspace);
        if (reached) x = reached;
        const TensorView d_normed = like_piece(of_gradient, x);
        // d_normed[t,s,c] = sum_n d_bias[n,t,s] weight[n,c]
        cpu::gemm({.a = d, .b = pair_.projection.weight, .c = d_normed}, &one, options_.workspace);
        TensorView d_norm_weight, d_norm_bias;
        if (gradients_) {
          const TensorView normed = like_piece(of_norm, x);
          normalise(norm_of_pair(kPairBackward, pair_), x, normed, &one);
          // d_weight[n,c] = sum_ts d_bias[n,t,s] normed[t,s,c]
          cpu::gemm({.a = d.move_axis(-1, 0), .b = normed, .c = weight_.view().select(0, at), .k_axes = 2}, &one, options_.workspace);
          if (bias_) sum_to(d, bias_.view().select(0, at));
          d_norm_weight = norm_weight_.view().select(0, at);
          if (norm_bias_) d_norm_bias = norm_bias_.view().select(0, at);
        }
        const TensorView d_piece = d_z ? pieces.of(d_z, i) : TensorView();
        norm_backward(norm_of_pair(kPairBackward, pair_), x, d_normed, d_piece, z_write, d_norm_weight, d_norm_bias, Write::replace, {.executor = &one, .workspace = options_.workspace});
      }
    });
  }

  void finish() {
    if (gradients_ == nullptr) return;
    const auto write = [&](const Tensor& sums, Tensor& gradient) {
      if (!gradient) return;
      write_gradient(gradient, write_, options_, [&](TensorView target) { sum_to(sums, target); });
    };
    write(norm_weight_, gradients_->norm.weight), write(norm_bias_, gradients_->norm.bias);
    write(weight_, gradients_->projection.weight), write(bias_, gradients_->projection.bias);
  }

 private:
  const PairBias& pair_;
  PairBias* const gradients_;
  const Write write_;
  const RunOptions options_;
  std::int64_t done_ = 0;
  Tensor norm_weight_, norm_bias_, weight_, bias_;  // [pieces, ...]
};

// A block of the bias, which is computed at once: some indices of the leading dimensions, and some queries.
struct PairBlock {
  Dims first, last;  // the block has the indices [first, last) of each leading dimension
  std::int64_t first_row = 0, last_row = 0;

  // Returns this block's part of a view that has the leading dimensions of q. If an extent is 1, all blocks share it.
  template <class View>
  View of(View view) const {
    for (int axis = 0; axis < first.size(); ++axis) {
      if (view.extent(axis) != 1) view = view.slice(axis, first[axis], last[axis]);
    }
    return view;
  }
  template <class View>
  View rows_of(const View& view, int axis) const {
    return of(view).slice(axis, first_row, last_row);
  }
};

// Makes the list of all blocks. Blocks with the same leading indices follow each other.
class PairBlocks {
 public:
  PairBlocks(const Shape& lead, const ConstTensorView& z, std::int64_t heads) : z_(z), row_bytes_(heads * z.extent(-2) * pair_element_bytes(z.dtype())) {
    PairBlock whole{.first = lead, .last = lead, .first_row = 0, .last_row = z.extent(-3)};
    std::fill(whole.first.begin(), whole.first.end(), 0);
    split(whole);
  }
  const std::vector<PairBlock>& list() const { return blocks_; }

 private:
  std::int64_t matrices(const PairBlock& block) const {
    std::int64_t count = 1;
    for (int axis = 0; axis < block.first.size(); ++axis) count *= z_.extent(axis) == 1 ? 1 : block.last[axis] - block.first[axis];
    return count;
  }

  void split(const PairBlock& block) {
    const std::int64_t rows = block.last_row - block.first_row, bytes = matrices(block) * rows * row_bytes_;
    if (bytes <= kBlockBytes) return blocks_.push_back(block);
    const auto parts = [](std::int64_t first, std::int64_t last, std::int64_t step, const auto& take) {
      for (std::int64_t at = first; at < last; at += step) take(at, std::min(at + step, last));
    };
    for (int axis = 0; axis < block.first.size(); ++axis) {
      const std::int64_t extent = block.last[axis] - block.first[axis];
      if (z_.extent(axis) == 1 || extent == 1) continue;
      return parts(block.first[axis], block.last[axis], std::max<std::int64_t>(kBlockBytes / (bytes / extent), 1), [&](std::int64_t first, std::int64_t last) {
        PairBlock part = block;
        part.first[axis] = first, part.last[axis] = last;
        split(part);
      });
    }
    parts(block.first_row, block.last_row, std::max(kBlockBytes / row_bytes_, kLeastRows), [&](std::int64_t first, std::int64_t last) {
      PairBlock part = block;
      part.first_row = first, part.last_row = last;
      blocks_.push_back(part);
    });
  }

  const ConstTensorView& z_;
  const std::int64_t row_bytes_;
  std::vector<PairBlock> blocks_;
};

// Checks everything about the input that sdpa_forward() does not check. Returns the input with attend_keys expanded to [*,S].
PairBiasSdpa checked_pair_input(const char* operation, const PairBias& pair, PairBiasSdpa input) {
  require_pair(operation, pair);
  const DType dtype = pair.projection.weight.dtype();
  require_tensor(operation, {"q", input.q}, dtype);
  require_tensor(operation, {"k", input.k}, dtype);
  require_tensor(operation, {"v", input.v}, dtype);
  require_z(operation, pair, input.z);
  const int lead = input.q.rank() - 3;
  require(lead >= 0 && input.q.extent(-3) == pair.heads(), operation, ": q is ", input.q.shape(), "; it must be [*,N,T,H] with N = heads = ", pair.heads());
  require(input.k.rank() == lead + 3 && input.k.extent(-3) == pair.heads(), operation, ": k is ", input.k.shape(), "; with q ", input.q.shape(), " it must be [*,",
          pair.heads(), ",S,H]");
  const std::int64_t rows = input.q.extent(-2), keys = input.k.extent(-2);
  const auto fits = [&] {
    if (input.z.rank() != lead + 3 || input.z.extent(-3) != rows || input.z.extent(-2) != keys) return false;
    for (int axis = 0; axis < lead; ++axis) {
      if (input.z.extent(axis) != 1 && input.z.extent(axis) != input.q.extent(axis)) return false;
    }
    return true;
  };
  require(fits(), operation, ": z is ", input.z.shape(), "; with q ", input.q.shape(), " and k ", input.k.shape(), " it must be [*,", rows, ",", keys, ",", pair.pair_width(),
          "], each leading extent that of q or 1");
  if (input.attend_keys) {
    require(input.attend_keys.dtype() == DType::boolean, operation, ": attend_keys is ", input.attend_keys.dtype(), "; it must be ", DType::boolean);
    Shape of_keys = input.q.shape().first(lead);
    of_keys.push_back(keys);
    require(broadcasts(input.attend_keys.shape(), of_keys), operation, ": attend_keys is ", input.attend_keys.shape(), "; it must broadcast to [*,S] = ", of_keys);
    input.attend_keys = input.attend_keys.expand(of_keys);
  }
  return input;
}

SdpaOptions options_of_block(const PairBiasSdpa& input, ConstTensorView bias, const RunOptions& options) {
  SdpaOptions sdpa{.scale = input.scale, .bias = bias, .empty_rows = input.empty_rows, .executor = options.executor, .workspace = options.workspace};
  sdpa.mask.attend_keys = input.attend_keys;
  return sdpa;
}

void require_lead(const char* operation, const PairBiasSdpa& input) {
  // Leading dimensions of k and v that broadcast are an Error in sdpa_forward(). They are checked here, because the blocks are cut before sdpa_forward() is
  // called.
  const auto lead = [](const ConstTensorView& view) { return view.shape().first(view.rank() - 3); };
  require(input.v.rank() == input.q.rank() && lead(input.k) == lead(input.q) && lead(input.v) == lead(input.q) && input.v.extent(-3) == input.k.extent(-3) &&
              input.v.extent(-2) == input.k.extent(-2) && input.k.extent(-1) == input.q.extent(-1),
          operation, ": q is ", input.q.shape(), ", k ", input.k.shape(), " and v ", input.v.shape(), "; they must be [*,N,T,H], [*,N,S,H] and [*,N,S,V]");
}

Shape without_last_extent(const Shape& shape) { return shape.first(shape.size() - 1); }

}  // namespace

PairBias::PairBias(const PairBiasConfig& config) {
  require(config.pair_width >= 1 && config.heads >= 1, "PairBias: pair_width is ", config.pair_width, " and heads ", config.heads, "; both must be at least 1");
  norm = LayerNorm({.width = config.pair_width, .epsilon = config.epsilon, .bias = config.norm_bias, .dtype = config.dtype});
  projection = Linear({.in_width = config.pair_width, .out_width = config.heads, .bias = config.bias, .dtype = config.dtype, .seed = config.seed});
}

PairBias::PairBias(LayerNorm norm_, Linear projection_) : norm(std::move(norm_)), projection(std::move(projection_)) { require_pair("PairBias", *this); }

void PairBias::forward(ConstTensorView z, TensorView bias, const RunOptions& options) const {
  require_pair(kPairForward, *this);
  require_z(kPairForward, *this, z);
  require_exactly(kPairForward, {"bias", bias}, bias_shape(z.shape(), heads()), z.dtype());
  require_no_overlap(kPairForward, {"bias", bias}, {{"z", z}});
  require_parameters_separate(kPairForward, {{"bias", bias}}, *this);
  PairBiasForward(*this, options).run(z, bias);
}

void PairBias::backward(ConstTensorView z, ConstTensorView d_bias, const Gradients<PairBias>& gradients, const RunOptions& options) const {
  require_pair(kPairBackward, *this);
  require_z(kPairBackward, *this, z);
  require_exactly(kPairBackward, {"d_bias", d_bias}, bias_shape(z.shape(), heads()), z.dtype());
  if (gradients.x) {
    require_exactly(kPairBackward, {"d_z", gradients.x}, z.shape(), z.dtype());
    require_no_overlap(kPairBackward, {"d_z", gradients.x}, {{"z", z}, {"d_bias", d_bias}});
    require_parameters_separate(kPairBackward, {{"d_z", gradients.x}}, *this);
  }
  if (gradients.parameters) {
    require_parameters_may_change(kPairBackward, false, options.workspace);
    require_gradients(kPairBackward, *this, *gradients.parameters, {{"z", z}, {"d_bias", d_bias}}, {"d_z", gradients.x});
  }
  if (!gradients.x && !gradients.parameters) return;
  PairBiasBackward backward(*this, gradients.parameters, gradients.parameters_write, Pieces(z).count(), options);
  backward.run(z, d_bias, gradients.x, gradients.x_write);
  backward.finish();
}

void pair_bias_sdpa_forward(const PairBias& pair, const PairBiasSdpa& given, TensorView out, TensorView lse, const RunOptions& options) {
  constexpr const char* kOperation = "pair_bias_sdpa_forward";
  const PairBiasSdpa input = checked_pair_input(kOperation, pair, given);
  require_lead(kOperation, input);
  require_exactly(kOperation, {"out", out}, with_width(input.q.shape(), input.v.extent(-1)), input.q.dtype());
  require_exactly(kOperation, {"lse", lse}, without_last_extent(input.q.shape()), accumulation_dtype(input.q.dtype()));
  const Operand written[] = {{"out", out}, {"lse", lse}}, read[] = {{"q", input.q}, {"k", input.k}, {"v", input.v}, {"z", input.z}, {"attend_keys", given.attend_keys}};
  polyhead::require_no_overlap(kOperation, written, read);
  require_parameters_separate(kOperation, {written[0], written[1]}, pair);
  const PairBlocks blocks(input.q.shape().first(input.q.rank() - 3), input.z, pair.heads());
  const PairBiasForward bias_of(pair, options);
  Tensor bias;
  for (const PairBlock& block : blocks.list()) {
    const ConstTensorView z = block.rows_of(input.z, -3);
    reuse_or_allocate(bias, z.dtype(), bias_shape(z.shape(), pair.heads()), options.workspace);
    bias_of.run(z, bias);
    PairBiasSdpa some = input;
    if (input.attend_keys) some.attend_keys = block.of(input.attend_keys);
    sdpa_forward({.q = block.rows_of(input.q, -2), .k = block.of(input.k), .v = block.of(input.v), .out = block.rows_of(out, -2), .lse = block.rows_of(lse, -1)},
                 options_of_block(some, bias, options));
  }
}

void pair_bias_sdpa_backward(const PairBias& pair, const PairBiasSdpa& given, ConstTensorView out, ConstTensorView lse, ConstTensorView d_out,
                             const PairBiasSdpaGradients& gradients, const RunOptions& options) {
  constexpr const char* kOperation = "pair_bias_sdpa_backward";
  const PairBiasSdpa input = checked_pair_input(kOperation, pair, given);
  require_lead(kOperation, input);
  const Shape out_shape = with_width(input.q.shape(), input.v.extent(-1));
  require_exactly(kOperation, {"out", out}, out_shape, input.q.dtype());
  require_exactly(kOperation, {"d_out", d_out}, out_shape, input.q.dtype());
  require_exactly(kOperation, {"lse", lse}, without_last_extent(input.q.shape()), accumulation_dtype(input.q.dtype()));
  const Operand written[] = {{"d_q", gradients.q}, {"d_k", gradients.k}, {"d_v", gradients.v}, {"d_z", gradients.z}};
  const Operand read[] = {{"q", input.q}, {"k", input.k}, {"v", input.v}, {"z", input.z}, {"attend_keys", given.attend_keys}, {"out", out}, {"lse", lse}, {"d_out", d_out}};
  const ConstTensorView of[] = {input.q, input.k, input.v, input.z};
  for (std::size_t i = 0; i < std::size(of); ++i) {
    if (written[i].view) require_exactly(kOperation, written[i], of[i].shape(), of[i].dtype());
  }
  polyhead::require_no_overlap(kOperation, written, read);
  require_parameters_separate(kOperation, {written[0], written[1], written[2], written[3]}, pair);
  if (gradients.parameters) {
    require_parameters_may_change(kOperation, false, options.workspace);
    require_gradients(kOperation, pair, *gradients.parameters, read, written);
  }

  const PairBlocks blocks(input.q.shape().first(input.q.rank() - 3), input.z, pair.heads());
  const bool of_bias = gradients.z || gradients.parameters;
  std::int64_t pieces = 0;
  for (const PairBlock& block : blocks.list()) pieces += Pieces(block.rows_of(input.z, -3)).count();
  const PairBiasForward bias_of(pair, options);
  PairBiasBackward through_bias(pair, gradients.parameters, gradients.parameters_write, pieces, options);
  // Adds up the gradient of keys or values over the blocks. The sum is in the caller's gradient or, if that has 16 bits, in a float32 tensor.
  struct KeySum {
    ConstTensorView of;
    TensorView gradient;
    Tensor block, sum, wide;
  };
  KeySum key_sums[] = {{.of = input.k, .gradient = gradients.k, .block = {}, .sum = {}, .wide = {}}, {.of = input.v, .gradient = gradients.v, .block = {}, .sum = {}, .wide = {}}};
  Tensor bias, d_bias;
  const std::int64_t rows = input.q.extent(-2);
  const DType dtype = input.q.dtype(), wide = accumulation_dtype(dtype);
  for (const PairBlock& block : blocks.list()) {
    const ConstTensorView z = block.rows_of(input.z, -3);
    const Shape shape = bias_shape(z.shape(), pair.heads());
    reuse_or_allocate(bias, dtype, shape, options.workspace);
    if (of_bias) reuse_or_allocate(d_bias, dtype, shape, options.workspace);
    bias_of.run(z, bias);
    const bool first = block.first_row == 0, last = block.last_row == rows;
    TensorView targets[2];
    for (int i = 0; i < 2; ++i) {
      KeySum& one = key_sums[i];
      if (!one.gradient) continue;
      targets[i] = block.of(one.gradient);
      if (first && (last || wide == dtype)) continue;
      reuse_or_allocate(one.block, dtype, targets[i].shape(), options.workspace);
      targets[i] = one.block;
    }
    PairBiasSdpa some = input;
    if (input.attend_keys) some.attend_keys = block.of(input.attend_keys);
    sdpa_backward({.q = block.rows_of(input.q, -2),
                   .k = block.of(input.k),
                   .v = block.of(input.v),
                   .out = block.rows_of(out, -2),
                   .lse = block.rows_of(lse, -1),
                   .d_out = block.rows_of(d_out, -2),
                   .d_q = gradients.q ? block.rows_of(gradients.q, -2) : TensorView(),
                   .d_k = targets[0],
                   .d_v = targets[1],
                   .d_bias = of_bias ? d_bias.view() : TensorView()},
                  options_of_block(some, bias, options));
    for (KeySum& one : key_sums) {
      if (!one.gradient || (first && (last || wide == dtype))) continue;
      const TensorView gradient = block.of(one.gradient);
      if (wide == dtype) {
        add(one.block, gradient, options.executor);
        continue;
      }
      reuse_or_allocate(one.sum, wide, gradient.shape(), options.workspace);
      if (first) {
        copy(one.block, one.sum);
      } else {
        reuse_or_allocate(one.wide, wide, gradient.shape(), options.workspace);
        copy(one.block, one.wide);
        add(one.wide, one.sum, options.executor);
      }
      if (last) copy(one.sum, gradient);
    }
    if (of_bias) through_bias.run(z, d_bias, gradients.z ? block.rows_of(gradients.z, -3) : TensorView(), Write::replace);
  }
  through_bias.finish();
}

}  // namespace polyhead::nn
