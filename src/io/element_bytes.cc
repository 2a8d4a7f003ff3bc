#include "io/element_bytes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/text.h"
#include "io/json.h"

namespace polyhead::io {

static_assert(std::endian::native == std::endian::little, "files are little endian, and their bytes are used as they are");

std::optional<std::uint64_t> byte_count(DType dtype, const Shape& shape) {
  auto bytes = static_cast<std::int64_t>(info(dtype).size);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    empty |= extent == 0;
    if (extent != 0 && __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

void check_booleans(const FileBytes& file, std::string_view name, const Tensor& tensor) {
  if (tensor.dtype() != DType::boolean || tensor.numel() == 0) return;
  const std::span bytes(static_cast<const std::uint8_t*>(tensor.view().data()), static_cast<std::size_t>(tensor.numel()));
  const auto bad = std::ranges::find_if(bytes, [](std::uint8_t byte) { return byte > 1; });
  if (bad != bytes.end()) {
    fail(ErrorCode::format, file.name(), ": tensor ", quote(name), " is bool, but its element ", bad - bytes.begin(), " is ", *bad,
         "; 0 and 1 are allowed");
  }
}

Tensor view_or_copy(const FileBytes& file, std::span<std::byte> bytes, DType dtype, const Shape& shape) {
  if (bytes.empty()) return Tensor(dtype, shape);
  file.require_complete();
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % info(dtype).size == 0) {
    return Tensor::share(TensorView(bytes.data(), dtype, shape), file.owner);
  }
  Tensor tensor(dtype, shape);
  std::memcpy(tensor.view().data(), bytes.data(), bytes.size());
  return tensor;
}

void write_elements(AtomicFile& file, ConstTensorView tensor) {
  if (tensor.numel() == 0) return;
  const Tensor packed = tensor.is_contiguous() ? Tensor() : Tensor::copy_of(tensor);
  const void* data = packed ? packed.view().data() : tensor.data();
  file.write(std::span(static_cast<const std::byte*>(data), static_cast<std::size_t>(tensor.numel()) * info(tensor.dtype()).size));
}

}  // namespace polyhead::io
