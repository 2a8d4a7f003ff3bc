#include <zip.h>

#include <memory>
#include <set>

#include "core/text.h"
#include "io/element_bytes.h"
#include "io/foreign.h"
#include "io/json.h"
#include "io/npy.h"

namespace polyhead::io {
namespace {

constexpr std::string_view kSuffix = ".npy";
// Deflate compresses by 1032 at most (258 bytes to 2 bits). A member that claims more is refused before memory is allocated for it.
constexpr std::uint64_t kMaxDeflateRatio = 1040, kDeflateSlack = 1024;

struct ZipError {
  zip_error_t error;
  ZipError() { zip_error_init(&error); }
  explicit ZipError(int code) { zip_error_init_with_code(&error, code); }
  ~ZipError() { zip_error_fini(&error); }
  ZipError(const ZipError&) = delete;
  ZipError& operator=(const ZipError&) = delete;
  std::string text() { return zip_error_strerror(&error); }
};

using Archive = std::unique_ptr<zip_t, decltype(&zip_discard)>;
using Member = std::unique_ptr<zip_file_t, decltype(&zip_fclose)>;
using Source = std::unique_ptr<zip_source_t, decltype(&zip_source_free)>;

class Reader {
 public:
  explicit Reader(const FileBytes& file) : file_(file), archive_(nullptr, &zip_discard) {
    // libzip would take an empty file for an archive without members.
    if (!is_npz(file.text())) fail(ErrorCode::format, file.name(), ": it does not begin with \"PK\", as a zip archive does");
    ZipError error;
    Source source(zip_source_buffer_create(file.bytes.data(), file.bytes.size(), 0, &error.error), &zip_source_free);
    if (source) archive_.reset(zip_open_from_source(source.get(), ZIP_RDONLY | ZIP_CHECKCONS, &error.error));  // the headers of members must agree with the directory
    if (!archive_ && zip_error_code_zip(&error.error) == ZIP_ER_EXISTS) fail(ErrorCode::format, file.name(), ": two members have the same name");
    if (!archive_) fail(ErrorCode::format, file.name(), ": it is not a whole zip archive: ", error.text());
    source.release();  // the archive owns the source now
  }

  TensorFile read() {
    TensorFile result;
    std::set<std::string> names;
    std::uint64_t packed = 0;
    const zip_int64_t count = zip_get_num_entries(archive_.get(), 0);
    for (zip_int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<zip_uint64_t>(i);
      const std::string member = member_name(index);
      const std::string where = file_.name() + ": member " + quote(member);
      if (!member.ends_with(kSuffix)) fail(ErrorCode::format, where, " is not an array: an npz file holds .npy members only");
      std::string name = member.substr(0, member.size() - kSuffix.size());
      if (!names.insert(name).second) fail(ErrorCode::format, where, " occurs twice");
      const zip_stat_t status = checked_status(index, where);
      // Refuse members that share bytes: they would let a small file unpack to any size.
      packed += status.comp_size;
      if (packed > file_.bytes.size())
        fail(ErrorCode::format, where, " overlaps others: the members' sizes exceed the file's ", file_.bytes.size(), " bytes");
      Tensor tensor = array(index, status.size, where, name);
      result.tensors.push_back({std::move(name), std::move(tensor)});
    }
    return result;
  }

 private:
  std::string member_name(zip_uint64_t index) {
    const char* name = zip_get_name(archive_.get(), index, ZIP_FL_ENC_GUESS);
    if (name == nullptr) fail(ErrorCode::format, file_.name(), ": member ", index, " has no name: ", zip_strerror(archive_.get()));
    return name;
  }

  zip_stat_t checked_status(zip_uint64_t index, const std::string& where) {
    constexpr zip_uint64_t kNeeded = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    zip_stat_t status;
    zip_stat_init(&status);
    if (zip_stat_index(archive_.get(), index, 0, &status) != 0 || (status.valid & kNeeded) != kNeeded) {
      fail(ErrorCode::format, where, " has no readable entry: ", zip_strerror(archive_.get()));
    }
    if (status.encryption_method != ZIP_EM_NONE) fail(ErrorCode::unsupported, where, " is encrypted");
    const bool stored = status.comp_method == ZIP_CM_STORE;
    if (!stored && status.comp_method != ZIP_CM_DEFLATE) {
      fail(ErrorCode::unsupported, where, " is compressed by method ", status.comp_method, "; 0 (stored) and 8 (deflated) are read");
    }
    if (stored ? status.size != status.comp_size : status.size / kMaxDeflateRatio > status.comp_size + kDeflateSlack) {
      fail(ErrorCode::format, where, " claims to unpack ", status.comp_size, " bytes to ", status.size, ", which is impossible");
    }
    return status;
  }

