#include <gmock/gmock.h>

#include "io/test_files.h"

namespace polyhead::io {
namespace {

using ::testing::HasSubstr;

std::uint32_t crc32(const std::string& data) {
  std::uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1u ? 0xedb88320u : 0u);
  }
  return ~crc;
}

// The directory entry of a member of the archive; tests make entries that do not fit the member.
struct Member {
  std::string name, data;
  std::uint64_t method = 0, flags = 0;
  std::optional<std::uint64_t> size = {}, packed_size = {}, crc = {}, offset = {};
};

std::string zip_bytes(const std::vector<Member>& members) {
  std::string local, central;
  for (const Member& m : members) {
    const std::string common = little_endian(20, 2) + little_endian(m.flags, 2) + little_endian(m.method, 2) + little_endian(0, 2) +
                               little_endian(33, 2) + little_endian(m.crc.value_or(crc32(m.data)), 4) +
                               little_endian(m.packed_size.value_or(m.data.size()), 4) + little_endian(m.size.value_or(m.data.size()), 4) +
                               little_endian(m.name.size(), 2) + little_endian(0, 2);
    central += "PK\1\2" + little_endian(20, 2) + common + little_endian(0, 2) + little_endian(0, 2) + little_endian(0, 2) +
               little_endian(0, 4) + little_endian(m.offset.value_or(local.size()), 4) + m.name;
    local += "PK\3\4" + common + m.name + m.data;
  }
  return local + central + "PK\5\6" + little_endian(0, 4) + little_endian(members.size(), 2) + little_endian(members.size(), 2) +
         little_endian(central.size(), 4) + little_endian(local.size(), 4) + little_endian(0, 2);
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  const std::string literal = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  return bytes("\x93NUMPY\1\0") + little_endian(literal.size(), 2) + literal + data;
}

// Bytes that NumPy 2.4.6 wrote: np.savez_compressed(a=np.arange(6, dtype="<f4").reshape(2, 3), **{"x/é": np.array([True, False])})
const std::string kDeflated = bytes(
    "PK\003\004-\000\000\000\010\000\000\000!\000O\351\000*\377\377\377\377\377\377\377\377\005\000\024\000a.npy\001\000\020\000"
    "\230\000\000\000\000\000\000\000U\000\000\000\000\000\000\000\233\354\027\352\033\020\311\310P\306P\255\236\222Z\234\134"
    "\244n\245\240n\223f\242\256\243\240\236\226_TR\224\230\027\237_\224\222\012\022wK\314)N\005\212\027g$\026\244\002\371\032"
    "F:\012\306\232:\012\265\012d\003.\0060h\260\007\022\016@\004\304\015@\274\300\001\000PK\003\004-\000\000\010\010\000\000"
    "\000!\000\356\031\273]\377\377\377\377\377\377\377\377\010\000\024\000x/\303\251.npy\001\000\020\000\202\000\000\000\000"
    "\000\000\000F\000\000\000\000\000\000\000\233\354\027\352\033\020\311\310P\306P\255\236\222Z\234\134\244n\245\240^\223d\250"
    "\256\243\240\236\226_TR\224\230\027\237_\224\222\012\022wK\314)N\005\212\027g$\026\244\002\371\032F:\232:\012\265\012\024"
    "\000.F\006\000PK\001\002-\003-\000\000\000\010\000\000\000!\000O\351\000*U\000\000\000\230\000\000\000\005\000\000\000\000"
    "\000\000\000\000\000\000\000\200\001\000\000\000\000a.npyPK\001\002-\003-\000\000\010\010\000\000\000!\000\356\031\273]F"
    "\000\000\000\202\000\000\000\010\000\000\000\000\000\000\000\000\000\000\000\200\001\214\000\000\000x/\303\251.npyPK\005"
    "\006\000\000\000\000\002\000\002\000i\000\000\000\014\001\000\000\000\000");

