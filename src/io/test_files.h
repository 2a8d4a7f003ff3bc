// Helpers that make and compare files for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "core/text.h"
#include "polyhead/io/tensor_file.h"
#include "support/any_tensor.h"
#include "support/temporary_folder.h"

namespace polyhead::io {

// Returns a string literal as a string, including zero bytes inside it.
template <std::size_t Size>
std::string bytes(const char (&text)[Size]) {
  return {text, Size - 1};
}

struct TestFolder : test::TemporaryFolder {
  std::size_t count() const { return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path()), std::filesystem::directory_iterator())); }
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string little_endian(std::uint64_t value, int bytes = 8) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

inline std::string safetensors_bytes(const std::string& header, const std::string& data = "") {
  return little_endian(header.size()) + header + data;
}

// Returns the message of the Error that f throws, after the name of its code: "format: …".
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    constexpr const char* kNames[] = {"invalid_argument", "unsupported", "io", "format"};
    return std::string(kNames[static_cast<std::size_t>(error.code())]) + ": " + error.what();
  }
  return "no error";
}

inline std::string bytes_of(ConstTensorView view) {
  const Tensor packed = Tensor::copy_of(view);
  const auto size = static_cast<std::size_t>(packed.numel()) * info(packed.dtype()).size;
  return size == 0 ? "" : std::string(static_cast<const char*>(packed.view().data()), size);
}

inline void expect_same(test::AnyTensor a, test::AnyTensor b) {
  EXPECT_EQ(a.dtype(), b.dtype());
  EXPECT_EQ(to_string(a.shape()), to_string(b.shape()));
  EXPECT_TRUE(bytes_of(a) == bytes_of(b));
}

// Returns a tensor of random bits, NaN payloads and subnormals included; booleans are 0 or 1.
inline Tensor random_tensor(DType dtype, const Shape& shape, std::uint32_t seed = 1) {
  Tensor tensor(dtype, shape);
  std::mt19937 random(seed);
  auto* at = static_cast<unsigned char*>(tensor.view().data());
  const auto size = static_cast<std::size_t>(tensor.numel()) * info(dtype).size;
  for (std::size_t i = 0; i < size; ++i) at[i] = static_cast<unsigned char>(dtype == DType::boolean ? random() & 1u : random() & 0xffu);
  return tensor;
}

}  // namespace polyhead::io
