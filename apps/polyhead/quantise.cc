#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "command.h"
#include "core/text.h"
#include "format.h"
#include "parser.h"
#include "polyhead/io/parameters.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/sentence_model.h"
#include "terminal.h"
#include "view_input.h"

namespace polyhead::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kParameters = "model.safetensors";

struct QuantiseOptions {
  std::string model, folder;
};

void write_trained(const fs::path& from, const fs::path& to) {
  for (const auto& [name, tensor] : io::open_tensors(from).tensors)
    if (tensor.dtype() == DType::i8) fail(ErrorCode::unsupported, "'", from.string(), "' is quantised already");
  fs::create_directories(to);
  io::quantize_parameters(from / kParameters, to / kParameters);
  for (const char* const name : {"merges.txt", "terms.txt", kConfig})  // copy config.json last, because a folder with a config.json counts as a model
    if (fs::exists(from / name)) fs::copy_file(from / name, to / name);
}

// Bytes of the tensors of the folder's model, which may be in several files.
std::uint64_t bytes_of_parameters(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : io::open_tensors(folder).tensors) bytes += static_cast<std::uint64_t>(tensor.numel()) * info(tensor.dtype()).size;
  return bytes;
}

void quantise(const QuantiseOptions& o) {
  const fs::path from = o.model, to = o.folder;
  const bool trained = is_trained(from);
  if (!trained && !(fs::exists(from / kConfig) && is_encoder(from))) fail(ErrorCode::unsupported, "'", from.string(), "' is neither a folder that `polyhead train` made nor an encoder of BERT's kind");
  if (fs::exists(to) && !(fs::is_directory(to) && fs::is_empty(to))) throw UsageError(cat("--output: '", to.string(), "' exists already; give a new folder"));
  const bool is_new = !fs::exists(to);
  try {
    trained ? write_trained(from, to) : models::quantize_bert(from, to);
  } catch (...) {
    std::error_code ignored;
    if (fs::is_directory(to, ignored))
      for (const fs::directory_entry& entry : fs::directory_iterator(to)) fs::remove(entry.path(), ignored);
    if (is_new) fs::remove(to, ignored);
    throw;
  }
  print(cat(to.string(), ": ", byte_size(bytes_of_parameters(to)), " of parameters, before ", byte_size(bytes_of_parameters(from)), "\n"));
}

}  // namespace

Subcommand declare_quantise(Parser& parser) {
  const auto o = std::make_shared<QuantiseOptions>();
  parser.add_option("MODEL", o->model, "folder that `polyhead train` made, or an encoder of BERT's kind")->type_name("FOLDER")->required();
  parser.add_option("-o,--output", o->folder, "new folder for the smaller model")->type_name("FOLDER")->required();
  return {
      .examples = {{"polyhead quantise reviews -o small", "a model whose matrices are int8, for `try`, `view` and Python"},
                   {"polyhead quantise MODEL_DIR -o small", "an encoder of BERT's kind, for `view` and Python; live pages hold encoders in this form"}},
      .notes = "Each row of a matrix becomes int8 numbers with one float32 scale; a value moves by at most half a scale. The parameters become about 3.6 times smaller; merges.txt and terms.txt keep their size. Compare both models with "
               "`polyhead try TASK --score FILE`, or for encoders with `polyhead view`. Of an encoder's folder only the encoder and its tokenizer are written.\n",
      .run = [o] { quantise(*o); },
  };
}

}  // namespace polyhead::app
