#include "golden/runner/operation.h"

#include <algorithm>

#include "core/option_words.h"

namespace polyhead::golden {

Tensors compute(const Case& which, Tensors inputs, const Setting& setting) {
  Reader in(which.options, std::move(inputs));
  Tensors results;
  if (which.operation == "sdpa") {
    results = compute_sdpa(in, setting);
  } else if (which.operation == "second_derivatives") {
    results = compute_second_derivatives(in, setting);
  } else if (which.operation == "layer") {
    results = compute_layer(in, setting);
  } else {
    fail(ErrorCode::unsupported, "the runner does not know the operation '", which.operation, "'");
  }
  in.finish();
  return results;
}

Tensors inputs_as(const Case& which, DType dtype) {
  Tensors inputs;
  for (const auto& [name, tensor] : which.inputs)
    inputs.emplace(name, Tensor::copy_of(tensor, tensor.dtype() == DType::f64 ? dtype : tensor.dtype()));
  return inputs;
}

DType dtype_of(const Tensors& inputs) {
  const auto q = inputs.find("q");
  return (q == inputs.end() ? inputs.at("query") : q->second).dtype();
}

EmptyRows read_empty_rows(Reader& in) {
  const std::string mode = in.option<std::string>("empty_rows").value_or("zero");
  const auto known = std::ranges::find(kEmptyRowsWords, mode);
  if (known == kEmptyRowsWords.end()) fail(ErrorCode::unsupported, "the runner does not know empty_rows '", mode, "'");
  return static_cast<EmptyRows>(known - kEmptyRowsWords.begin());
}

Tensor integer_tensor(const nlohmann::json& list) {
  Shape shape{static_cast<std::int64_t>(list.size())};
  std::vector<std::int64_t> values;
  for (const nlohmann::json& entry : list) {
    if (entry.is_array()) {
      const auto row = entry.get<std::vector<std::int64_t>>();
      values.insert(values.end(), row.begin(), row.end());
    } else {
      values.push_back(entry.get<std::int64_t>());
    }
  }
  if (!list.empty() && list[0].is_array()) shape.push_back(static_cast<std::int64_t>(list[0].size()));
  return Tensor::of<std::int64_t>(shape, std::span<const std::int64_t>(values));
}

}  // namespace polyhead::golden
