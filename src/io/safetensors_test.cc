#include <gmock/gmock.h>

#include "io/formats.h"
#include "io/test_files.h"

namespace polyhead::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, std::uint64_t begin, std::uint64_t end) {
  return cat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":[", begin, ",", end, "]}");
}

TEST(Safetensors, EveryDtypeComesBackBitForBit) {
  const TestFolder folder;
  for (const DTypeInfo& row : kDTypes) {
    SCOPED_TRACE(row.name);
    const Tensor tensor = random_tensor(row.dtype, {3, 1, 5});
    save_tensors(folder / "a.safetensors", {{"t", tensor}});
    const TensorFile file = open_tensors(folder / "a.safetensors");
    EXPECT_EQ(file.format, "safetensors");
    ASSERT_EQ(file.tensors.size(), 1u);
    expect_same(file.at("t"), tensor);
  }
}

TEST(Safetensors, ShapesOfRankZeroToSixteenAndExtentsOfZeroComeBack) {
  const TestFolder folder;
  const Shape deep(std::vector<std::int64_t>(16, 1));
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{0}, Shape{3, 0, 2}, Shape{2, 3}, deep}) {
    SCOPED_TRACE(to_string(shape));
    const Tensor tensor = random_tensor(DType::f32, shape);
    save_tensors(folder / "a.safetensors", {{"before", random_tensor(DType::u8, {5})}, {"t", tensor}});
    expect_same(open_tensors(folder / "a.safetensors").at("t"), tensor);
  }
}

TEST(Safetensors, StridedTensorsAreWrittenRowMajor) {
  const TestFolder folder;
  const Tensor tensor = random_tensor(DType::f64, {4, 6});
  const ConstTensorView view = tensor;
  const std::vector<NamedView> views{
      {"transposed", view.transpose(0, 1)}, {"backwards", view.slice(1, 0, 6, -2)}, {"broadcast", view.select(0, 2).expand({3, 6})}};
  save_tensors(folder / "a.safetensors", views);
  const TensorFile file = open_tensors(folder / "a.safetensors");
  for (const NamedView& item : views) {
    SCOPED_TRACE(item.name);
    expect_same(file.at(item.name), item.tensor);
    EXPECT_TRUE(file.at(item.name).view().is_contiguous());
  }
}

// The expected bytes were written by the reference implementation (safetensors 0.8.0 for Python).
TEST(Safetensors, TheBytesAreThoseOfTheReferenceImplementation) {
  const TestFolder folder;
  const std::vector<NamedTensor> tensors{{"z", Tensor::of<std::int64_t>({1}, {5})},
                                         {"b", Tensor::of<float>({2}, {1.0f, 2.0f})},
                                         {"a\"\n", Tensor::of<float>({}, {3.0f})},
                                         {"flag", Tensor::of<bool>({1}, {true})},
                                         {"\xc3\xa9", Tensor::of<std::int16_t>({0}, {})}};
  save_tensors(folder / "a.safetensors", tensors, {{"k", "v"}});
  const std::string header =
      "{\"__metadata__\":{\"k\":\"v\"},\"z\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
      "\"a\\\"\\n\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,"
      "20]},"
      "\"\xc3\xa9\":{\"dtype\":\"I16\",\"shape\":[0],\"data_offsets\":[20,20]},\"flag\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":"
      "[20,21]}}";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  const std::string data =
      little_endian(5) + little_endian(0x40400000, 4) + little_endian(0x3f800000, 4) + little_endian(0x40000000, 4) + "\x01";
  EXPECT_EQ(read_bytes(folder / "a.safetensors"), safetensors_bytes(header + padding, data));
}

TEST(Safetensors, MetadataComeBack) {
  const TestFolder folder;
  const Metadata metadata{{"format", "pt"}, {"", "empty key"}, {"quote\"", "\xe2\x82\xac\n"}};
  save_tensors(folder / "a.safetensors", std::vector<NamedTensor>{}, metadata);
  const TensorFile file = open_tensors(folder / "a.safetensors");
  EXPECT_EQ(file.metadata, metadata);
  EXPECT_TRUE(file.tensors.empty());
}

