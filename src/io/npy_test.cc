#include <gmock/gmock.h>

#include "io/test_files.h"

namespace polyhead::io {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string npy_bytes(const std::string& literal, const std::string& data = "", int version = 1) {
  return "\x93NUMPY" + little_endian(static_cast<std::uint64_t>(version), 1) + little_endian(0, 1) +
         little_endian(literal.size(), version == 1 ? 2 : 4) + literal + data;
}

std::string literal(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

TEST(Npy, EveryDtypeComesBackBitForBit) {
  const TestFolder folder;
  for (const DTypeInfo& row : kDTypes) {
    if (row.npy.empty()) continue;
    SCOPED_TRACE(row.name);
    const Tensor tensor = random_tensor(row.dtype, {3, 1, 5});
    save_tensors(folder / "some.npy", {{"ignored", tensor}});
    const TensorFile file = open_tensors(folder / "some.npy");
    EXPECT_EQ(file.format, "npy");
    ASSERT_EQ(file.tensors.size(), 1u);
    EXPECT_EQ(file.tensors[0].name, "some");
    expect_same(file.tensors[0].tensor, tensor);
  }
}

TEST(Npy, ShapesOfRankZeroToSixteenExtentsOfZeroAndStridesComeBack) {
  const TestFolder folder;
  const Shape deep(std::vector<std::int64_t>(16, 1));
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{0}, Shape{3, 0, 2}, Shape{2, 3}, deep}) {
    SCOPED_TRACE(to_string(shape));
    const Tensor tensor = random_tensor(DType::f32, shape);
    save_tensors(folder / "a.npy", {{"", tensor}});
    expect_same(open_tensors(folder / "a.npy").tensors[0].tensor, tensor);
  }
  const Tensor tensor = random_tensor(DType::f16, {4, 6});
  const std::vector<NamedView> view{{"", tensor.view().transpose(0, 1).slice(0, 0, 6, -1)}};
  save_tensors(folder / "a.npy", view);
  expect_same(open_tensors(folder / "a.npy").tensors[0].tensor, view[0].tensor);
}

TEST(Npy, TheDataAreAlignedAsNumpyAlignsThem) {
  const TestFolder folder;
  save_tensors(folder / "a.npy", {{"", random_tensor(DType::f64, {2, 3})}});
  const std::string file = read_bytes(folder / "a.npy");
  EXPECT_EQ(file.size(), 128u + 48u);
  EXPECT_EQ(file.substr(0, 10), bytes("\x93NUMPY\1\0\x76\0"));
  EXPECT_EQ(file.substr(10, 60), "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), } ");
  EXPECT_EQ(file[127], '\n');
}

// Bytes that NumPy 2.4.6 wrote: np.float64(2.5), and np.arange(3, dtype="<i4") in format version 3.
TEST(Npy, FilesOfNumpyAreRead) {
  const TestFolder folder;
  const auto scalar = folder.write("s.npy", bytes("\223NUMPY\001\000v\000{'descr': '<f8', 'fortran_order': False, 'shape': (), }") +
                                                std::string(62, ' ') + bytes("\012\000\000\000\000\000\000\004@"));
  expect_same(open_tensors(scalar).at("s"), Tensor::of<double>({}, {2.5}));
  const auto third =
      folder.write("t.npy", bytes("\223NUMPY\003\000t\000\000\000{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }") +
                                std::string(58, ' ') + bytes("\012\000\000\000\000\001\000\000\000\002\000\000\000"));
  expect_same(open_tensors(third).at("t"), Tensor::of<std::int32_t>({3}, {0, 1, 2}));
}

// Some programs leave out the byte order or write '='. Both mean the byte order of the machine.
TEST(Npy, AMissingByteOrderMeansThatOfTheMachine) {
  const TestFolder folder;
  for (const char* name : {"f8", "=f8", "<f8"}) {
    const auto path = folder.write("a.npy", npy_bytes(literal(name, "(1,)"), bytes("\000\000\000\000\000\000\004@")));
    expect_same(open_tensors(path).at("a"), Tensor::of<double>({1}, {2.5}));
  }
  for (const char* name : {"i1", "=i1", "b1"}) EXPECT_EQ(open_tensors(folder.write("a.npy", npy_bytes(literal(name, "(1,)"), bytes("\001")))).at("a").numel(), 1) << name;
}

