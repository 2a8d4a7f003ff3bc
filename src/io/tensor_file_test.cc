#include "polyhead/io/tensor_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <thread>

#include "io/formats.h"
#include "io/test_files.h"
#include "polyhead/io/attention_parameters.h"

namespace polyhead::io {
namespace {

using ::testing::HasSubstr;

TEST(TensorFile, TheContentsTellTheFormatAndNotTheName) {
  const TestFolder folder;
  const Tensor tensor = random_tensor(DType::f32, {2, 3});
  for (const FormatDescription& format : formats()) {
    if (!format.writable) continue;
    SCOPED_TRACE(format.name);
    save_tensors(folder / ("a" + std::string(format.extension)), {{"misnamed", tensor}});
    std::filesystem::rename(folder / ("a" + std::string(format.extension)), folder / "misnamed.bin");
    const TensorFile file = open_tensors(folder / "misnamed.bin");
    EXPECT_EQ(file.format, format.name);
    EXPECT_EQ(file.path, folder / "misnamed.bin");
    expect_same(file.at("misnamed"), tensor);
  }
}

TEST(TensorFile, WhatCannotBeReadSaysWhy) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "empty");
  EXPECT_EQ(error_of([&] { open_tensors(folder / "none.npz"); }),
            "io: cannot open " + (folder / "none.npz").string() + ": No such file or directory");
  EXPECT_EQ(
      error_of([&] { open_tensors(folder / "empty"); }),
      "io: cannot read " + (folder / "empty").string() + ": the folder holds neither model.safetensors nor model.safetensors.index.json");
  EXPECT_EQ(error_of([&] { open_tensors("/dev/zero"); }), "io: cannot read /dev/zero: it is neither a file nor a pipe");
  const auto path = folder.write("readme.txt", "hello");
  EXPECT_EQ(error_of([&] { open_tensors(path); }),
            "format: " + path.string() + ": its 5 bytes are in none of the formats npy, npz, safetensors, safetensors index");
}

TEST(TensorFile, AFileWithoutTheTensorNamesThoseThatItHas) {
  const TestFolder folder;
  save_tensors(folder / "a.npz", {{"q", random_tensor(DType::f32, {1})}, {"k", random_tensor(DType::f32, {1})}});
  const TensorFile file = open_tensors(folder / "a.npz");
  EXPECT_EQ(file.find("v"), nullptr);
  EXPECT_EQ(error_of([&] { file.at("v"); }),
            "invalid_argument: " + (folder / "a.npz").string() + ": no tensor is named \"v\"; the file holds \"q\", \"k\"");
}

TEST(TensorFile, AnUnknownExtensionIsRefused) {
  const TestFolder folder;
  for (const char* name : {"a.txt", "a", "model.safetensors.index.json"}) {
    EXPECT_THAT(error_of([&] {
                  save_tensors(folder / name, {{"q", random_tensor(DType::f32, {1})}});
                }),
                HasSubstr("does not end in one of .npy, .npz, .safetensors"));
  }
  EXPECT_EQ(folder.count(), 0u);
}

TEST(TensorFile, EveryFormatIsReadThroughAPipe) {
  const TestFolder folder;
  const Tensor tensor = random_tensor(DType::f32, {300, 200});
  for (const char* extension : {".safetensors", ".npy", ".npz"}) {
    SCOPED_TRACE(extension);
    const auto file = folder / (std::string("pipe") + extension), pipe = folder / "pipe";
    save_tensors(file, {{"pipe", tensor}});
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    std::thread writer([&] { std::ofstream(pipe, std::ios::binary) << read_bytes(file); });
    TensorFile read = open_tensors(pipe);
    writer.join();
    std::filesystem::remove(pipe);
    const Tensor alone = std::move(*read.find("pipe"));
    read = {};
    expect_same(alone, tensor);
  }
}

