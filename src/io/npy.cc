#include "io/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "core/join.h"
#include "io/element_bytes.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxNpyHeader = 1u << 20;  // bytes; a valid header has less than 1 KiB
constexpr std::size_t kAlignment = 64;

// Parser of the Python literals in a header: one dict of strings, booleans and tuples of integers.
class Literal {
 public:
  Literal(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  NpyHeader header() {
    NpyHeader result;
    std::array<bool, 3> seen{};
    expect('{');
    while (!take('}')) {
      const std::string_view key = string();
      expect(':');
      const std::size_t field = key == "descr" ? 0 : key == "fortran_order" ? 1 : 2;
      if (field == 2 && key != "shape") bad("has the key ", quote(key), "; it has descr, fortran_order and shape");
      if (std::exchange(seen[field], true)) bad("has the key ", quote(key), " twice");
      if (field == 0) dtype(result);
      if (field == 1) result.column_major = boolean();
      if (field == 2) result.shape = tuple();
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    if (at_ != text_.size()) bad("continues after its dict at byte ", at_);
    if (!seen[0]) bad("has no descr");
    if (!seen[1]) bad("has no fortran_order");
    if (!seen[2]) bad("has no shape");
    return result;
  }

 private:
  template <class... Parts>
  [[noreturn]] void bad(const Parts&... parts) const {
    fail(ErrorCode::format, where_, ": the npy header ", parts...);
  }
  void skip_spaces() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool take(char wanted) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) bad("is not a Python dict: '", wanted, "' is missing at byte ", at_);
  }
  std::string_view string() {
    skip_spaces();
    const char quote = at_ < text_.size() && text_[at_] == '"' ? '"' : '\'';
    expect(quote);
    const std::size_t end = text_.find_first_of(quote == '"' ? "\"\\" : "'\\", at_);
    if (end == std::string_view::npos || text_[end] == '\\') bad("has a string at byte ", at_, " that does not end or has an escape");
    const std::string_view result = text_.substr(at_, end - at_);
    at_ = end + 1;
    return result;
  }
  bool boolean() {
    skip_spaces();
    const bool yes = text_.substr(at_).starts_with("True");
    if (!yes && !text_.substr(at_).starts_with("False")) bad("has a fortran_order that is neither True nor False");
    at_ += yes ? 4 : 5;
    return yes;
  }
  Shape tuple() {
    Shape shape;
    bool comma = true;
    expect('(');
    while (!take(')')) {
      if (!comma) bad("has a shape without a comma at byte ", at_);
      if (shape.size() == kMaxRank) bad("has a shape of more than ", kMaxRank, " extents");
      shape.push_back(extent());
      comma = take(',');
    }
    if (shape.size() == 1 && !comma) bad("has a shape that is a number, not a tuple");
    return shape;
  }
  std::int64_t extent() {
    skip_spaces();
    std::int64_t value = 0;
    const std::size_t first = at_;
    const char* end = text_.data() + text_.size();
    const auto [last, error] = std::from_chars(text_.data() + at_, end, value);
    if (error == std::errc::result_out_of_range) bad("has an extent above 2^63 - 1");
    if (error != std::errc()) bad("has an extent at byte ", at_, " that is not a number");
    if (value < 0) bad("has an extent of ", value, "; extents are not negative");
    at_ = static_cast<std::size_t>(last - text_.data());
    if (text_[first] == '0' && at_ - first > 1) bad("has an extent at byte ", first, " with leading zeros");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 wrote long integers as 3L
    return value;
  }
  void dtype(NpyHeader& result) {
    skip_spaces();
    if (at_ < text_.size() && text_[at_] == '[') bad("describes records with fields; one plain dtype is needed");
    const std::string_view name = string();
    std::string little(name);
    result.big_endian = little.starts_with('>');
    if (result.big_endian || little.starts_with('=')) little[0] = '<';
    if (!little.empty() && little[0] >= 'a' && little[0] <= 'z') little.insert(0, 1, '<');  // NumPy reads a missing byte order as that of the machine
    const auto row = std::ranges::find_if(kDTypes, [&](const DTypeInfo& r) {
      // A dtype of one byte has no byte order: NumPy writes '|', other programs '<'.
      return !r.npy.empty() &&
             (r.npy == little || (r.size == 1 && little.size() == 3 && little[0] == '<' && r.npy.substr(1) == little.substr(1)));
    });
    if (row == kDTypes.end()) bad("has the dtype ", quote(name), "; ", known(), " are read, big endian ('>') too");
    result.dtype = row->dtype;
  }
  static std::string known() {
    return join(filtered(kDTypes, [](const DTypeInfo& row) { return !row.npy.empty(); }), &DTypeInfo::npy);
  }