  Tensor array(zip_uint64_t index, std::uint64_t size, const std::string& where, const std::string& name) {
    const Member member(zip_fopen_index(archive_.get(), index, 0), &zip_fclose);
    if (!member) fail(ErrorCode::format, where, " cannot be opened: ", zip_strerror(archive_.get()));
    std::string head(std::min<std::uint64_t>(size, kNpyPreamble), '\0');
    read_exactly(member.get(), std::as_writable_bytes(std::span(head)), where);
    const NpyExtent extent = npy_extent(head, size, where);
    const std::size_t known = head.size();
    head.resize(std::max(known, extent.begin + extent.length));
    read_exactly(member.get(), std::as_writable_bytes(std::span(head).subspan(known)), where);
    const NpyHeader header = parse_npy_header(std::string_view(head).substr(extent.begin, extent.length), where);
    const std::uint64_t bytes = size - extent.begin - extent.length;
    check_npy_size(header, bytes, where);
    Tensor memory(DType::u8, Shape{static_cast<std::int64_t>(bytes)});
    const std::span<std::byte> target(static_cast<std::byte*>(memory.view().data()), bytes);
    read_exactly(member.get(), target, where);
    expect_end(member.get(), where);
    return npy_tensor({file_.path, target, memory.owner()}, target, header, name);
  }

  static void read_exactly(zip_file_t* member, std::span<std::byte> target, const std::string& where) {
    while (!target.empty()) {
      const zip_int64_t count = zip_fread(member, target.data(), std::min<std::size_t>(target.size(), 1u << 30));
      if (count < 0) fail(ErrorCode::format, where, " cannot be unpacked: ", zip_file_strerror(member));
      if (count == 0) fail(ErrorCode::format, where, " ends ", target.size(), " bytes too early");
      target = target.subspan(static_cast<std::size_t>(count));
    }
  }

  // Reading the end of a member makes libzip compare the checksum.
  static void expect_end(zip_file_t* member, const std::string& where) {
    std::byte more;
    const zip_int64_t count = zip_fread(member, &more, 1);
    if (count < 0) fail(ErrorCode::format, where, " cannot be unpacked: ", zip_file_strerror(member));
    if (count > 0) fail(ErrorCode::format, where, " unpacks to more bytes than its entry says");
  }

  const FileBytes& file_;
  Archive archive_;
};

}  // namespace

bool is_npz(std::string_view text) {
  // A zip archive begins with the header of its first member; an empty archive begins with the end record. Archives of torch.save are excluded: they
  // hold no npy arrays.
  return (text.starts_with("PK\x03\x04") && foreign_kind(text).empty()) || text.starts_with("PK\x05\x06");
}

TensorFile read_npz(const FileBytes& file) { return Reader(file).read(); }

void write_npz(AtomicFile& file, std::span<const NamedView> tensors, const Metadata&) {
  const std::string where = "cannot write " + file.path().string();
  if (tensors.empty()) {  // libzip would write an empty file; write the end record of an empty archive
    file.write(std::string("PK\x05\x06") + std::string(18, '\0'));
    return;
  }
  const auto check = [&](bool ok, auto&& reason) {
    if (!ok) fail(ErrorCode::io, where, ": ", reason());
  };
  ZipError error;
  // The archive is built in memory because libzip seeks back to write sizes, which a pipe does not allow.
  const Source buffer(zip_source_buffer_create(nullptr, 0, 0, &error.error), &zip_source_free);
  check(buffer != nullptr, [&] { return error.text(); });
  Archive archive(zip_open_from_source(buffer.get(), ZIP_TRUNCATE, &error.error), &zip_discard);
  check(archive != nullptr, [&] { return error.text(); });
  zip_source_keep(buffer.get());  // zip_close() drops one reference; the second keeps the buffer
  const auto archive_error = [&] { return std::string(zip_strerror(archive.get())); };

  std::vector<std::string> headers(tensors.size());  // headers and packed must outlive the archive
  std::vector<Tensor> packed(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const ConstTensorView tensor = tensors[i].tensor;
    headers[i] = format_npy_header(tensor.dtype(), tensor.shape(), where);
    if (!tensor.is_contiguous()) packed[i] = Tensor::copy_of(tensor);
    const void* data = packed[i] ? packed[i].view().data() : tensor.data();
    const zip_buffer_fragment_t fragments[] = {
        {reinterpret_cast<zip_uint8_t*>(headers[i].data()), headers[i].size()},
        {static_cast<zip_uint8_t*>(const_cast<void*>(data)), static_cast<std::size_t>(tensor.numel()) * info(tensor.dtype()).size}};
    Source member(zip_source_buffer_fragment(archive.get(), fragments, 2, 0), &zip_source_free);
    check(member != nullptr, archive_error);
    const std::string name = tensors[i].name + std::string(kSuffix);
    const zip_int64_t index = zip_file_add(archive.get(), name.c_str(), member.get(), ZIP_FL_ENC_UTF_8);
    check(index >= 0, archive_error);
    member.release();
    const auto at = static_cast<zip_uint64_t>(index);
    // As NumPy does: do not compress, and set the date to 1980-01-01, so that equal tensors give equal files.
    check(zip_set_file_compression(archive.get(), at, ZIP_CM_STORE, 0) == 0, archive_error);
    check(zip_file_set_dostime(archive.get(), at, 0, (1u << 5) | 1u, 0) == 0, archive_error);
  }
  check(zip_close(archive.get()) == 0, archive_error);
  archive.release();

  check(zip_source_open(buffer.get()) == 0, [&] { return std::string("the archive in memory cannot be read"); });
  std::vector<std::byte> chunk(1u << 20);
  for (zip_int64_t count; (count = zip_source_read(buffer.get(), chunk.data(), chunk.size())) != 0;) {
    check(count > 0, [&] { return std::string("the archive in memory cannot be read"); });
    file.write(std::span(chunk).first(static_cast<std::size_t>(count)));
  }
}

}  // namespace polyhead::io