TEST(Safetensors, TensorsAreListedInTheOrderOfTheHeader) {
  const TestFolder folder;
  const auto path = folder.write("a.safetensors",
                                 safetensors_bytes("{" + entry("z", "U8", "[1]", 1, 2) + "," + entry("a", "U8", "[1]", 0, 1) + "}", "xy"));
  const TensorFile file = open_tensors(path);
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].name, "z");
  EXPECT_EQ(bytes_of(file.tensors[0].tensor), "y");
  EXPECT_EQ(bytes_of(file.tensors[1].tensor), "x");
}

TEST(Safetensors, TensorsAreViewsOfTheMapAndOutliveTheFile) {
  const TestFolder folder;
  save_tensors(folder / "a.safetensors", {{"a", random_tensor(DType::f32, {2})}, {"b", random_tensor(DType::f32, {2})}});
  Tensor a;
  {
    TensorFile file = open_tensors(folder / "a.safetensors");
    const char* first = static_cast<const char*>(file.at("a").view().data());
    EXPECT_EQ(static_cast<const char*>(file.at("b").view().data()), first + 8);
    a = std::move(*file.find("a"));
  }
  std::filesystem::remove(folder / "a.safetensors");
  expect_same(a, random_tensor(DType::f32, {2}));
}

TEST(Safetensors, WritingToATensorLeavesTheFileAlone) {
  const TestFolder folder;
  save_tensors(folder / "a.safetensors", {{"a", Tensor::of<float>({2}, {1, 2})}});
  const std::string before = read_bytes(folder / "a.safetensors");
  TensorFile file = open_tensors(folder / "a.safetensors");
  file.find("a")->data<float>()[0] = 7;
  EXPECT_EQ(read_bytes(folder / "a.safetensors"), before);
}

TEST(Safetensors, AFileMayBeReplacedByItsOwnTensors) {
  const TestFolder folder;
  const Tensor tensor = random_tensor(DType::f32, {1000});
  save_tensors(folder / "a.safetensors", {{"a", tensor}});
  const TensorFile file = open_tensors(folder / "a.safetensors");
  save_tensors(folder / "a.safetensors", file.tensors);
  expect_same(file.at("a"), tensor);
  expect_same(open_tensors(folder / "a.safetensors").at("a"), tensor);
}

TEST(Safetensors, AMisalignedTensorIsCopied) {
  const TestFolder folder;
  const Tensor tensor = Tensor::of<double>({2}, {1.5, -2.5});
  const std::string data = "x" + bytes_of(tensor);
  const auto path = folder.write(
      "a.safetensors", safetensors_bytes("{" + entry("x", "U8", "[1]", 0, 1) + "," + entry("t", "F64", "[2]", 1, 17) + "}", data));
  const TensorFile file = open_tensors(path);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.at("t").view().data()) % alignof(double), 0u);
  expect_same(file.at("t"), tensor);
}

struct Malformed {
  std::string bytes;
  std::string reason;
};

TEST(Safetensors, MetadataMayBeNull) {
  const TestFolder folder;
  const TensorFile file = open_tensors(folder.write("a.safetensors", safetensors_bytes("{\"__metadata__\":null," + entry("a", "U8", "[1]", 0, 1) + "}", "x")));
  EXPECT_TRUE(file.metadata.empty());
  EXPECT_EQ(file.tensors.size(), 1u);
}

