#include "golden/runner/tolerance.h"


#include "support/attention_case.h"

namespace polyhead::golden {
namespace {

constexpr double kEps32 = std::numeric_limits<float>::epsilon();

// The recorded error of PyTorch is one random sample. For a tensor of few elements it can by chance be far below the error that rounding the inputs causes, so
// bounds are computed from the larger of the two errors.
//
// If no error of PyTorch is recorded, the runner estimates it. Each rounding in a float32 computation changes the result about as much as rounding the inputs
// does, so a good computation has a small multiple of the error from rounding the inputs. For the vectors of seed 0 the error of plain PyTorch is at most
// kTorchOverRounding times the error from rounding the inputs. The bound is twice PyTorch's error.
constexpr double kTorchOverRounding = 4;
constexpr int kSamples = 8;

std::vector<double> constant(const Tensor& like, double value) {
  return std::vector<double>(static_cast<std::size_t>(like.numel()), value);
}

// Returns the largest change of each result if every input is changed by up to one unit in the last place of float32.
std::map<std::string, double> rounding_effect(const Case& which) {
  // The exact results are computed here and not read from the file, because a file with wrong results must not widen its own bound.
  const Tensors exact = compute(which, inputs_as(which, DType::f64), {});
  std::map<std::string, double> effect;
  for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
    test::Random random(sample);
    Tensors inputs = inputs_as(which, DType::f64);
    for (auto& [name, tensor] : inputs) {
      if (tensor.dtype() != DType::f64) continue;
      for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<double>()[i] *= 1 + kEps32 * random.real(-1, 1);
    }
    const Tensors moved = compute(which, std::move(inputs), {});
    for (const auto& [name, result] : exact) {
      effect[name] = std::max(effect[name], test::max_abs_difference(moved.at(name), result));
    }
  }
  return effect;
}

// Two numbers for each row of attention: the largest scale * sum |q k| over the row's keys, and sum_s p |v|.
struct CoreRows {
  std::vector<double> largest_score;  // [rows]
  std::vector<double> mean_value;     // [rows,V]
  std::int64_t keys = 0, v_width = 0;
};

// Computes CoreRows in float64. v may be absent: for a layer only the attention weights and lse use this bound.
CoreRows core_rows(const Case& which, const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor& weights = which.expected.at("weights");
  const std::int64_t heads = q.extent(-3), group = heads / k.extent(-3), queries = q.extent(-2), keys = k.extent(-2);
  const std::int64_t qk_width = q.extent(-1), v_width = v ? v.extent(-1) : 0;
  const auto scale_option = which.options.find("scale");
  const double scale = scale_option != which.options.end() && !scale_option->is_null() ? scale_option->get<double>()
                                                                                       : 1 / std::sqrt(static_cast<double>(qk_width));
  const auto dropout = which.inputs.find("dropout_keep");
  const double keep_scale = dropout == which.inputs.end() ? 1 : 1 / (1 - which.options.at("dropout").get<double>());
  CoreRows rows{.keys = keys, .v_width = v_width};
  const std::int64_t count = weights.numel() / std::max<std::int64_t>(1, keys);
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t head = row / queries, kv = head / heads * (heads / group) + head % heads / group;
    const double* p = weights.data<double>() + row * keys;
    double largest = 0;
    std::vector<double> mean(static_cast<std::size_t>(v_width));
    for (std::int64_t s = 0; s < keys; ++s) {
      double sum = 0;
      for (std::int64_t h = 0; h < qk_width; ++h)
        sum += std::abs(q.data<double>()[row * qk_width + h] * k.data<double>()[(kv * keys + s) * qk_width + h]);
      largest = std::max(largest, std::abs(scale) * sum);
      const bool dropped = dropout != which.inputs.end() && !dropout->second.data<bool>()[row * keys + s];
      for (std::int64_t j = 0; j < v_width && !dropped; ++j) {
        mean[static_cast<std::size_t>(j)] += keep_scale * p[s] * std::abs(v.data<double>()[(kv * keys + s) * v_width + j]);
      }
    }
    rows.largest_score.push_back(largest);
    rows.mean_value.insert(rows.mean_value.end(), mean.begin(), mean.end());
  }
  return rows;
}