  std::string_view text_, where_;
  std::size_t at_ = 0;
};

void swap_byte_order(Tensor& tensor) {
  const std::size_t size = info(tensor.dtype()).size;
  auto* at = static_cast<std::byte*>(tensor.view().data());
  for (std::int64_t i = 0; i < tensor.numel(); ++i, at += size) std::reverse(at, at + size);
}

// Reverses the axes, which makes a column-major view row-major.
ConstTensorView reversed(ConstTensorView view) {
  std::vector<int> axes;
  for (int axis = view.rank() - 1; axis >= 0; --axis) axes.push_back(axis);
  return view.permute(axes);
}

}  // namespace

NpyExtent npy_extent(std::string_view first, std::uint64_t size, std::string_view where) {
  const auto bad = [&](const auto&... parts) { fail(ErrorCode::format, where, ": ", parts...); };
  const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(first[i])); };
  if (first.size() < kMagic.size() + 2 || !first.starts_with(kMagic)) bad("it does not begin with the 8 bytes of an npy file");
  const std::size_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) bad("npy version ", major, ".", minor, " is not known; 1.0, 2.0 and 3.0 are");
  const std::size_t width = major == 1 ? 2 : 4;
  NpyExtent extent{.begin = 8 + width};
  if (first.size() < extent.begin) bad("the file ends within the npy header's length");
  for (std::size_t i = 0; i < width; ++i) extent.length |= byte(8 + i) << (8 * i);
  if (extent.length > kMaxNpyHeader) bad("the npy header claims ", extent.length, " bytes; at most ", kMaxNpyHeader, " are allowed");
  if (extent.length > size - extent.begin)
    bad("the npy header claims ", extent.length, " bytes, but only ", size - extent.begin, " follow its length");
  return extent;
}

NpyHeader parse_npy_header(std::string_view literal, std::string_view where) { return Literal(literal, where).header(); }

std::string format_npy_header(DType dtype, const Shape& shape, std::string_view where) {
  if (info(dtype).npy.empty()) fail(ErrorCode::unsupported, where, ": npy has no ", dtype, "; a safetensors file holds it");
  const std::string_view close = shape.size() == 1 ? ",)" : ")";
  std::string literal = cat("{'descr': '", info(dtype).npy, "', 'fortran_order': False, 'shape': (", join(shape), close, ", }");
  const std::size_t preamble = kMagic.size() + 4;  // bytes before the literal: the magic, two for the version and two for the length
  literal.resize((preamble + literal.size() + 1 + kAlignment - 1) / kAlignment * kAlignment - preamble, ' ');
  literal.back() = '\n';
  std::string header(kMagic);
  for (const std::size_t value : {std::size_t{1}, std::size_t{0}, literal.size() & 0xff, literal.size() >> 8})
    header += static_cast<char>(value);
  return header + literal;
}

bool is_npy(std::string_view text) { return text.starts_with(kMagic); }

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
  if (header.big_endian && info(header.dtype).size > 1) swap_byte_order(tensor);  // changes memory only: the file is mapped privately
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
