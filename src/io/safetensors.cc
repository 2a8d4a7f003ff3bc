#include "io/formats.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/join.h"
#include "io/element_bytes.h"
#include "io/json.h"

namespace polyhead::io {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // bytes; the reference implementation has the same limit
constexpr std::size_t kHeaderAlignment = 8;

// The reference implementation writes tensors in descending order of this list, then by name. The widest dtypes
// come first, so that every tensor is aligned.
constexpr std::array kAscending{DType::boolean, DType::u8,  DType::i8,  DType::i16, DType::u16, DType::f16, DType::bf16,
                                DType::i32,     DType::u32, DType::f32, DType::f64, DType::i64, DType::u64};
static_assert(kAscending.size() == kDTypes.size());

std::uint64_t header_length(std::string_view text) {
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), kLengthBytes);
  return length;
}

struct Entry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // byte offsets from the end of the header
};

struct Header {
  std::vector<Entry> entries;  // in the order in which the JSON header lists them
  Metadata metadata;
};

Entry read_entry(const FileBytes& file, const std::string& name, const Json::Object& fields) {
  const auto bad = [&](const auto&... parts) { fail(ErrorCode::format, file.name(), ": tensor ", quote(name), " ", parts...); };
  const auto integers = [&](const Json::Member& field, std::string_view rule) {
    const auto* array = field.value.as<Json::Array>();
    if (array == nullptr) bad("has ", describe(field.value), " as its ", field.key, "; it must be an array");
    std::vector<std::uint64_t> result;
    for (const Json& item : *array) {
      const auto* number = item.as<std::uint64_t>();
      if (number == nullptr) bad("has ", describe(item), " in its ", field.key, "; ", rule);
      result.push_back(*number);
    }
    return result;
  };
  Entry entry{.name = name};
  for (const Json::Member& field : fields) {
    if (field.key == "dtype") {
      const auto* dtype = field.value.as<std::string>();
      if (dtype == nullptr) bad("has ", describe(field.value), " as its dtype; it must be a string");
      const auto row = std::ranges::find(kDTypes, *dtype, &DTypeInfo::safetensors);
      if (row == kDTypes.end()) bad("has the dtype ", quote(*dtype), "; polyhead reads ", join(kDTypes, &DTypeInfo::safetensors));
      entry.dtype = row->dtype;
    } else if (field.key == "shape") {
      for (const std::uint64_t extent : integers(field, "extents are unsigned integers")) {
        if (entry.shape.size() == kMaxRank) bad("has a shape of more than ", kMaxRank, " extents");
        if (extent > std::numeric_limits<std::int64_t>::max()) bad("has an extent of ", extent, ", which is above 2^63 - 1");
        entry.shape.push_back(static_cast<std::int64_t>(extent));
      }
    } else if (field.key == "data_offsets") {
      const std::vector<std::uint64_t> offsets = integers(field, "they are two unsigned integers");
      if (offsets.size() != 2) bad("has ", offsets.size(), " data_offsets; there must be 2");
      entry.begin = offsets[0], entry.end = offsets[1];
    } else {
      bad("has the field ", quote(field.key), "; a tensor has dtype, shape and data_offsets");
    }
  }
  for (const std::string_view field : {"dtype", "shape", "data_offsets"}) {
    if (std::ranges::find(fields, field, &Json::Member::key) == fields.end()) bad("has no ", field);
  }
  return entry;
}

// Checks the grammar and the types of the header, but not the offsets. An unknown, missing or repeated field is an Error that names the file and the tensor.
Header parse_header(const FileBytes& file, std::string_view text) {
  const std::string what = file.name() + ": the safetensors header";
  const Json json = parse_json(text, what);
  if (json.as<Json::Object>() == nullptr) fail(ErrorCode::format, what, " is ", describe(json), "; it must be an object");
  Header header;
  for (const auto& [name, value] : *json.as<Json::Object>()) {
    if (name == "__metadata__" && value.as<std::nullptr_t>() != nullptr) continue;  // the reference implementation accepts null, too
    const auto* object = value.as<Json::Object>();
    if (object == nullptr) fail(ErrorCode::format, what, " has ", describe(value), " under ", quote(name), "; it must be an object");
    if (name != "__metadata__") {
      header.entries.push_back(read_entry(file, name, *object));
      continue;
    }
    for (const auto& [key, item] : *object) {
      const auto* metadata = item.as<std::string>();
      if (metadata == nullptr)
        fail(ErrorCode::format, what, " has ", describe(item), " in its __metadata__ under ", quote(key), "; it must be a string");
      header.metadata.emplace(key, *metadata);
    }
  }
  return header;
}