// Sets the bounds that follow from the formula of attention. The error of `out` is at most 8 eps (4 + sqrt S + L) sum_s p |v|, where L is the largest scale *
// sum |q k| of the row. An attention weight is the output for a v that is 1 at one key and 0 elsewhere, so its bound has p in place of the sum. The error of
// lse is at most the largest error of a score, plus its rounding. For a layer, the bounds of attention weights and lse are computed from the projected queries
// and keys.
void core_bounds(const Case& which, Bounds& bounds) {
  const bool layer = which.operation == "layer";
  const Tensors projected = layer ? compute(which, inputs_as(which, DType::f64), {}) : Tensors();
  const auto values = [&](const char* input) {
    const auto scale = which.inputs.find(cat(input, "_scale"));
    return test::values_of(which.inputs.at(input), scale == which.inputs.end() ? ConstTensorView() : scale->second);
  };
  const CoreRows rows = layer ? core_rows(which, projected.at("q_heads"), projected.at("k_heads"), {}) : core_rows(which, values("q"), values("k"), values("v"));
  const Tensor& weights = which.expected.at("weights");
  auto &weights_bound = bounds["weights"], &lse_bound = bounds["lse"];
  for (std::size_t row = 0; row < rows.largest_score.size(); ++row) {
    const double relative = 8 * kEps32 * (4 + std::sqrt(static_cast<double>(rows.keys)) + rows.largest_score[row]);
    for (std::int64_t j = 0; j < rows.v_width; ++j) {
      bounds["out"].push_back(relative * rows.mean_value[row * static_cast<std::size_t>(rows.v_width) + static_cast<std::size_t>(j)]);
    }
    for (std::int64_t s = 0; s < rows.keys; ++s)
      weights_bound.push_back(relative * weights.data<double>()[static_cast<std::int64_t>(row) * rows.keys + s]);
    if (which.expected.count("lse") == 0) continue;
    const double value = which.expected.at("lse").data<double>()[row];
    lse_bound.push_back(relative + (std::isfinite(value) ? kEps32 * std::abs(value) : 0));
  }
}

}  // namespace

double magnitude(const Case& which, const std::string& name) {
  const double own = test::largest_magnitude(which.expected.at(name));
  if (!is_gradient(name)) return own;
  double largest = 0;
  for (const auto& [other, tensor] : which.expected) {
    if (is_gradient(other)) largest = std::max(largest, test::largest_magnitude(tensor));
  }
  return own < 1e-13 * largest ? largest : own;
}

Bounds float64_bounds(const Case& which) {
  Bounds bounds;
  for (const auto& [name, expected] : which.expected) bounds[name] = constant(expected, 1e-12 * magnitude(which, name));
  return bounds;
}

Bounds float32_bounds(const Case& which, const Float32Errors& torch) {
  Bounds bounds;
  core_bounds(which, bounds);
  const auto known = torch.find(which.name);
  const std::map<std::string, double> effect = rounding_effect(which);
  for (const auto& [name, expected] : which.expected) {
    if (bounds.count(name) > 0) continue;
    const double rounding = effect.at(name);
    if (known == torch.end()) {
      // If a gradient is zero in exact arithmetic, its terms cancel and only the rounding errors of the terms remain.
      const double cancelled = test::largest_magnitude(expected) < magnitude(which, name) ? 8 : 1;
      bounds[name] = constant(expected, 2 * kTorchOverRounding * rounding + cancelled * kEps32 * magnitude(which, name));
      continue;
    }
    const auto error = known->second.find(name);
    require(error != known->second.end(), "PyTorch's float32 error of '", name, "' is not listed for this case");
    bounds[name] = constant(expected, 2 * std::max(error->second, rounding));
  }
  return bounds;
}

}  // namespace polyhead::golden