TEST(Safetensors, MalformedFilesAreRefusedWithTheReason) {
  const auto file = [](const std::string& header, const std::string& data = "") { return safetensors_bytes(header, data); };
  const std::string f32 = entry("a", "F32", "[2]", 0, 8), eight(8, '\0');
  std::string rank17 = "[1";
  for (int i = 0; i < 16; ++i) rank17 += ",1";
  rank17 += "]";
  const std::vector<Malformed> cases{
      {"", ": the file has 0 bytes; a safetensors file begins with 8 bytes that hold its header's length"},
      {"abc", ": the file has 3 bytes; a safetensors file begins with 8 bytes that hold its header's length"},
      {little_endian(2), ": the safetensors header claims 2 bytes, but only 0 follow its length"},
      {little_endian(100) + "{}", ": the safetensors header claims 100 bytes, but only 2 follow its length"},
      {little_endian(100'000'001) + "{}", ": the safetensors header claims 100000001 bytes; at most 100000000 are allowed"},
      {little_endian(~std::uint64_t{0}) + "{}",
       ": the safetensors header claims 18446744073709551615 bytes; at most 100000000 are allowed"},
      {little_endian(0) + "{}", ": the safetensors header is not a JSON object: it must begin with '{'"},
      {file("[]"), ": the safetensors header is not a JSON object: it must begin with '{'"},
      {file(" {}"), ": the safetensors header is not a JSON object: it must begin with '{'"},
      {file("{"), ": the safetensors header is not JSON at its byte 2"},
      {file("{}x"), ": the safetensors header is not JSON at its byte 3"},
      {file("{\"a\":{\"dtype\":\"F\xff\"}}"), ": the safetensors header is not UTF-8 at its byte 17"},
      {file(std::string("{}\0x", 4)), ": the safetensors header is not JSON at its byte 3"},
      {file(std::string("{\0}", 3)), ": the safetensors header is not JSON at its byte 2"},
      {file(std::string("{\"a\0\":1}", 8)), ": the safetensors header is not JSON at its byte 4"},
      {file("{\"a\":1}"), ": the safetensors header has the number 1 under \"a\"; it must be an object"},
      {file("{\"a\":[]}"), ": the safetensors header has an array under \"a\"; it must be an object"},
      {file("{\"a\":null}"), ": the safetensors header has null under \"a\"; it must be an object"},
      {file("{\"__metadata__\":{\"k\":1}}"),
       ": the safetensors header has the number 1 in its __metadata__ under \"k\"; it must be a string"},
      {file("{\"__metadata__\":{\"k\":{}}}"),
       ": the safetensors header has an object in its __metadata__ under \"k\"; it must be a string"},
      {file("{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}}"), ": the safetensors header has the key \"k\" twice in \"__metadata__\""},
      {file("{\"__metadata__\":{},\"__metadata__\":{}}"), ": the safetensors header has the key \"__metadata__\" twice"},
      {file("{" + f32 + "," + f32 + "}", eight), ": the safetensors header has the key \"a\" twice"},
      {file("{\"a\":{}}"), ": tensor \"a\" has no dtype"},
      {file("{\"a\":{\"dtype\":\"F32\"}}"), ": tensor \"a\" has no shape"},
      {file("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}"), ": tensor \"a\" has no data_offsets"},
      {file("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}"), ": the safetensors header has the key \"dtype\" twice in \"a\""},
      {file("{\"a\":{\"x\\n\":1}}"), ": tensor \"a\" has the field \"x\\n\"; a tensor has dtype, shape and data_offsets"},
      {file("{\"a\":{\"dtype\":1}}"), ": tensor \"a\" has the number 1 as its dtype; it must be a string"},
      {file("{\"a\":{\"dtype\":[]}}"), ": tensor \"a\" has an array as its dtype; it must be a string"},
      {file("{\"a\":{\"shape\":\"x\"}}"), ": tensor \"a\" has \"x\" as its shape; it must be an array"},
      {file("{\"a\":{\"shape\":[[]]}}"), ": tensor \"a\" has an array in its shape; extents are unsigned integers"},
      {file("{\"a\":{\"shape\":[-1]}}"), ": tensor \"a\" has the number -1 in its shape; extents are unsigned integers"},
      {file("{\"a\":{\"shape\":[1.0]}}"), ": tensor \"a\" has a number that is not a 64-bit integer in its shape; extents are unsigned integers"},
      {file("{\"a\":{\"shape\":[true]}}"), ": tensor \"a\" has a boolean in its shape; extents are unsigned integers"},
      {file("{\"a\":{\"shape\":[9223372036854775808]}}"), ": tensor \"a\" has an extent of 9223372036854775808, which is above 2^63 - 1"},
      {file("{\"a\":{\"shape\":[99999999999999999999]}}"), ": tensor \"a\" has a number that is not a 64-bit integer in its shape"},
      {file("{\"a\":{\"shape\":" + rank17 + "}}"), ": tensor \"a\" has a shape of more than 16 extents"},
      {file("{\"a\":{\"data_offsets\":[0]}}"), ": tensor \"a\" has 1 data_offsets; there must be 2"},
      {file("{\"a\":{\"data_offsets\":[0,1,2]}}"), ": tensor \"a\" has 3 data_offsets; there must be 2"},
      {file("{\"a\":{\"data_offsets\":[0,-8]}}"), ": tensor \"a\" has the number -8 in its data_offsets; they are two unsigned integers"},
      {file("{\"a\":{\"data_offsets\":[0,\"8\"]}}"), ": tensor \"a\" has \"8\" in its data_offsets; they are two unsigned integers"},
      {file("{\"a\":{\"data_offsets\":{}}}"), ": tensor \"a\" has an object as its data_offsets; it must be an array"},
      {file("{" + entry("a", "F8_E4M3", "[1]", 0, 1) + "}", "x"),
       ": tensor \"a\" has the dtype \"F8_E4M3\"; polyhead reads F32, F64, BF16, F16, BOOL, I8, U8, I16, U16, I32, U32, I64, U64"},
      {file("{" + entry("a", "F32", "[2]", 8, 0) + "}", eight), ": tensor \"a\" has data_offsets [8,0], which end before they begin"},
      {file("{" + entry("a", "F32", "[2]", 4, 12) + "}", eight),
       ": tensor \"a\" has data_offsets [4,12], but the file has 8 bytes of data"},
      {file("{" + f32 + "}", "1234567"), ": tensor \"a\" has data_offsets [0,8], but the file has 7 bytes of data"},
      {file("{" + entry("a", "F32", "[2]", 0, 7) + "}", eight),
       ": tensor \"a\" has data_offsets [0,7], which are 7 bytes, but [2] of float32 takes 8"},
      {file("{" + entry("a", "F32", "[]", 0, 8) + "}", eight),
       ": tensor \"a\" has data_offsets [0,8], which are 8 bytes, but [] of float32 takes 4"},
      {file("{" + entry("a", "F32", "[4611686018427387904]", 0, 8) + "}", eight),
       ": tensor \"a\" of float32 has the shape [4611686018427387904], which is more than 2^63 - 1 bytes"},
      {file("{" + entry("a", "U8", "[4294967296,4294967296]", 0, 0) + "}"),
       ": tensor \"a\" of uint8 has the shape [4294967296,4294967296], which is more than 2^63 - 1 bytes"},
      {file("{" + entry("a", "U8", "[0,4294967296,4294967296]", 0, 0) + "}"),
       ": tensor \"a\" of uint8 has the shape [0,4294967296,4294967296], which is more than 2^63 - 1 bytes"},
      {file("{" + entry("a", "U8", "[5]", 0, 5) + "," + entry("b", "U8", "[4]", 4, 8) + "}", eight),
       ": tensors \"a\" and \"b\" overlap: the first ends at byte 5 of the data, the second begins at 4"},
      {file("{" + entry("b", "U8", "[4]", 0, 4) + "," + entry("a", "U8", "[4]", 0, 4) + "}", "1234"),
       ": tensors \"b\" and \"a\" overlap: the first ends at byte 4 of the data, the second begins at 0"},
      {file("{" + entry("b", "U8", "[3]", 5, 8) + "," + entry("a", "U8", "[4]", 0, 4) + "}", eight),
       ": no tensor covers the bytes 4 to 5 of the data, before tensor \"b\"; the format allows no gaps"},
      {file("{" + entry("a", "U8", "[7]", 1, 8) + "}", eight),
       ": no tensor covers the bytes 0 to 1 of the data, before tensor \"a\"; the format allows no gaps"},
      {file("{" + f32 + "}", eight + "x"), ": the tensors end at byte 8 of the data, but 9 bytes follow the header"},
      {file("{}", "x"), ": the tensors end at byte 0 of the data, but 1 bytes follow the header"},
      {file("{" + entry("a", "BOOL", "[3]", 0, 3) + "}", "\x01" + std::string(1, '\0') + "\x02"),
       ": tensor \"a\" is bool, but its element 2 is 2; 0 and 1 are allowed"},
  };
  const TestFolder folder;
  for (const Malformed& one : cases) {
    SCOPED_TRACE(one.reason);
    const auto path = folder.write("bad.safetensors", one.bytes);
    const std::string error = error_of([&] { open_tensors(path); });
    EXPECT_THAT(error, HasSubstr("format: " + path.string() + one.reason));
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const TestFolder folder;
  save_tensors(folder / "a.safetensors", {{"a", random_tensor(DType::f32, {2, 2})}, {"b", random_tensor(DType::f16, {3})}}, {{"k", "v"}});
  const std::string whole = read_bytes(folder / "a.safetensors");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto path = folder.write("cut.safetensors", whole.substr(0, size));
    EXPECT_THAT(error_of([&] { open_tensors(path); }), HasSubstr("format: ")) << size << " of " << whole.size() << " bytes";
  }
}

