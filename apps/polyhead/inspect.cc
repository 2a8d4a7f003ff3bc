#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.h"
#include "core/join.h"
#include "format.h"
#include "json.h"
#include "parser.h"
#include "polyhead/io/attention_parameters.h"
#include "polyhead/io/tensor_file.h"
#include "polyhead/models/model_config.h"
#include "polyhead/models/model_families.h"
#include "terminal.h"
#include "text_layout.h"
#include "view_input.h"

namespace polyhead::app {
namespace {

struct InspectOptions {
  std::string path;
  bool families = false, json = false;
};

std::uint64_t bytes_of(const Tensor& tensor) { return static_cast<std::uint64_t>(tensor.numel()) * info(tensor.dtype()).size; }

// Returns `title`, followed by a line "name  value" for each row.
std::string section(std::string_view title, const std::vector<std::pair<std::string, std::string>>& rows, std::size_t width) {
  if (rows.empty()) return {};
  std::size_t longest = 0;
  for (const auto& [name, value] : rows) longest = std::max(longest, columns(name));
  longest = std::min<std::size_t>(longest, 20);
  std::string text = cat("\n", title, "\n");
  for (const auto& [name, value] : rows) {
    append(text, hang(cat("  ", printable(name), "  "), printable(value), 2 + longest + 2, width));
  }
  return text;
}

// A prefix of parameter names, split at its last number, which is the number of the layer: "encoder.layer.3." -> {"encoder.layer.", "3", "."}.
struct Numbered {
  std::string before, number, after;
};

Numbered split_number(const std::string& prefix) {
  const std::size_t last = prefix.find_last_of("0123456789");
  if (last == std::string::npos) return {prefix, "", ""};
  const std::size_t before = prefix.find_last_not_of("0123456789", last);
  const std::size_t first = before == std::string::npos ? 0 : before + 1;
  return {prefix.substr(0, first), prefix.substr(first, last - first + 1), prefix.substr(last + 1)};
}

std::string place(const std::string& prefix) { return prefix.empty() ? "without prefix" : cat("at ", prefix); }

// The rows about attention layers. Layers whose prefixes differ only in the number share one row.
std::vector<std::pair<std::string, std::string>> attention_rows(const std::vector<io::LayoutMatch>& matches, const Json& config) {
  const auto heads = config.find("heads");
  const std::string by_config = heads != config.end() && heads->is_number_integer()
                                 ? cat(counted(heads->get<std::int64_t>(), "head"), " by config.json")
                                 : "number of heads not in the file";
  std::vector<std::pair<std::string, std::string>> rows;
  for (std::size_t i = 0; i < matches.size();) {
    const io::LayoutMatch& first = matches[i];
    const Numbered start = split_number(first.prefix);
    std::size_t end = i + 1;
    for (; end < matches.size() && !start.number.empty(); ++end) {
      const Numbered next = split_number(matches[end].prefix);
      const bool same = matches[end].layout == first.layout && matches[end].heads == first.heads &&
                        matches[end].kv_heads == first.kv_heads && next.before == start.before && next.after == start.after &&
                        !next.number.empty();
      if (!same) break;
    }
    const auto count = static_cast<std::int64_t>(end - i);
    const std::string last = split_number(matches[end - 1].prefix).number;
    std::string text = count == 1 ? place(first.prefix) : place(cat(start.before, "{", start.number, "..", last, "}", start.after));
    append(text, cat(", ", counted(count, "layer"), ", ", counted(first.names.size(), "tensor"), count > 1 ? " each" : ""));
    append(text, cat(", ", first.heads == 0 ? by_config : counted(first.heads, "head")));
    if (first.kv_heads != first.heads && first.kv_heads != 0) append(text, cat(", ", counted(first.kv_heads, "key/value head")));
    rows.emplace_back(first.layout, text);
    i = end;
  }
  return rows;
}

std::string tensor_table(const io::TensorFile& file, std::size_t width) {
  if (file.tensors.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  std::size_t longest = 0;
  for (const auto& [name, tensor] : file.tensors) {
    rows.push_back({cat(tensor.dtype()), to_string(tensor.shape()), byte_size(bytes_of(tensor))});
    longest = std::max(longest, columns(printable(name)));
  }
  const std::vector<std::string> facts = aligned(rows, 2);
  // If a line would be too wide, dtype, shape and size are written below the tensor's name. Names are never shortened, so that they can be copied.
  const bool below = 2 + facts[0].size() + 2 + longest > width;
  std::string text = "\nTensors\n";
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const std::string name = printable(file.tensors[i].name);
    append(text, below ? cat("  ", name, "\n      ", facts[i], "\n") : cat("  ", facts[i], "  ", name, "\n"));
  }
  return text;
}

std::string as_text(const io::TensorFile& file, const Json& config, const std::vector<io::LayoutMatch>& matches, std::size_t width) {
  std::uint64_t bytes = 0;
  std::int64_t values = 0;
  for (const auto& [name, tensor] : file.tensors) {
    bytes += bytes_of(tensor);
    values += tensor.numel();
  }
  std::string text = wrap(cat(printable(file.path.string()), ": ", file.format, ", ", counted(file.tensors.size(), "tensor"), ", ",
                              counted(values, "value"), ", ", byte_size(bytes)),
                          width);
  std::vector<std::pair<std::string, std::string>> rows;
  for (const auto& [key, value] : config.items()) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', ' ');
    rows.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  append(text, section("Configuration", rows, width));
  rows = attention_rows(matches, config);
  append(text, rows.empty() ? std::string("\nAttention\n  no layer of a known layout\n") : section("Attention", rows, width));
  rows.assign(file.metadata.begin(), file.metadata.end());
  append(text, section("Metadata", rows, width));
  return cat(text, tensor_table(file, width));
}

Json as_json(const io::TensorFile& file, const Json& config, const std::vector<io::LayoutMatch>& matches) {
  Json tensors = Json::array(), attention = Json::array();
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors) {
    tensors.push_back(
        {{"name", name}, {"dtype", info(tensor.dtype()).name}, {"shape", to_json(tensor.shape())}, {"bytes", bytes_of(tensor)}});
    bytes += bytes_of(tensor);
  }
  for (const io::LayoutMatch& match : matches) {
    attention.push_back({{"layout", match.layout},
                         {"prefix", match.prefix},
                         {"heads", match.heads == 0 ? Json(nullptr) : Json(match.heads)},
                         {"kv_heads", match.kv_heads == 0 ? Json(nullptr) : Json(match.kv_heads)},
                         {"tensors", match.names}});
  }
  return {{"path", file.path.string()}, {"format", file.format},     {"bytes", bytes},    {"config", config},
          {"attention", attention},     {"metadata", file.metadata}, {"tensors", tensors}};
}

// True for the scales of int8 rows that quantize_parameters() stores.
bool is_scale(const io::TensorFile& file, std::string_view name) {
  constexpr std::string_view kEnd = ".scale";
  const Tensor* const rows = name.ends_with(kEnd) ? file.find(name.substr(0, name.size() - kEnd.size())) : nullptr;
  return rows != nullptr && rows->dtype() == DType::i8;
}

// The families of models, in columns or as JSON.
void show_families(const InspectOptions& o) {
  if (!o.path.empty()) throw UsageError("--families lists the families of models that polyhead opens, and reads no file; leave out PATH");
  const std::vector<models::ModelFamily> families = models::model_families();
  if (o.json) {
    Json rows = Json::array();
    for (const models::ModelFamily& family : families) {
      rows.push_back({{"kind", family.kind}, {"model_type", family.model_type}});
      rows.back()["refused"] = family.refused.empty() ? Json() : Json(family.refused);
    }
    return print_json({{"families", rows}});
  }
  std::size_t longest = 0;
  for (const models::ModelFamily& family : families) longest = std::max(longest, columns(family.model_type));
  std::string text;
  std::string_view kind;
  for (const models::ModelFamily& family : families) {
    if (family.kind != kind) append(text, cat(text.empty() ? "" : "\n", family.kind, "\n"));
    kind = family.kind;
    append(text, family.refused.empty() ? cat("  ", family.model_type, "\n") : hang(cat("  ", family.model_type), cat("refused: ", family.refused), 2 + longest + 2, table_width()));
  }
  print(text);
}

void inspect(const InspectOptions& o) {
  if (o.families) return show_families(o);
  if (o.path.empty()) throw UsageError("PATH is required: a file of tensors or a model's folder; only --families needs none");
  if (o.path == "-") throw UsageError("standard input cannot be inspected; give a file (./- for a file that is named -)");
  const io::TensorFile file = io::open_tensors(o.path);
  Json config = Json::object();
  for (const models::ConfigEntry& entry : models::read_config(o.path)) std::visit([&](const auto& value) { config[entry.name] = value; }, entry.value);
  if (is_trained(o.path)) {  // scales of int8 rows are not counted as parameters
    std::int64_t parameters = 0;
    for (const auto& [name, tensor] : file.tensors) parameters += is_scale(file, name) ? 0 : tensor.numel();
    config["parameters"] = parameters;
  }
  const std::vector<io::LayoutMatch> matches = io::find_attention(file.tensors);
  if (o.json) return print_json(as_json(file, config, matches));
  print(as_text(file, config, matches, table_width()));
}

}  // namespace

