#include "polyhead/map_gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/overlap.h"
#include "core/parallel.h"
#include "core/quiet_arithmetic.h"
#include "core/shared_sums.h"
#include "cpu/gemm/gemm.h"
#include "polyhead/tensor.h"
#include "sdpa/map_walk.h"
#include "sdpa/relative_bias.h"
#include "sdpa/sink_gradient.h"

namespace polyhead {
namespace {

constexpr const char* kOperation = "attention_map_backward";
// Number of map elements that are computed at a time. It gives the number of rows, which is at least 16 and at most 512.
constexpr std::int64_t kPairs = 1 << 18;

// Returns the matrix [rows,columns] of head n of sequence b.
template <class Void>
BasicTensorView<Void> head_of(const BasicTensorView<Void>& view, std::int64_t b, std::int64_t n) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  const std::int64_t offset = head_offset(view, b, n) * static_cast<std::int64_t>(info(view.dtype()).size);
  return {static_cast<Byte*>(view.data()) + offset, view.dtype(), view.shape().last(2), view.strides().last(2)};
}

// Returns a contiguous copy in `dtype` in which NaN and infinity are 0. This changes no result of an attended pair: its attention weight and gradient are NaN
// anyway. For a masked pair, whose gradient is 0, the product 0 x NaN would be NaN.
Tensor finite_copy(ConstTensorView matrix, ConstTensorView scale, DType dtype) {
  Tensor copy = Tensor::copy_of(matrix, dtype);
  const std::int64_t width = matrix.extent(1);
  const auto of_element = [&](auto* values) {
    using T = std::remove_pointer_t<decltype(values)>;
    for (std::int64_t i = 0; i < copy.numel(); ++i) {
      if (scale) values[i] *= static_cast<T>(static_cast<const float*>(scale.data())[i / width * scale.stride(0)]);
      if (!std::isfinite(values[i])) values[i] = 0;
    }
  };
  dtype == DType::f64 ? of_element(copy.data<double>()) : of_element(copy.data<float>());
  return copy;
}

class Backward {
 public:
  Backward(const MapsInput& input, const MapBackward& given, const SdpaOptions& options, MapValue value)
      : input_(input), given_(given), options_(options), p_(kOperation, input, options), problem_(p_.problem), dtype_(accumulation_dtype(problem_.dtype)) {
    require(value == MapValue::probability || value == MapValue::dropped, kOperation, ": the map holds scores; only maps of probabilities, before or after dropout, have this gradient");
    require(options.empty_rows != EmptyRows::uniform, kOperation, ": empty_rows is uniform; attention weights have no gradient with it");
    require(!problem_.score_rule, kOperation, ": score_rule is given; attention weights have no gradient with it");
    check();
    if (value == MapValue::dropped && problem_.dropout.active() && given.d_map) dropped_.emplace(kOperation, input, options, MapValue::dropped);
    if (problem_.softcap > 0) capped_.emplace(kOperation, input, options, MapValue::capped_score);
  }

  void run() {
    if (given_.d_bias) bias_.emplace(given_.d_bias), pairs_ = bias_->view().expand(shape({problem_.heads, problem_.queries, problem_.keys}));
    if (given_.d_relative_bias) relative_ = Tensor(DType::f64, problem_.relative_bias.shape());
    if (given_.d_sink) sink_ = Tensor(DType::f64, problem_.sink.shape());
    if (problem_.queries > 0) {
      compute();
    } else if (given_.d_k && !given_.add) {
      fill(given_.d_k, 0);
    }
    if (bias_) bias_->store();
    if (given_.d_relative_bias) add_up_relative_gradient(options_.relative_bias, p_.memory.distances, relative_, given_.d_relative_bias);
    if (given_.d_sink) add_up_sink_gradient(sink_, given_.d_sink);
  }

 private:
  Shape shape(std::initializer_list<std::int64_t> rest) const {
    return appended(problem_.lead, rest);
  }