TEST(Safetensors, DeepNestingDoesNotExhaustTheStack) {
  const TestFolder folder;
  const auto path = folder.write("deep.safetensors", safetensors_bytes("{\"a\":" + std::string(5'000'000, '[')));
  EXPECT_THAT(error_of([&] { open_tensors(path); }), HasSubstr("nests arrays and objects more than 64 levels deep"));
}

TEST(Safetensors, AFileThatIsShortenedBeforeItsDataAreReadIsAnError) {
  const TestFolder folder;
  const auto path = folder / "a.safetensors";
  save_tensors(path, {{"a", random_tensor(DType::boolean, {100'000})}});
  const FileBytes file = map_file(path);
  std::filesystem::resize_file(path, 50'000);
  EXPECT_THAT(error_of([&] { read_safetensors(file); }), HasSubstr("io: cannot read " + path.string() + ": it was shortened from "));
}

TEST(Safetensors, ALongNameIsCutInMessages) {
  const TestFolder folder;
  const auto path = folder.write("a.safetensors", safetensors_bytes("{\"" + std::string(1'000'000, 'n') + "\":1}"));
  EXPECT_LT(error_of([&] { open_tensors(path); }).size(), 500u);
}

TEST(Safetensors, BytesOfANameThatAreNotUtf8ShowInMessages) {
  const TestFolder folder;
  EXPECT_THAT(error_of([&] { open_tensors(folder.write("a.safetensors", safetensors_bytes("{}"))).at("a\xffz"); }),
              HasSubstr("\"a\uFFFDz\""));
}

TEST(Safetensors, NamesThatTheHeaderCannotHoldAreRefusedBeforeAnythingIsWritten) {
  const TestFolder folder;
  const Tensor t = Tensor::of<float>({1}, {1});
  const auto save = [&](const std::vector<NamedTensor>& tensors, const Metadata& metadata = {}) {
    return error_of([&] { save_tensors(folder / "a.safetensors", tensors, metadata); });
  };
  EXPECT_THAT(save({{"a", t}, {"a", t}}), HasSubstr("two tensors are named \"a\""));
  EXPECT_THAT(save({{"\xff", t}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(save({{"__metadata__", t}}), HasSubstr("cannot hold a tensor named \"__metadata__\""));
  EXPECT_THAT(save({{"a", Tensor()}}), HasSubstr("the tensor \"a\" is missing"));
  EXPECT_THAT(save({{"a", t}}, {{"k", "\xff"}}), HasSubstr("metadata under \"k\" are not UTF-8"));
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace
}  // namespace polyhead::io