TEST(Npz, EveryDtypeAndShapeComesBackInOrder) {
  const TestFolder folder;
  std::vector<NamedTensor> tensors;
  for (const DTypeInfo& row : kDTypes) {
    if (!row.npy.empty()) tensors.push_back({"layer.0/" + std::string(row.name), random_tensor(row.dtype, {3, 1, 5})});
  }
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0, 2}}) tensors.push_back({to_string(shape), random_tensor(DType::f32, shape)});
  tensors.push_back({"", random_tensor(DType::f32, {2})});
  tensors.push_back({"\xc3\xa9", random_tensor(DType::f32, {2})});
  save_tensors(folder / "a.npz", tensors);
  const TensorFile file = open_tensors(folder / "a.npz");
  EXPECT_EQ(file.format, "npz");
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(tensors[i].name);
    EXPECT_EQ(file.tensors[i].name, tensors[i].name);
    expect_same(file.tensors[i].tensor, tensors[i].tensor);
  }
}

TEST(Npz, StridedTensorsAreWrittenRowMajor) {
  const TestFolder folder;
  const Tensor tensor = random_tensor(DType::f64, {4, 6});
  const std::vector<NamedView> view{{"t", tensor.view().transpose(0, 1)}, {"b", tensor.view().select(0, 1).expand({3, 6})}};
  save_tensors(folder / "a.npz", view);
  expect_same(open_tensors(folder / "a.npz").at("t"), view[0].tensor);
  expect_same(open_tensors(folder / "a.npz").at("b"), view[1].tensor);
}

TEST(Npz, AnArchiveWithoutArraysComesBack) {
  const TestFolder folder;
  save_tensors(folder / "a.npz", std::vector<NamedTensor>{});
  EXPECT_EQ(read_bytes(folder / "a.npz"), "PK\5\6" + std::string(18, '\0'));  // an archive without members, as np.savez() writes it
  EXPECT_TRUE(open_tensors(folder / "a.npz").tensors.empty());
}

TEST(Npz, TheSameTensorsGiveTheSameBytesInEveryTimeZone) {
  const TestFolder folder;
  const std::vector<NamedTensor> tensors{{"a", random_tensor(DType::f32, {3})}, {"b", random_tensor(DType::f32, {3})}};
  save_tensors(folder / "a.npz", tensors);
  setenv("TZ", "Asia/Tokyo", 1);
  tzset();
  save_tensors(folder / "b.npz", tensors);
  unsetenv("TZ");
  tzset();
  EXPECT_TRUE(read_bytes(folder / "a.npz") == read_bytes(folder / "b.npz"));
}

TEST(Npz, FilesOfNumpyAreRead) {
  const TestFolder folder;
  const TensorFile file = open_tensors(folder.write("a.npz", kDeflated));
  ASSERT_EQ(file.tensors.size(), 2u);
  expect_same(file.at("a"), Tensor::of<float>({2, 3}, {0, 1, 2, 3, 4, 5}));
  expect_same(file.at("x/\xc3\xa9"), Tensor::of<bool>({2}, {true, false}));
}