Subcommand declare_inspect(Parser& parser) {
  const auto o = std::make_shared<InspectOptions>();
  const std::string extensions = join(io::formats(), &io::FormatDescription::extension);
  parser.add_option("PATH", o->path, cat("a file of tensors (", extensions, "), or a model's folder"));
  parser.add_flag("--families", o->families, "list the families of models that open, by the model_type of their config.json, and some that are refused, with the reason");
  parser.add_flag("--json", o->json, "machine-readable, one object on one line");
  return {
      .examples = {{"polyhead inspect model.safetensors", "format, attention layers, metadata and all tensors"},
                   {"polyhead inspect MODEL_DIR", "the same for a model's folder, and its configuration; for a model that `polyhead train` made, also the number of parameters"},
                   {"polyhead inspect --families", "which models open"},
                   {"polyhead inspect arrays.npz --json | jq .tensors", "JSON for other programs"}},
      .notes =
          "JSON: {path, format, bytes, config: {layers, heads, width, vocabulary, ...}, attention: [{layout, prefix, heads, kv_heads, "
          "tensors}], metadata, tensors: [{name, dtype, shape, bytes}]}; heads is null if the file does not say it. --families: {families: [{kind, model_type, refused}]}; refused is null for a family that opens.\n",
      .run = [o] { inspect(*o); },
  };
}

}  // namespace polyhead::app
