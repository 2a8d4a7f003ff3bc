#include "io/foreign.h"

#include <algorithm>
#include <array>

#include "core/ascii.h"
#include "core/text.h"

namespace polyhead::io {
namespace {

using namespace std::string_view_literals;

struct Beginning {
  std::string_view bytes, kind;
};

constexpr std::string_view kFromTorch =
    "`safetensors.torch.save_file({k: v.clone() for k, v in torch.load(PATH, weights_only=True, map_location=\"cpu\").items()}, \"model.safetensors\")` in Python converts it";

constexpr Beginning kBeginnings[] = {
    {"version https://git-lfs.github.com/spec/"sv, "a pointer of Git LFS, without the data; `git lfs pull` in its repository fetches them"},
    {"/annex/objects/"sv, "a pointer of git-annex, without the data; `git annex get` in its repository fetches them"},
    {"\x1f\x8b"sv, "compressed by gzip; `gunzip` unpacks it"},
    {"\x28\xb5\x2f\xfd"sv, "compressed by Zstandard; `unzstd` unpacks it"},
    {"\xfd"
     "7zXZ\0"sv,
     "compressed by xz; `unxz` unpacks it"},
    {"BZh"sv, "compressed by bzip2; `bunzip2` unpacks it"},
    {"GGUF"sv, "a GGUF file for llama.cpp, which polyhead does not read; give the weights from which it was converted, as safetensors"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file, as Keras writes; in Python, h5py reads it and safetensors.numpy.save_file writes its arrays"},
};

bool is_page(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  const std::string_view from = text.substr(first);
  return std::ranges::any_of(std::array{"<!doctype"sv, "<html"sv, "<?xml"sv}, [&](std::string_view start) {
    return from.size() >= start.size() && std::equal(start.begin(), start.end(), from.begin(), [](char a, char b) { return a == lower_ascii(b); });
  });
}

std::size_t byte_of(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

// torch.save writes a zip archive. Its first member is NAME/data.pkl.
bool is_torch_archive(std::string_view text) {
  constexpr std::size_t kLength = 26, kName = 30;  // byte offsets in a member's header
  if (!text.starts_with("PK\x03\x04") || text.size() < kName) return false;
  return text.substr(kName, byte_of(text, kLength) | byte_of(text, kLength + 1) << 8).ends_with("data.pkl");
}

// A CTranslate2 model begins with a 32-bit version, a 16-bit length and the name of the model's class, which ends in "Spec" and a NUL.
bool is_ctranslate2(std::string_view text) {
  if (text.size() < 6 || byte_of(text, 0) > 32 || text.substr(1, 3) != "\0\0\0"sv) return false;
  return text.substr(6, byte_of(text, 4) | byte_of(text, 5) << 8).ends_with("Spec\0"sv);
}

// ONNX is a protocol buffer: field 1 is the version of the format, field 2 the name of the program that wrote it.
bool is_onnx(std::string_view text) {
  if (text.size() < 5 || text[0] != '\x08' || byte_of(text, 1) < 3 || byte_of(text, 1) > 32 || text[2] != '\x12') return false;
  const std::string_view program = text.substr(4, byte_of(text, 3));
  return !program.empty() && std::ranges::all_of(program, [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

std::string torch_checkpoint() { return cat("a checkpoint of torch.save; ", kFromTorch); }

std::string foreign_kind(std::string_view text) {
  for (const Beginning& row : kBeginnings) {
    if (text.starts_with(row.bytes)) return std::string(row.kind);
  }
  if (is_page(text)) return "an HTML or XML page, perhaps a server's error that was saved under this name";
  if (is_torch_archive(text) || text.starts_with("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9"sv)) return torch_checkpoint();
  if (text.size() > 2 && text[0] == '\x80' && text[1] >= '\x02' && text[1] <= '\x05') return cat("a pickle of Python, which polyhead does not open, because opening one may run any program. If torch.save wrote it, ", kFromTorch);
  if (is_ctranslate2(text)) return "a model of CTranslate2, which polyhead does not read; give the weights from which it was converted, as safetensors";
  if (is_onnx(text)) return "an ONNX model, which polyhead does not read; give the weights from which it was exported, as safetensors";
  return {};
}

}  // namespace polyhead::io
