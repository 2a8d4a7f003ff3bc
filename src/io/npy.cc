#include "io/npy.h"

#include <algorithm>

#include "core/text.h"
#include "io/element_bytes.h"
#include "io/quote.h"

namespace polyhead::io {
namespace {

void swap_byte_order(Tensor& tensor) {
  const std::size_t size = info(tensor.dtype()).size;
  auto* at = static_cast<std::byte*>(tensor.view().data());
  for (std::int64_t i = 0; i < tensor.numel(); ++i, at += size) std::reverse(at, at + size);
}

// The same memory seen with its axes in reverse.
ConstTensorView reversed(ConstTensorView view) {
  std::vector<int> axes;
  for (int axis = view.rank() - 1; axis >= 0; --axis) axes.push_back(axis);
  return view.permute(axes);
}

}  // namespace

bool is_npy(std::span<const std::byte> bytes) {
  return bytes.size() >= kNpyMagic.size() && std::equal(kNpyMagic.begin(), kNpyMagic.end(), reinterpret_cast<const char*>(bytes.data()));
}

std::uint64_t npy_byte_count(const NpyHeader& header, std::string_view where) {
  const auto bytes = byte_count(header.dtype, header.shape);
  if (!bytes) fail(ErrorCode::format, where, ": an array of ", header.dtype, " of shape ", header.shape, " is more than 2^63 - 1 bytes");
  return *bytes;
}

Tensor npy_tensor(const FileBytes& file, std::span<std::byte> bytes, const NpyHeader& header, std::string_view name) {
  Shape stored = header.shape;
  if (header.column_major) std::reverse(stored.begin(), stored.end());
  Tensor tensor = view_or_copy(file, bytes, header.dtype, stored);
  check_booleans(file, name, tensor);
  if (header.column_major) tensor = Tensor::copy_of(reversed(tensor));
  if (header.big_endian && info(header.dtype).size > 1) {
    if (!header.column_major) tensor = Tensor(tensor);  // a copy: the map stays as the file is
    swap_byte_order(tensor);
  }
  return tensor;
}

TensorFile read_npy(const FileBytes& file) {
  const std::string where = file.name();
  const NpyExtent extent = npy_extent(file.bytes.first(std::min(file.bytes.size(), kNpyPreamble)), where);
  const std::uint64_t after = file.bytes.size() - extent.begin;
  if (extent.length > after)
    fail(ErrorCode::format, where, ": the npy header claims ", extent.length, " bytes, but only ", after, " follow its length");
  const std::span<std::byte> data = file.bytes.subspan(extent.begin + extent.length);
  const NpyHeader header = parse_npy_header({reinterpret_cast<const char*>(file.bytes.data()) + extent.begin, extent.length}, where);
  const std::uint64_t bytes = npy_byte_count(header, where);
  if (bytes != data.size()) {
    fail(ErrorCode::format, where, ": an array of ", header.dtype, " of shape ", header.shape, " takes ", bytes, " bytes, but ",
         data.size(), " follow the header");
  }
  const std::string name = file.path.stem().string();
  TensorFile result;
  result.tensors.push_back({name, npy_tensor(file, data, header, name)});
  return result;
}

void write_npy(AtomicFile& file, std::span<const NamedView> tensors, const Metadata&) {
  require(tensors.size() == 1, "save_tensors: an npy file holds one tensor, not ", tensors.size(), "; npz and safetensors hold several");
  const ConstTensorView tensor = tensors[0].tensor;
  file.write(format_npy_header(tensor.dtype(), tensor.shape(), "save_tensors: " + file.path().string()));
  write_elements(file, tensor);
}

}  // namespace polyhead::io