TEST(Npy, ColumnMajorBecomesRowMajorAndBigEndianLittle) {
  const TestFolder folder;
  const Tensor expected = Tensor::of<std::int16_t>({2, 3}, {0, 1, 2, 3, 4, 5});
  const std::string columns_big = bytes("\0\0\0\3\0\1\0\4\0\2\0\5"), rows_big = bytes("\0\0\0\1\0\2\0\3\0\4\0\5");
  const std::string columns = bytes("\0\0\3\0\1\0\4\0\2\0\5\0");
  const auto read = [&](const std::string& contents) { return std::move(open_tensors(folder.write("a.npy", contents)).tensors[0].tensor); };
  expect_same(read(npy_bytes(literal(">i2", "(2, 3)", "True"), columns_big)), expected);
  expect_same(read(npy_bytes(literal(">i2", "(2, 3)"), rows_big)), expected);
  expect_same(read(npy_bytes(literal("<i2", "(2, 3)", "True"), columns)), expected);
  EXPECT_EQ(read_bytes(folder / "a.npy").substr(read_bytes(folder / "a.npy").size() - 12), columns);
}

TEST(Npy, TheLiteralMayBeSpelledInEveryWayThatPythonAllows) {
  const TestFolder folder;
  for (const std::string& text : {std::string("{\"shape\":(2L,),\"fortran_order\":False,\"descr\":\"<u1\"}"),
                                  std::string("{ 'shape' : ( 2 , ) , 'descr' : '|u1' , 'fortran_order' : False , }   \n")}) {
    expect_same(open_tensors(folder.write("a.npy", npy_bytes(text, "xy"))).at("a"), Tensor::of<std::uint8_t>({2}, {'x', 'y'}));
    expect_same(open_tensors(folder.write("a.npy", npy_bytes(text, "xy", 2))).at("a"), Tensor::of<std::uint8_t>({2}, {'x', 'y'}));
  }
}

