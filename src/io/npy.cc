#include "io/npy.h"

#include <algorithm>

#include "core/text.h"
#include "io/element_bytes.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

void swap_byte_order(Tensor& tensor) {
  const std::size_t size = info(tensor.dtype()).size;
  auto* at = static_cast<std::byte*>(tensor.view().data());
  for (std::int64_t i = 0; i < tensor.numel(); ++i, at += size) std::reverse(at, at + size);
}

// A view with the axes in reverse order.
ConstTensorView reversed(ConstTensorView view) {
  std::vector<int> axes;
  for (int axis = view.rank() - 1; axis >= 0; --axis) axes.push_back(axis);
  return view.permute(axes);
}

}  // namespace

bool is_npy(std::string_view text) { return text.starts_with(kNpyMagic); }

void check_npy_size(const NpyHeader& header, std::uint64_t after, std::string_view where) {
  const auto bytes = byte_count(header.dtype, header.shape);
  const auto bad = [&](const auto&... parts) {
    fail(ErrorCode::format, where, ": an array of ", header.dtype, " of shape ", header.shape, parts...);
  };
  if (!bytes) bad(" is more than 2^63 - 1 bytes");
  if (*bytes != after) bad(" takes ", *bytes, " bytes, but ", after, " follow the header");
}

Tensor npy_tensor(const FileBytes& file, std::span<std::byte> bytes, const NpyHeader& header, std::string_view name) {
  Shape stored = header.shape;
  if (header.column_major) std::reverse(stored.begin(), stored.end());
  Tensor tensor = view_or_copy(file, bytes, header.dtype, stored);
  check_booleans(file, name, tensor);
  if (header.column_major) tensor = Tensor::copy_of(reversed(tensor));
  if (header.big_endian && info(header.dtype).size > 1) swap_byte_order(tensor);  // does not change the file, which is mapped privately
  return tensor;
}

TensorFile read_npy(const FileBytes& file) {
  const std::string where = file.name();
  const NpyExtent extent = npy_extent(file.text().substr(0, kNpyPreamble), file.bytes.size(), where);
  const std::span<std::byte> data = file.bytes.subspan(extent.begin + extent.length);
  const NpyHeader header = parse_npy_header(file.text().substr(extent.begin, extent.length), where);
  check_npy_size(header, data.size(), where);
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
