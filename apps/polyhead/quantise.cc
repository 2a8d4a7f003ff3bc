#include <filesystem>
#include <memory>
#include <string>

#include "command.h"
#include "core/text.h"
#include "format.h"
#include "parser.h"
#include "polyhead/io/parameters.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/model_config.h"
#include "terminal.h"

namespace polyhead::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kParameters = "model.safetensors";

struct QuantiseOptions {
  std::string model, folder;
};

void quantise(const QuantiseOptions& o) {
  const fs::path from = o.model, to = o.folder;
  bool trained = false;
  for (const models::ConfigEntry& entry : models::read_config(from))
    if (const auto* kind = std::get_if<std::string>(&entry.value); kind != nullptr && entry.name == "model") trained = kind->starts_with("polyhead-");
  if (!trained) fail(ErrorCode::unsupported, "'", from.string(), "' is no folder that `polyhead train` made");
  for (const auto& [name, tensor] : io::open_tensors(from).tensors)
    if (tensor.dtype() == DType::i8) fail(ErrorCode::unsupported, "'", from.string(), "' is quantised already");
  if (fs::exists(to) && !(fs::is_directory(to) && fs::is_empty(to))) throw UsageError(cat("--output: '", to.string(), "' exists already; give a new folder"));
  const bool is_new = fs::create_directories(to);
  try {
    io::quantize_parameters(from / kParameters, to / kParameters);
    for (const char* const name : {"merges.txt", "terms.txt", kConfig})  // config.json last: a folder counts as a model once it has one
      if (fs::exists(from / name)) fs::copy_file(from / name, to / name);
  } catch (...) {
    for (const char* const name : {"merges.txt", "terms.txt", kConfig, kParameters}) fs::remove(to / name);
    if (is_new) fs::remove(to);
    throw;
  }
  print(cat(to.string(), ": ", byte_size(fs::file_size(to / kParameters)), " of parameters, before ", byte_size(fs::file_size(from / kParameters)), "\n"));
}

}  // namespace

Subcommand declare_quantise(Parser& parser) {
  const auto o = std::make_shared<QuantiseOptions>();
  parser.add_option("MODEL", o->model, "folder that `polyhead train` made")->type_name("FOLDER")->required();
  parser.add_option("-o,--output", o->folder, "new folder for the smaller model")->type_name("FOLDER")->required();
  return {
      .examples = {{"polyhead quantise reviews -o small", "a model whose matrices are int8, for `try`, `view` and Python"}},
      .notes = "Each row of a matrix becomes int8 numbers with one float32 scale; a value moves by at most half a scale. The parameters become about 3.6 times smaller; merges.txt and terms.txt keep their size. Compare both models with "
               "`polyhead try TASK --score FILE`.\n",
      .run = [o] { quantise(*o); },
  };
}

}  // namespace polyhead::app