// A pipe must be refused before it is opened: opening a pipe without a writer would wait for ever.
TEST(TensorFile, InAFolderPipesAreRefused) {
  const std::string rule = ": it is a pipe; a model's file must be a regular file";
  const TestFolder folder, shards;
  ASSERT_EQ(mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { open_tensors(folder / "."); }), "io: cannot read " + (folder / "." / "model.safetensors").string() + rule);
  EXPECT_EQ(error_of([&] { read_file(folder / "model.safetensors"); }), "io: cannot read " + (folder / "model.safetensors").string() + rule);
  ASSERT_EQ(mkfifo((shards / "part.safetensors").c_str(), 0600), 0);
  const auto index = shards.write("model.safetensors.index.json", R"({"weight_map": {"a": "part.safetensors"}})");
  EXPECT_EQ(error_of([&] { open_tensors(index); }), "io: cannot read " + (shards / "part.safetensors").string() + rule);
  ASSERT_EQ(mkfifo((shards / "model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { open_tensors(shards / "."); }), "io: cannot read " + (shards / "." / "model.safetensors").string() + rule);
  EXPECT_EQ(error_of([] { read_file("/dev/zero"); }), "io: cannot read /dev/zero: it is a device; a model's file must be a regular file");
  EXPECT_EQ(error_of([&] { read_file(folder / "."); }), "io: cannot read " + (folder / ".").string() + ": it is a directory; a model's file must be a regular file");
  // A symbolic link to a file is read like a file.
  save_tensors(folder / "a.safetensors", {{"a", random_tensor(DType::f32, {2})}});
  std::filesystem::remove(folder / "model.safetensors");
  std::filesystem::create_symlink(folder / "a.safetensors", folder / "model.safetensors");
  EXPECT_EQ(open_tensors(folder / ".").tensors.size(), 1u);
}

TEST(TensorFile, ANameWithANulIsNeitherReadNorWritten) {
  const TestFolder folder;
  const auto path = folder.write("a.safetensors", safetensors_bytes(R"({"q\u0000weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  const std::string rule = "the name of tensor \"q\\u0000weight\" holds a NUL character, which no name may";
  EXPECT_EQ(error_of([&] { open_tensors(path); }), "format: " + path.string() + ": " + rule);
  const auto index = folder.write("b.safetensors.index.json", R"({"weight_map": {"q\u0000weight": "a.safetensors"}})");
  EXPECT_EQ(error_of([&] { open_tensors(index); }), "format: " + index.string() + ": " + rule);
  for (const char* extension : {".safetensors", ".npz", ".npy"}) {
    EXPECT_EQ(error_of([&] { save_tensors(folder / (std::string("c") + extension), {{std::string("q\0weight", 8), random_tensor(DType::f32, {1})}}); }),
              "invalid_argument: save_tensors: the name \"q\\u0000weight\" holds a NUL character, which no name may");
  }
  EXPECT_EQ(folder.count(), 2u);
}

TEST(TensorFile, AFolderIsOpenedByItsModelSafetensors) {
  const TestFolder folder;
  const Tensor tensor = random_tensor(DType::f32, {2});
  save_tensors(folder / "model.safetensors", {{"a", tensor}});
  const TensorFile file = open_tensors(folder / ".");
  EXPECT_EQ(file.path.filename(), "model.safetensors");
  expect_same(file.at("a"), tensor);
}

// Reads damaged files with the functions of tests/fuzz/file_fuzz.h: each file is read or refused, and tensors that were read can be used.
TEST(TensorFile, DamagedFilesAreReadOrRefused) {
  const TestFolder folder;
  std::vector<NamedTensor> tensors;
  for (const char* name : {"q.weight", "k.weight", "v.weight", "out.weight"}) tensors.push_back({name, random_tensor(DType::f16, {2, 2})});
  tensors.push_back({"mask", random_tensor(DType::boolean, {3})});
  std::vector<NamedTensor> one;
  one.push_back({"a", random_tensor(DType::i32, {2, 3})});
  int read = 0, refused = 0;
  for (const Format& format : format_table()) {
    if (format.write == nullptr) continue;
    const auto path = folder / ("a" + std::string(format.extension));
    save_tensors(path, format.name == "npy" ? one : tensors);
    const std::string whole = read_bytes(path);
    std::mt19937 random(7);
    for (int round = 0; round < 2000; ++round) {
      std::string damaged = whole;
      for (int change = 0; change <= round % 4; ++change) {
        const std::size_t at = random() % damaged.size();
        switch (random() % 4) {
          case 0:
            damaged[at] = static_cast<char>(random());
            break;
          case 1:
            damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
            break;
          case 2:
            damaged.erase(at, 1 + random() % 8);
            break;
          default:
            damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 16));
        }
        if (damaged.empty()) break;
      }
      SCOPED_TRACE(cat(format.name, ", round ", round));
      try {
        TensorFile file = format.read({path, std::as_writable_bytes(std::span(damaged)), nullptr});
        for (const NamedTensor& item : file.tensors) (void)Tensor::copy_of(item.tensor);
        (void)find_attention(file.tensors);
        ++read;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::StartsWith(path.string()));
        ++refused;
      }
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 3000);
}

class Shards : public ::testing::Test {
 protected:
  Shards() {
    save_tensors(folder / "one.safetensors", {{"a", a}}, {{"format", "pt"}});
    save_tensors(folder / "two.safetensors", {{"b", b}});
  }
  std::string error(const std::string& index) {
    folder.write("model.safetensors.index.json", index);
    return error_of([&] { open_tensors(folder / "."); });
  }
  TestFolder folder;
  Tensor a = random_tensor(DType::f32, {2}), b = random_tensor(DType::f64, {3});
};

TEST_F(Shards, ShardsAreReadAsOneFile) {
  ASSERT_EQ(error("{\"metadata\": {\"total_size\": 32}, \"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}}"),
            "no error");
  for (const auto& path : {folder / ".", folder / "model.safetensors.index.json"}) {
    const TensorFile file = open_tensors(path);
    EXPECT_EQ(file.format, "safetensors index");
    ASSERT_EQ(file.tensors.size(), 2u);
    expect_same(file.at("a"), a);
    expect_same(file.at("b"), b);
    EXPECT_EQ(file.metadata, (Metadata{{"format", "pt"}}));
  }
}

TEST_F(Shards, AMalformedIndexIsRefusedWithTheReason) {
  save_tensors(folder / "again.safetensors", {{"a", a}, {"c", a}});
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{", "it is not JSON at its byte 2"},
      {std::string("{\"weight_map\": {}}\0x", 20), "it is not JSON at its byte 19"},
      {"{}", "it is not an index of safetensors files, which is a JSON object with a weight_map"},
      {"{\"weight_map\": {\"a\": \"one.safetensors\", \"a\": \"two.safetensors\"}}", "it has the key \"a\" twice in \"weight_map\""},
      {"{\"weight_map\": {}, \"weight_map\": {}}", "it has the key \"weight_map\" twice"},
      {"{\"weight_map\": []}", "it is not an index of safetensors files"},
      {"{\"weight_map\": {\"a\": 1}}", "the weight_map has no file name for tensor \"a\""},
      {"{\"weight_map\": {\"a\": \"../one.safetensors\"}}",
       "puts tensor \"a\" in \"../one.safetensors\", which does not name a file in the same folder"},
      {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "which does not name a file in the same folder"},
      {"{\"weight_map\": {\"a\": \"..\"}}", "which does not name a file in the same folder"},
      {"{\"weight_map\": {\"a\": \"one.safetensors\\u0000\"}}", "which does not name a file in the same folder"},
      {"{\"weight_map\": {\"a\": \"three.safetensors\"}}", "three.safetensors: No such file or directory"},
      {"{\"weight_map\": {\"a\": \"two.safetensors\"}}", "puts tensor \"a\" in \"two.safetensors\", which does not hold it"},
      {"{\"weight_map\": {\"a\": \"one.safetensors\", \"c\": \"again.safetensors\"}}", "two of its files hold the tensor \"a\""},
  };
  for (const auto& [index, reason] : cases) EXPECT_THAT(error(index), HasSubstr(reason)) << index;
}

TEST(BuiltInFiles, AreOpenedByTheirPath) {
  const TestFolder folder;
  const Tensor tensor = random_tensor(DType::f32, {2, 3});
  save_tensors(folder / "a.safetensors", {{"a", tensor}});
  const FileBytes saved = read_file(folder / "a.safetensors");
  const std::array files{BuiltInFile{"one/model.safetensors", saved.text()}, BuiltInFile{"one/empty.txt", ""}};
  static std::span<const BuiltInFile> list;
  list = files;
  set_built_in_files(&list);
  expect_same(open_tensors("polyhead:one/model.safetensors").at("a"), tensor);
  EXPECT_EQ(read_file("polyhead:one/empty.txt").text(), "");
  for (const char* path : {"polyhead:one", "polyhead:", "polyhead:one/model.safetensors2"})
    EXPECT_THAT(error_of([&] { open_tensors(path); }), HasSubstr("No such file")) << path;
  set_built_in_files(nullptr);
  EXPECT_THAT(error_of([&] { open_tensors("polyhead:one/model.safetensors"); }), HasSubstr("No such file"));
}

}  // namespace
}  // namespace polyhead::io