  void check() {
    const std::int64_t heads = given_.heads.empty() ? problem_.heads : std::ssize(given_.heads);
    const auto expect = [&](const char* name, const ConstTensorView& view, const Shape& wanted, const char* letters) {
      if (!view) return;
      require(is_floating(view.dtype()), kOperation, ": ", name, " is ", view.dtype(), "; it must be floating");
      require(view.shape() == wanted, kOperation, ": ", name, " is ", view.shape(), "; it must be ", letters, " = ", wanted);
    };
    expect("d_map", given_.d_map, shape({heads, problem_.queries, problem_.keys}), given_.heads.empty() ? "[*,N,T,S]" : "[*,heads,T,S]");
    expect("d_lse", given_.d_lse, shape({heads, problem_.queries}), given_.heads.empty() ? "[*,N,T]" : "[*,heads,T]");
    expect("d_q", given_.d_q, input_.q.shape(), "the shape of q"), expect("d_k", given_.d_k, input_.k.shape(), "the shape of k");
    std::vector<std::int64_t> sorted(given_.heads.begin(), given_.heads.end());
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      require(0 <= sorted[i] && sorted[i] < problem_.heads, kOperation, ": there is no head ", sorted[i], "; heads lie in [0,", problem_.heads, ")");
      require(i == 0 || sorted[i] != sorted[i - 1], kOperation, ": head ", sorted[i], " is given twice");
    }
    const auto expect_beside = [&](const char* name, const ConstTensorView& view, const char* of_name, const ConstTensorView& of) {
      if (!view) return;
      require(static_cast<bool>(of), kOperation, ": ", name, " is given without ", of_name);
      require(view.shape() == of.shape() && view.dtype() == of.dtype(), kOperation, ": ", name, " is ", view.dtype(), ' ', view.shape(), "; it must be as ", of_name, ", ", of.dtype(), ' ', of.shape());
    };
    expect_beside("d_bias", given_.d_bias, "bias", options_.bias), expect_beside("d_sink", given_.d_sink, "sink", options_.sink);
    expect_beside("d_relative_bias", given_.d_relative_bias, "relative_bias", options_.relative_bias.parameter());
    if (given_.d_map) p_.add_input({"d_map", given_.d_map});
    if (given_.d_lse) p_.add_input({"d_lse", given_.d_lse});
    p_.check_memory(std::array{Operand{"d_q", given_.d_q}, Operand{"d_k", given_.d_k}, Operand{"d_bias", given_.d_bias, true},
                               Operand{"d_relative_bias", given_.d_relative_bias, true}, Operand{"d_sink", given_.d_sink, true}});
  }