TEST(Npy, MalformedFilesAreRefusedWithTheReason) {
  const std::string magic = "\x93NUMPY", good = literal("<f4", "(2,)"), eight(8, '\0');
  std::string rank17 = "(1";
  for (int i = 0; i < 16; ++i) rank17 += ", 1";
  rank17 += ")";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", ": it does not begin with the 8 bytes of an npy file"},
      {magic, ": it does not begin with the 8 bytes of an npy file"},
      {magic + bytes("\4\0") + eight, ": npy version 4.0 is not known; 1.0, 2.0 and 3.0 are"},
      {magic + bytes("\1\1") + eight, ": npy version 1.1 is not known; 1.0, 2.0 and 3.0 are"},
      {magic + bytes("\1\0") + "x", ": the file ends within the npy header's length"},
      {magic + bytes("\2\0xyz"), ": the file ends within the npy header's length"},
      {magic + bytes("\1\0\x10\0") + "{}", ": the npy header claims 16 bytes, but only 2 follow its length"},
      {magic + bytes("\2\0\xff\xff\xff\xff") + "{}", ": the npy header claims 4294967295 bytes; at most 1048576 are allowed"},
      {npy_bytes(""), ": the npy header is not a Python dict: '{' is missing at byte 0"},
      {npy_bytes("{}"), ": the npy header has no descr"},
      {npy_bytes("{'descr': '<f4'}"), ": the npy header has no fortran_order"},
      {npy_bytes("{'descr': '<f4', 'fortran_order': False}"), ": the npy header has no shape"},
      {npy_bytes("{'descr': '<f4', 'descr': '<f4'}"), ": the npy header has the key \"descr\" twice"},
      {npy_bytes("{'what': 1}"), ": the npy header has the key \"what\"; it has descr, fortran_order and shape"},
      {npy_bytes("{'descr' '<f4'}"), "is not a Python dict: ':' is missing at byte 9"},
      {npy_bytes("{'descr': '<f4"), ": the npy header has a string at byte 11 that does not end or has an escape"},
      {npy_bytes("{'descr': '\\x3cf4'}"), ": the npy header has a string at byte 11 that does not end or has an escape"},
      {npy_bytes("{'descr': '<f4' 'shape': (2,)}"), "is not a Python dict: '}' is missing at byte 16"},
      {npy_bytes(good + "x", eight), ": the npy header continues after its dict at byte 58"},
      {npy_bytes("{'descr': [('a', '<f4')]}"), ": the npy header describes records with fields; one plain dtype is needed"},
      {npy_bytes(literal("<c8", "(1,)"), eight), ": the npy header has the dtype \"<c8\"; <f4, <f8, <f2, |b1"},
      {npy_bytes(literal("|O", "(1,)"), eight), ": the npy header has the dtype \"|O\""},
      {npy_bytes(literal("<V2", "(1,)"), eight), ": the npy header has the dtype \"<V2\""},
      {npy_bytes(literal("<f4", "(2,)", "0"), eight), ": the npy header has a fortran_order that is neither True nor False"},
      {npy_bytes(literal("<f4", "2"), eight), "is not a Python dict: '(' is missing"},
      {npy_bytes(literal("<f4", "(2)"), eight), ": the npy header has a shape that is a number, not a tuple"},
      {npy_bytes(literal("<f4", "(1 2)"), eight), ": the npy header has a shape without a comma"},
      {npy_bytes(literal("<f4", "(-2,)"), eight), ": the npy header has an extent of -2; extents are not negative"},
      {npy_bytes(literal("<f4", "(x,)"), eight), " that is not a number"},
      {npy_bytes(literal("<f4", "(02,)"), eight), ": the npy header has an extent at byte 51 with leading zeros"},
      {npy_bytes(literal("<f4", "(1, 02L)"), eight), ": the npy header has an extent at byte 54 with leading zeros"},
      {npy_bytes(literal("<f4", "(9223372036854775808,)"), eight), ": the npy header has an extent above 2^63 - 1"},
      {npy_bytes(literal("<f4", rank17), eight), ": the npy header has a shape of more than 16 extents"},
      {npy_bytes(literal("<f4", "(4611686018427387904, 4)"), eight),
       ": an array of float32 of shape [4611686018427387904,4] is more than 2^63 - 1 bytes"},
      {npy_bytes(literal("<f4", "(0, 4611686018427387904, 4)")),
       ": an array of float32 of shape [0,4611686018427387904,4] is more than 2^63 - 1 bytes"},
      {npy_bytes(good, "1234567"), ": an array of float32 of shape [2] takes 8 bytes, but 7 follow the header"},
      {npy_bytes(good, "123456789"), ": an array of float32 of shape [2] takes 8 bytes, but 9 follow the header"},
      {npy_bytes(literal("|b1", "(2,)"), bytes("\1\7")), ": tensor \"bad\" is bool, but its element 1 is 7; 0 and 1 are allowed"},
  };
  const TestFolder folder;
  for (const auto& [contents, reason] : cases) {
    SCOPED_TRACE(reason);
    const auto path = folder.write("bad.npy", contents);
    const std::string error = error_of([&] { open_tensors(path); });
    EXPECT_THAT(error, HasSubstr("format: " + path.string()));
    EXPECT_THAT(error, HasSubstr(reason));
  }
}

TEST(Npy, EveryTruncationIsRefused) {
  const TestFolder folder;
  save_tensors(folder / "a.npy", {{"", random_tensor(DType::f32, {2, 2})}});
  const std::string whole = read_bytes(folder / "a.npy");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto path = folder.write("cut.npy", whole.substr(0, size));
    EXPECT_THAT(error_of([&] { open_tensors(path); }), HasSubstr("format: ")) << size << " of " << whole.size() << " bytes";
  }
}

TEST(Npy, WhatItCannotHoldIsRefusedBeforeAnythingIsWritten) {
  const TestFolder folder;
  const Tensor t = Tensor::of<float>({1}, {1});
  EXPECT_THAT(error_of([&] { save_tensors(folder / "a.npy", {{"a", t}, {"b", t}}); }), HasSubstr("an npy file holds one tensor, not 2"));
  EXPECT_THAT(error_of([&] { save_tensors(folder / "a.npy", std::vector<NamedTensor>{}); }),
              HasSubstr("an npy file holds one tensor, not 0"));
  for (const char* name : {"a.npy", "a.npz"}) {
    EXPECT_THAT(error_of([&] {
                  save_tensors(folder / name, {{"a", Tensor(DType::bf16, {1})}});
                }),
                AllOf(HasSubstr("unsupported: "), EndsWith("npy has no bfloat16; a safetensors file holds it")));
  }
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace
}  // namespace polyhead::io
