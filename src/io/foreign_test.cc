#include "io/foreign.h"

#include <gmock/gmock.h>

#include "io/formats.h"
#include "io/json.h"
#include "io/test_files.h"

namespace polyhead::io {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Foreign {
  std::string bytes, said;
};

std::string member_of_zip(const std::string& name) {
  return std::string("PK\3\4") + std::string(22, '\0') + little_endian(name.size(), 2) + little_endian(0, 2) + name + std::string(40, '\0');
}

std::vector<Foreign> foreign_files() {
  const std::string zeros(64, '\0');
  return {{"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868376\n", "Git LFS"},
          {"/annex/objects/MD5E-s12--e2fc\n", "git-annex"},
          {"\n <!DOCTYPE html><html><body>401</body></html>", "HTML"},
          {"<html>not found</html>", "HTML"},
          {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", "XML"},
          {std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10) + zeros, "gzip"},
          {"\x28\xb5\x2f\xfd" + zeros, "Zstandard"},
          {std::string("\xfd"
                       "7zXZ\0",
                       6) + zeros, "xz"},
          {"BZh91AY&SY" + zeros, "bzip2"},
          {std::string("GGUF\3\0\0\0", 8) + zeros, "GGUF"},
          {"\x89HDF\r\n\x1a\n" + zeros, "HDF5"},
          {member_of_zip("archive/data.pkl"), "torch.save"},
          {std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15) + zeros, "torch.save"},
          {std::string("\x80\x04\x95\x10\0\0\0\0\0\0\0}", 12) + zeros, "pickle"},
          {little_endian(6, 4) + little_endian(16, 2) + std::string("TransformerSpec\0", 16) + zeros, "CTranslate2"},
          {std::string("\x08\x08\x12\x07pytorch\x1a\x05" "2.3.0:", 18) + zeros, "ONNX"}};
}

TEST(Foreign, AForeignFileIsNamedByItsContentsWhateverItsExtension) {
  const TestFolder folder;
  for (const Foreign& file : foreign_files()) {
    for (const char* name : {"model.safetensors", "a.npy", "a.npz", "model.bin"}) {
      const auto path = folder.write(name, file.bytes);
      EXPECT_THAT(error_of([&] { open_tensors(path); }), testing::AllOf(HasSubstr("format: " + path.string() + ": it is "), HasSubstr(file.said)));
    }
  }
}

TEST(Foreign, AForeignFileInPlaceOfConfigJsonIsNamed) {
  for (const Foreign& file : foreign_files()) {
    EXPECT_THAT(error_of([&] { parse_json(file.bytes, "config.json"); }), HasSubstr(file.said));
  }
  EXPECT_THAT(error_of([] { parse_json("{\"a\":1", "config.json"); }), Not(HasSubstr("it is")));
}

TEST(Foreign, FilesOfTensorsAreNotTakenForForeignOnes) {
  const TestFolder folder;
  for (const FormatDescription& format : formats()) {
    if (!format.writable) continue;
    save_tensors(folder / ("a" + std::string(format.extension)), {{"data.pkl", random_tensor(DType::f32, {2, 3})}});
    EXPECT_EQ(open_tensors(folder / ("a" + std::string(format.extension))).format, format.name);
  }
  // A safetensors file begins with the length of its header. With the length 0x8b1f it begins like a gzip file, but is none. Spaces fill the header to this
  // length.
  const std::string header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
  const auto path = folder.write("gzip.safetensors", safetensors_bytes(header + std::string(0x8b1f - header.size(), ' '), "x"));
  EXPECT_EQ(open_tensors(path).tensors.size(), 1u);
  for (const char* text : {"", "a", "PK\3\4", "\x80", "\x08\x08", "<", "hello"}) EXPECT_EQ(foreign_kind(text), "") << text;
}

}  // namespace
}  // namespace polyhead::io
