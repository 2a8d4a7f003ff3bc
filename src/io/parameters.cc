#include "polyhead/io/parameters.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/text.h"
#include "io/int8_rows.h"
#include "polyhead/quantize.h"

namespace polyhead::io {
namespace {

constexpr std::string_view kScale = ".scale";
constexpr std::int64_t kNarrowestRow = 16;  // a scale covers at least this many values, if the shape allows that

// Returns the leading dimensions of a tensor, whose indices count its rows; each row has one scale. Returns {} if the tensor has only one dimension.
Shape row_numbers(const Shape& shape) {
  if (shape.size() < 2) return {};
  int count = shape.size() - 1;
  for (std::int64_t width = shape[count]; count > 1 && width < kNarrowestRow; --count) width *= shape[count - 1];
  return shape.first(count);
}

bool all_finite(const Tensor& scales) { return std::ranges::all_of(std::span(scales.data<float>(), static_cast<std::size_t>(scales.numel())), [](float x) { return std::isfinite(x); }); }

// Writes out = int8 row * scale of the row, computed in float32. `memory` is scratch of at least rows.numel() float32.
void dequantize(const Tensor& rows, const Tensor& scales, Tensor& memory, TensorView out) {
  const TensorView values(memory.data<float>(), rows.shape());
  for (std::int64_t i = 0, width = rows.numel() / std::max<std::int64_t>(1, scales.numel()); i < rows.numel(); ++i)
    values.data<float>()[i] = scales.data<float>()[i / width] * static_cast<float>(rows.data<std::int8_t>()[i]);
  if (values.data<float>() != out.data()) copy(values, out);
}

// Throws an Error that begins with `place` unless the scales are finite float32 numbers, one for each row.
void require_scales_fit(const std::string& place, const std::string& name, const Tensor& rows, const Tensor& scales) {
  const auto [of_scales, of_rows] = std::ranges::mismatch(scales.shape(), rows.shape());
  if (scales.dtype() != DType::f32 || of_scales != scales.shape().end() || of_rows == rows.shape().end())
    fail(ErrorCode::format, place, name, kScale, " is ", scales.dtype(), " ", scales.shape(), "; it must be float32 with the first dimensions of ", rows.shape());
  if (!all_finite(scales)) fail(ErrorCode::format, place, name, kScale, " is not finite");
}

}  // namespace

inline namespace internal {

std::vector<NamedTensor> int8_rows_of(std::span<const NamedTensor> tensors, const std::string& owner) {
  const auto refuse = [&](const auto&... parts) { fail(ErrorCode::format, owner, ": ", parts...); };
  std::vector<NamedTensor> stored;
  for (const auto& [name, tensor] : tensors) {
    if (std::ranges::find(tensors, cat(name, kScale), &NamedTensor::name) != tensors.end()) refuse("there is a tensor ", name, kScale, " already");
    const Shape numbers = row_numbers(tensor.shape());
    if (!is_floating(tensor.dtype()) || numbers.empty() || tensor.numel() == 0) {
      stored.push_back({name, Tensor::copy_of(tensor)});
      continue;
    }
    Tensor rows(DType::i8, tensor.shape()), scales(DType::f32, numbers);
    const Shape as_rows{scales.numel(), tensor.numel() / scales.numel()};
    quantize_rows(tensor.view().reshape(as_rows), rows.view().reshape(as_rows), scales.view().reshape({scales.numel()}));
    if (!all_finite(scales)) refuse(name, " is not finite");
    stored.push_back({name, std::move(rows)});
    stored.push_back({cat(name, kScale), std::move(scales)});
  }
  return stored;
}

void expand_int8_rows(TensorFile& file) {
  std::vector<NamedTensor> kept;
  for (auto& [name, tensor] : file.tensors) {
    const Tensor* const scales = tensor.dtype() == DType::i8 ? file.find(cat(name, kScale)) : nullptr;
    if (scales != nullptr) {
      require_scales_fit(cat(file.path.filename().string(), ": "), name, tensor, *scales);
      Tensor values = Tensor::uninitialised(DType::f32, tensor.shape());
      dequantize(tensor, *scales, values, values);
      kept.push_back({name, std::move(values)});
      continue;
    }
    const bool is_scale = name.ends_with(kScale) && [&, &name = name] {  // Clang 14 captures no structured binding by [&]
      const Tensor* const rows = file.find(std::string_view(name).substr(0, name.size() - kScale.size()));
      return rows != nullptr && rows->dtype() == DType::i8;
    }();
    if (!is_scale) kept.push_back({name, Tensor::share(tensor.view(), tensor.owner())});
  }
  file.tensors = std::move(kept);
}

}  // namespace internal

void quantize_parameters(const std::filesystem::path& from, const std::filesystem::path& to) {
  const TensorFile file = open_tensors(from);
  save_tensors(to, int8_rows_of(file.tensors, cat("quantize_parameters: ", from.string())), file.metadata);
}

namespace detail {

Metadata load_into(const std::vector<std::pair<std::string, Tensor*>>& list, const std::filesystem::path& path, std::string_view skipped) {
  TensorFile file = open_tensors(path);
  const auto require_fits = [&](bool holds, const auto&... parts) {
    if (!holds) fail(ErrorCode::format, "load_parameters: ", path.string(), ": ", parts...);
  };
  std::vector<std::string> known;
  for (const auto& [name, tensor] : list) {
    const Tensor* const found = file.find(name);
    known.push_back(name);
    require_fits(found != nullptr, "there is no tensor ", name);
    const bool in_rows = found->dtype() == DType::i8 && is_floating(tensor->dtype());
    require_fits(found->shape() == tensor->shape() && (in_rows || found->dtype() == tensor->dtype()), name, " is ", found->dtype(), " ", found->shape(),
                 "; it must be ", tensor->dtype(), " ", tensor->shape());
    if (!in_rows) continue;
    const Tensor* const scales = file.find(known.emplace_back(cat(name, kScale)));
    require_fits(scales != nullptr, name, " is int8, and there is no tensor ", name, kScale);
    require_scales_fit(cat("load_parameters: ", path.string(), ": "), name, *found, *scales);
  }
  for (const NamedTensor& named : file.tensors) {
    if (!skipped.empty() && named.name.starts_with(skipped)) continue;
    require_fits(std::ranges::find(known, named.name) != known.end(), "there is a tensor ", named.name, ", which is no parameter");
  }
  // Find all tensors and allocate before writing the first one, so that an error leaves the module unchanged.
  Metadata metadata = std::move(file.metadata);
  std::vector<std::pair<const Tensor*, const Tensor*>> stored;  // (tensor, its scales)
  std::int64_t most = 0;
  for (const auto& [name, tensor] : list) {
    const Tensor& found = file.at(name);
    const bool in_rows = found.dtype() != tensor->dtype();
    stored.emplace_back(&found, in_rows ? &file.at(cat(name, kScale)) : nullptr);
    if (in_rows) most = std::max(most, found.numel());
  }
  Tensor memory = Tensor::uninitialised(DType::f32, {most});
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& [found, scales] = stored[i];
    scales == nullptr ? copy(*found, *list[i].second) : dequantize(*found, *scales, memory, *list[i].second);
  }
  return metadata;
}

}  // namespace detail
}  // namespace polyhead::io
