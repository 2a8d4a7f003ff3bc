#include "results.h"

#include <nlohmann/json.hpp>

#include "core/text.h"
#include "json.h"
#include "terminal.h"
#include "text_layout.h"

namespace polyhead::app {

void report(const std::string& what, const std::string& path, const Results& results, bool json) {
  if (json) {
    Json list = Json::array();
    for (const auto& [name, tensor] : results) list.push_back({{"name", name}, {"dtype", info(tensor.dtype()).name}, {"shape", to_json(tensor.shape())}});
    return print_json({{"operation", what}, {"output", path}, {"tensors", list}});
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, tensor] : results) rows.push_back({cat(tensor.dtype()), to_string(tensor.shape()), printable(name)});
  std::string text = cat(what, "\n", printable(path), ":\n");
  for (const std::string& line : aligned(rows)) append(text, cat("  ", line, "\n"));
  print(text);
}

}  // namespace polyhead::app