// Checks the format's rule that the tensors cover the data exactly, without overlaps, gaps or bytes after the last one.
void check_offsets(const FileBytes& file, const Header& header, std::uint64_t data_size) {
  for (const Entry& entry : header.entries) {
    const auto bad = [&](const auto&... parts) {
      fail(ErrorCode::format, file.name(), ": tensor ", quote(entry.name), " has data_offsets [", entry.begin, ",", entry.end, "]",
           parts...);
    };
    if (entry.begin > entry.end) bad(", which end before they begin");
    if (entry.end > data_size) bad(", but the file has ", data_size, " bytes of data");
    const auto bytes = byte_count(entry.dtype, entry.shape);
    if (!bytes) {
      fail(ErrorCode::format, file.name(), ": tensor ", quote(entry.name), " of ", entry.dtype, " has the shape ", entry.shape,
           ", which is more than 2^63 - 1 bytes");
    }
    if (*bytes != entry.end - entry.begin) {
      bad(", which are ", entry.end - entry.begin, " bytes, but ", entry.shape, " of ", entry.dtype, " takes ", *bytes);
    }
  }
  std::vector<std::size_t> order(header.entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return std::pair(header.entries[i].begin, header.entries[i].end); });
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Entry& entry = header.entries[order[i]];
    if (entry.begin < covered) {
      fail(ErrorCode::format, file.name(), ": tensors ", quote(header.entries[order[i - 1]].name), " and ", quote(entry.name),
           " overlap: the first ends at byte ", covered, " of the data, the second begins at ", entry.begin);
    }
    if (entry.begin > covered) {
      fail(ErrorCode::format, file.name(), ": no tensor covers the bytes ", covered, " to ", entry.begin, " of the data, before tensor ",
           quote(entry.name), "; the format allows no gaps");
    }
    covered = entry.end;
  }
  if (covered != data_size) {
    fail(ErrorCode::format, file.name(), ": the tensors end at byte ", covered, " of the data, but ", data_size,
         " bytes follow the header");
  }
}

}  // namespace

// The members of TensorFile are defined here, because the WebAssembly build for live pages compiles this file but not tensor_file.cc.
const Tensor* TensorFile::find(std::string_view name) const {
  const auto item = std::ranges::find(tensors, name, &NamedTensor::name);
  return item == tensors.end() ? nullptr : &item->tensor;
}

Tensor* TensorFile::find(std::string_view name) {
  const auto item = std::ranges::find(tensors, name, &NamedTensor::name);
  return item == tensors.end() ? nullptr : &item->tensor;
}

const Tensor& TensorFile::at(std::string_view name) const {
  if (const Tensor* tensor = find(name)) return *tensor;
  const std::string held = tensors.empty() ? "none"
                                           : join(
                                                 tensors, [](const NamedTensor& item) { return quote(item.name); }, ", ", 8);
  fail(ErrorCode::invalid_argument, path.string(), ": no tensor is named ", quote(name), "; the file holds ", held);
}

bool is_safetensors(std::string_view text) {
  return text.size() > kLengthBytes && text[kLengthBytes] == '{' && header_length(text) <= kMaxHeader;
}

TensorFile read_safetensors(const FileBytes& file) {
  const auto bad = [&](const auto&... parts) { fail(ErrorCode::format, file.name(), ": ", parts...); };
  const std::uint64_t size = file.bytes.size();
  if (size < kLengthBytes) bad("the file has ", size, " bytes; a safetensors file begins with 8 bytes that hold its header's length");
  const std::uint64_t length = header_length(file.text());
  if (length > kMaxHeader) bad("the safetensors header claims ", length, " bytes; at most ", kMaxHeader, " are allowed");
  if (length > size - kLengthBytes)
    bad("the safetensors header claims ", length, " bytes, but only ", size - kLengthBytes, " follow its length");
  const std::string_view text = file.text().substr(kLengthBytes, length);
  if (!text.starts_with('{')) bad("the safetensors header is not a JSON object: it must begin with '{'");
  Header header = parse_header(file, text);
  const std::span<std::byte> data = file.bytes.subspan(kLengthBytes + length);
  check_offsets(file, header, data.size());

  TensorFile result{.metadata = std::move(header.metadata)};
  result.tensors.reserve(header.entries.size());
  for (Entry& entry : header.entries) {
    Tensor tensor = view_or_copy(file, data.subspan(entry.begin, entry.end - entry.begin), entry.dtype, entry.shape);
    check_booleans(file, entry.name, tensor);
    result.tensors.push_back({std::move(entry.name), std::move(tensor)});
  }
  return result;
}

void write_safetensors(AtomicFile& file, std::span<const NamedView> tensors, const Metadata& metadata) {
  std::vector<const NamedView*> order;
  for (const NamedView& tensor : tensors) {
    require(tensor.name != "__metadata__", "save_tensors: a safetensors file cannot hold a tensor named \"__metadata__\"");
    order.push_back(&tensor);
  }
  const auto rank = [](const NamedView* t) { return std::ranges::find(kAscending, t->tensor.dtype()); };
  std::ranges::sort(order, [&](const NamedView* a, const NamedView* b) {
    return a->tensor.dtype() != b->tensor.dtype() ? rank(a) > rank(b) : a->name < b->name;
  });
  std::string json;
  for (const auto& [key, value] : metadata) {
    json += (json.empty() ? "{\"__metadata__\":{" : ",") + json_string(key) + ":" + json_string(value);
  }
  json += json.empty() ? "{" : "}";
  std::uint64_t offset = 0;
  for (const NamedView* t : order) {
    const std::uint64_t end = offset + *byte_count(t->tensor.dtype(), t->tensor.shape());
    json += cat(json.size() > 1 ? "," : "", json_string(t->name), ":{\"dtype\":\"", info(t->tensor.dtype()).safetensors, "\",\"shape\":",
                t->tensor.shape(), ",\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  json += '}';
  json.resize((json.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  require(json.size() <= kMaxHeader, "save_tensors: the safetensors header would take ", json.size(), " bytes; at most ", kMaxHeader,
          " are allowed");
  const std::uint64_t length = json.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(json);
  for (const NamedView* t : order) write_elements(file, t->tensor);
}

}  // namespace polyhead::io