TEST(Npz, ALargeMemberIsReadWhole) {
  const TestFolder folder;
  const Tensor tensor = random_tensor(DType::f32, {700'000});
  save_tensors(folder / "a.npz", {{"a", tensor}});
  expect_same(open_tensors(folder / "a.npz").at("a"), tensor);
}

TEST(Npz, MalformedArchivesAreRefusedWithTheReason) {
  const std::string two = npy("<f4", "(2,)", "12345678"), zip = zip_bytes({{"a.npy", two}});
  std::string flipped = zip;
  flipped[zip.find("12345678")] ^= 1;
  std::string renamed = zip;
  renamed[zip.find("a.npy")] = 'b';  // changes the name in the member's header, but not in the directory at the end
  const std::vector<std::pair<std::string, std::string>> cases{
      {"PK\3\4", ": it is not a whole zip archive"},
      {zip.substr(0, zip.size() - 1), ": it is not a whole zip archive"},
      {zip_bytes({{"a.npy", two}, {"a.npy", two}}), ": two members have the same name"},
      {zip_bytes({{"../data.txt", two}}), "member \"../data.txt\" is not an array: an npz file holds .npy members only"},
      {zip_bytes({{"folder/", ""}}), "member \"folder/\" is not an array"},
      {zip_bytes({{"a\nb.txt", two}}), "member \"a\\nb.txt\" is not an array"},
      {zip_bytes({{.name = "a.npy", .data = two, .method = 12}}), "is compressed by method 12; 0 (stored) and 8 (deflated) are read"},
      {zip_bytes({{.name = "a.npy", .data = two, .flags = 1}}), "is encrypted"},
      {zip_bytes({{.name = "a.npy", .data = two, .size = 4'000'000'000u}}), "which is impossible"},
      {zip_bytes({{.name = "a.npy", .data = two, .method = 8, .size = 4'000'000'000u}}), "to 4000000000, which is impossible"},
      {zip_bytes({{.name = "a.npy", .data = two, .crc = 1}}), "member \"a.npy\" cannot be unpacked: CRC error"},
      {renamed, ": it is not a whole zip archive: Zip archive inconsistent"},
      {flipped, "member \"a.npy\" cannot be unpacked: CRC error"},
      {zip_bytes({{.name = "a.npy", .data = two, .method = 8}}), "member \"a.npy\" cannot be unpacked"},
      {zip_bytes({{"a.npy", ""}}), "member \"a.npy\": it does not begin with the 8 bytes of an npy file"},
      {zip_bytes({{"a.npy", two.substr(0, 9)}}), "member \"a.npy\": the file ends within the npy header's length"},
      {zip_bytes({{"a.npy", two.substr(0, 30)}}), "member \"a.npy\": the npy header claims"},
      {zip_bytes({{"a.npy", two.substr(0, two.size() - 1)}}),
       "member \"a.npy\": an array of float32 of shape [2] takes 8 bytes, but 7 follow the header"},
      {zip_bytes({{"a.npy", two + "x"}}), "member \"a.npy\": an array of float32 of shape [2] takes 8 bytes, but 9 follow the header"},
      {zip_bytes({{"a.npy", npy("<f4", "(1099511627776,)", "")}}), "takes 4398046511104 bytes, but 0 follow the header"},
      {zip_bytes({{"a.npy", npy("|b1", "(1,)", "\x05")}}), "tensor \"a\" is bool, but its element 0 is 5"},
  };
  const TestFolder folder;
  for (const auto& [contents, reason] : cases) {
    SCOPED_TRACE(reason);
    const auto path = folder.write("bad.npz", contents);
    const std::string error = error_of([&] { open_tensors(path); });
    EXPECT_THAT(error, HasSubstr(path.string()));
    EXPECT_THAT(error, HasSubstr(reason));
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

// Forty entries point to the same 400 bytes. Each entry is valid by itself, but together they claim more bytes than the file has.
TEST(Npz, MembersThatShareBytesAreRefused) {
  const TestFolder folder;
  std::vector<Member> members{{"a.npy", npy("|u1", "(4000,)", std::string(4000, 'x'))}};
  const auto whole = members[0].data.size();
  for (int i = 0; i < 40; ++i) {
    members.push_back({.name = "a.npy", .data = "", .size = whole, .packed_size = whole, .crc = crc32(members[0].data), .offset = 0});
    members.back().name[0] = static_cast<char>('b' + i);
  }
  const auto path = folder.write("bomb.npz", zip_bytes(members));
  EXPECT_THAT(error_of([&] { open_tensors(path); }), HasSubstr("format: " + path.string()));
}

TEST(Npz, EveryTruncationIsRefused) {
  const TestFolder folder;
  for (std::size_t size = 0; size < kDeflated.size(); ++size) {
    const auto path = folder.write("cut.npz", kDeflated.substr(0, size));
    EXPECT_THAT(error_of([&] { open_tensors(path); }), HasSubstr("format: ")) << size << " of " << kDeflated.size() << " bytes";
  }
}

TEST(Npz, AFlippedBitInTheDataIsAnError) {
  const TestFolder folder;
  const std::string zip = zip_bytes({{"a.npy", npy("<f4", "(2,)", "12345678")}});
  const std::size_t begin = zip.find("\x93NUMPY"), end = zip.find("PK\1\2");
  for (std::size_t at = begin; at < end; ++at) {
    std::string flipped = zip;
    flipped[at] ^= 4;
    const auto path = folder.write("flipped.npz", flipped);
    EXPECT_THAT(error_of([&] { open_tensors(path); }), HasSubstr("format: ")) << "byte " << at;
  }
}

}  // namespace
}  // namespace polyhead::io
