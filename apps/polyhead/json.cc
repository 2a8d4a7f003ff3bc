#include "json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "polyhead/tensor.h"
#include "terminal.h"

namespace polyhead::app {
namespace {

// The double whose shortest decimal text is that of x, so that JSON has 0.1 and not 0.10000000149011612.
double as_written(float x) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), x).ptr;
  double value = 0;
  std::from_chars(digits.data(), end, value);
  return value;
}

Json nested(const double* values, const Shape& shape, int axis, bool single) {
  if (axis == shape.size()) {
    if (std::isfinite(*values)) return single ? as_written(static_cast<float>(*values)) : *values;
    return std::isnan(*values) ? "nan" : *values > 0 ? "inf" : "-inf";
  }
  Json list = Json::array();
  const std::int64_t step = numel(shape.last(shape.size() - axis - 1));
  for (std::int64_t i = 0; i < shape[axis]; ++i) list.push_back(nested(values + i * step, shape, axis + 1, single));
  return list;
}

}  // namespace

Json to_json(const Dims& dims) { return std::vector<std::int64_t>(dims.begin(), dims.end()); }

Json number_json(ConstTensorView values) {
  const Tensor copy = Tensor::copy_of(values, DType::f64);
  return nested(copy.data<double>(), copy.shape(), 0, is_floating(values.dtype()) && values.dtype() != DType::f64);
}

std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void print_json(const Json& json) { print(to_text(json) + "\n"); }

}  // namespace polyhead::app
