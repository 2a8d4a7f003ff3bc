#include <algorithm>
#include <span>
#include <system_error>

#include "core/text.h"
#include "io/file_bytes.h"
#include "io/int8_rows.h"
#include "models/encoder_families.h"
#include "models/model_folder.h"
#include "models/sentence_modules.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/models/sentence_model.h"

namespace polyhead::models {
namespace {

// Returns whether load_bert() reads the tensor. load_bert() does not read poolers and the output layers of tasks. `name` is without its prefix.
bool is_of_encoder(const EncoderTensors& names, std::string_view name) {
  for (const std::string_view own : {names.words, names.positions, names.segments, names.embedding_norm, names.embedding_projection, names.relative_bias, names.final_norm})
    if (!own.empty() && name.starts_with(own) && name.substr(own.size()).starts_with('.')) return true;
  return name.starts_with(names.layer) || name == "rotary_embeddings.inv_freq";
}

// Error if the path exists and is not an empty folder.
void require_new_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error) && !error) return;
  const bool is_empty = std::filesystem::is_directory(folder, error) && std::filesystem::is_empty(folder, error);
  if (error) fail(ErrorCode::io, "quantize_bert: cannot read ", folder.string(), ": ", error.message());
  if (!is_empty) fail(ErrorCode::invalid_argument, "quantize_bert: ", folder.string(), " is not an empty folder; give a new one");
}

}  // namespace

std::vector<std::string> quantized_bert_files(const std::filesystem::path& directory) {
  std::vector<std::string> names{"model.safetensors"};
  const auto add = [&](const char* name) {
    const bool exists = io::file_exists(directory / name);
    if (exists) names.emplace_back(name);
    return exists;
  };
  if (!add("tokenizer.json"))  // if this file exists, load_tokenizer() reads none of the following files
    for (const char* name : {"vocab.txt", "vocab.json", "merges.txt"}) add(name);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) add(name);
  if (const SentenceModules modules = read_sentence_modules(directory); !modules.other_embedding.empty())
    for (const std::string& name : modules.files)
      if (std::ranges::find(names, name) == names.end() && name != "config.json") names.push_back(name);
  names.emplace_back("config.json");
  return names;
}

void quantize_bert(const std::filesystem::path& from, const std::filesystem::path& to) {
  require_new_folder(to);
  const BertConfig config = load_bert(from).encoder.config;  // throws an Error if the folder holds no encoder
  const EncoderTensors& names = find_encoder_family("config.json", config.family).tensors;
  const io::TensorFile file = io::open_tensors(from);
  const std::string words = cat(names.words, ".weight");
  const auto found = std::ranges::find_if(file.tensors, [&](const io::NamedTensor& tensor) { return tensor.name == words || tensor.name.ends_with(cat(".", words)); });
  const std::size_t prefix = found->name.size() - words.size();
  if (found->tensor.dtype() == DType::i8) fail(ErrorCode::unsupported, "quantize_bert: ", from.string(), " is quantised already");
  std::vector<io::NamedTensor> tensors;
  for (const auto& [name, tensor] : file.tensors)
    if (name.starts_with(std::string_view(found->name).substr(0, prefix)) && is_of_encoder(names, std::string_view(name).substr(prefix)))
      tensors.push_back({name, is_floating(tensor.dtype()) ? Tensor::copy_of(tensor, DType::f32) : Tensor::copy_of(tensor)});
  make_folder(to);
  const std::vector<std::string> files = quantized_bert_files(from);
  io::save_tensors(to / files.front(), io::int8_rows_of(tensors, cat("quantize_bert: ", from.string())));
  for (const std::string& name : std::span(files).subspan(1)) {
    make_folder((to / name).parent_path());
    io::write_file(to / name, io::read_file(from / name).text());
  }
}

}  // namespace polyhead::models