  // One thread computes all sequences and heads that add to the same elements of a gradient, so that the order of the sum is fixed.
  void compute() {
    const bool shared_heads = bias_ && problem_.heads > 1 && given_.d_bias.rank() >= 3 && given_.d_bias.extent(-3) != problem_.heads;
    const bool one_thread = bias_ && (shared_heads || given_.d_bias.rank() < 3 || overlaps_itself(given_.d_bias));
    const bool by_sequence = !bias_ && !relative_;
    const std::int64_t groups = problem_.kv_heads, items = one_thread ? 1 : by_sequence ? problem_.batch * groups : groups;
    parallel_for(items, 1, problem_.executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t item = first; item < last; ++item) {
        if (by_sequence) {
          group(item / groups, item % groups);
          continue;
        }
        for (std::int64_t b = 0; b < problem_.batch; ++b) {
          for (std::int64_t kv = one_thread ? 0 : item; kv < (one_thread ? groups : item + 1); ++kv) group(b, kv);
        }
      }
    });
  }

  // Returns the index of head n in d_map and d_lse, or -1 if `heads` does not list head n.
  std::int64_t place_of(std::int64_t n) const {
    if (given_.heads.empty()) return n;
    const auto found = std::find(given_.heads.begin(), given_.heads.end(), n);
    return found == given_.heads.end() ? -1 : found - given_.heads.begin();
  }

  // Computes the gradients of the query heads that share one key head.
  void group(std::int64_t b, std::int64_t kv) {
    const std::int64_t size = problem_.heads / problem_.kv_heads, width = problem_.qk_width, keys = problem_.keys;
    bool any = false;
    for (std::int64_t n = kv * size; n < (kv + 1) * size; ++n) any = any || place_of(n) >= 0;
    if (!any && given_.add) return;
    const bool products = any && (given_.d_q || given_.d_k);
    const Tensor k = products ? finite_copy(head_of(input_.k, b, kv), problem_.k_scale ? head_of(problem_.k_scale, b, kv).select(1, 0) : ConstTensorView(), dtype_) : Tensor();
    Tensor d_k = given_.d_k ? Tensor(dtype_, {keys, width}) : Tensor();
    for (std::int64_t n = kv * size; n < (kv + 1) * size; ++n) {
      const std::int64_t place = place_of(n);
      if (place < 0) {
        if (given_.d_q && !given_.add) fill(head_of(given_.d_q, b, n), 0);
        continue;
      }
      const Tensor q = given_.d_k ? finite_copy(head_of(input_.q, b, n), {}, dtype_) : Tensor();
      const std::int64_t count = std::clamp<std::int64_t>(kPairs / std::max<std::int64_t>(keys, 1), 16, 512);
      for (std::int64_t first = 0; first < problem_.queries; first += count) {
        const Tensor d_x = rows(b, n, place, first, std::min(first + count, problem_.queries));
        if (given_.d_q) {
          Tensor d_q(dtype_, {d_x.extent(0), width});
          cpu::gemm({.a = d_x, .b = k, .c = d_q}, problem_.executor, problem_.workspace);
          write(d_q, head_of(given_.d_q, b, n).slice(0, first, first + d_x.extent(0)));
        }
        if (given_.d_k) cpu::gemm({.a = d_x.view().transpose(0, 1), .b = q.view().slice(0, first, first + d_x.extent(0)), .c = d_k, .add = true}, problem_.executor, problem_.workspace);
      }
    }
    if (given_.d_k) write(d_k, head_of(given_.d_k, b, kv));
  }

  void write(const Tensor& from, const TensorView& to) const {
    if (given_.add) {
      Tensor sum = Tensor::copy_of(to, dtype_);
      const auto add = [&](auto* sums, const auto* values) {
        for (std::int64_t i = 0; i < sum.numel(); ++i) sums[i] += values[i];
      };
      dtype_ == DType::f64 ? add(sum.data<double>(), from.data<double>()) : add(sum.data<float>(), from.data<float>());
      copy(sum, to);
    } else {
      copy(from, to);
    }
  }

  // Returns the rows of the map of head n for the queries, [rows,S]. `sinks`, if given, receives the rows' attention weights of the sink.
  std::vector<double> map_of(const MapWalk& walk, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, double* sinks = nullptr) const {
    std::vector<double> values(queries.size() * static_cast<std::size_t>(problem_.keys));
    walk.backend.map_rows(walk.problem, b, n, queries, [&](const MapRow& row) {
      std::copy(row.values.begin(), row.values.end(), values.begin() + row.index * problem_.keys);
      if (sinks != nullptr) sinks[row.index] = row.sink;
    });
    return values;
  }

  // Computes the rows [first, last) of one head. Adds to the gradients of bias, relative bias and sink, and returns the gradients of the products <q,k>,
  // [rows,S].
  Tensor rows(std::int64_t b, std::int64_t n, std::int64_t place, std::int64_t first, std::int64_t last) {
    std::vector<std::int64_t> queries;
    for (std::int64_t t = first; t < last; ++t) queries.push_back(t);
    std::vector<double> p_sink(queries.size());
    const std::vector<double> p = map_of(p_, b, n, queries, p_sink.data()), dropped = dropped_ ? map_of(*dropped_, b, n, queries) : std::vector<double>(),
                              capped = capped_ ? map_of(*capped_, b, n, queries) : std::vector<double>();
    const std::int64_t keys = problem_.keys;
    const Tensor d_map = given_.d_map ? Tensor::copy_of(head_of(given_.d_map, b, place).slice(0, first, last), DType::f64) : Tensor();
    const Tensor d_lse = given_.d_lse ? Tensor::copy_of(head_of(given_.d_lse.unsqueeze(-1), b, place).slice(0, first, last), DType::f64) : Tensor();
    std::vector<double> d_score(static_cast<std::size_t>(keys));
    Tensor d_x(dtype_, {last - first, keys});
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t row = (t - first) * keys;
      double delta = 0;
      for (std::int64_t s = 0; s < keys; ++s) {
        const auto at = static_cast<std::size_t>(row + s);
        const double weight = dropped_ ? dropped[at] : p[at];
        // A dropped pair has no gradient, because its element of the map is the constant 0.
        d_score[static_cast<std::size_t>(s)] = weight == 0 || !d_map ? 0 : weight * d_map.data<double>()[row + s];
        delta += d_score[static_cast<std::size_t>(s)];
      }
      const double common = (d_lse ? d_lse.data<double>()[t - first] : 0) - delta;
      for (std::int64_t s = 0; s < keys; ++s) {
        const auto at = static_cast<std::size_t>(row + s);
        double& d = d_score[static_cast<std::size_t>(s)];
        d = p[at] == 0 ? 0 : d + p[at] * common;
        const double tanh = capped_ ? capped[at] / problem_.softcap : 0;
        const double x = d == 0 ? 0 : d * (1 - tanh * tanh) * problem_.scale;
        dtype_ == DType::f64 ? void(d_x.data<double>()[row + s] = x) : void(d_x.data<float>()[row + s] = static_cast<float>(x));
      }
      add_biases(b, n, t, d_score);
      if (sink_) {
        const double sink = p_sink[static_cast<std::size_t>(t - first)];
        head_slice<double>(sink_.view(), b, n)(t, 0) = sink == 0 ? 0 : sink * common;
      }
    }
    return d_x;
  }

  void add_biases(std::int64_t b, std::int64_t n, std::int64_t t, const std::vector<double>& d_score) {
    if (bias_) {
      const auto slice = head_slice<double>(pairs_, b, n);
      for (std::int64_t s = 0; s < problem_.keys; ++s) slice(t, s) += d_score[static_cast<std::size_t>(s)];
    }
    if (relative_) {
      const Document& document = document_of(problem_, t);
      double* const of_head = relative_.data<double>() + n * relative_.extent(1);
      for (std::int64_t s = document.keys.first; s < document.keys.last; ++s) of_head[relative_index(problem_, b, document, t, s)] += d_score[static_cast<std::size_t>(s)];
    }
  }

  const MapsInput& input_;
  const MapBackward& given_;
  const SdpaOptions& options_;
  MapWalk p_;
  const MapsProblem& problem_;
  DType dtype_;  // the dtype in which matrix products are summed
  std::optional<MapWalk> dropped_, capped_;
  std::optional<SharedSums> bias_;
  TensorView pairs_;         // view [*,N,T,S] of the sums in bias_
  // float64: the gradient of the relative bias at each distance, and the gradient of each row's sink logit
  Tensor relative_, sink_;
};

}  // namespace

void attention_map_backward(const MapsInput& input, const MapBackward& gradients, const SdpaOptions& options, MapValue value) {
  const QuietArithmetic quiet;
  Backward(input, gradients, options, value).run();
}

}  // namespace polyhead
