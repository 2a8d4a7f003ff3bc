// The format in which a live page carries the files of a model. The files follow each other. Each file is stored as
//   size of the name in bytes, size of the file in bytes (32 bits each, low byte first), the name, zeros up to a multiple of 64, the file, zeros up to a multiple of 4.
// So the tensors of a safetensors file are aligned as in the file, and can be used without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace polyhead::live {

inline constexpr std::size_t kPageAlignment = 64;
inline constexpr std::string_view kPageFolder = "page:";  // the name of the folder in which the WebAssembly module of a live page (apps/live) finds these files

inline void append_page_file(std::string& packed, std::string_view name, std::string_view contents) {
  const auto pad = [&](std::size_t to) { packed.resize((packed.size() + to - 1) / to * to); };
  for (const std::size_t size : {name.size(), contents.size()})
    for (int shift = 0; shift < 32; shift += 8) packed += static_cast<char>(static_cast<std::uint32_t>(size) >> shift & 0xFF);
  packed += name;
  pad(kPageAlignment);
  packed += contents;
  pad(4);
}

}  // namespace polyhead::live
