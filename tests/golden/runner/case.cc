#include "golden/runner/case.h"

namespace polyhead::golden {

bool is_gradient(const std::string& name) { return name.rfind("d_", 0) == 0 && name != "d_out"; }

namespace {

bool is_expected(const std::string& name) {
  static const std::set<std::string> kOthers{"out", "weights", "lse", "out_tangent", "lse_tangent"};
  return is_gradient(name) || kOthers.count(name) > 0;
}

}  // namespace

Case read_case(const std::filesystem::path& path) {
  io::TensorFile file = io::open_tensors(path);
  const auto metadata = file.metadata.find("case");
  require(metadata != file.metadata.end(), "the file has no metadata 'case'");
  Case result;
  try {
    result.options = nlohmann::json::parse(metadata->second);
    result.name = result.options.at("name").get<std::string>();
    result.operation = result.options.at("op").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::format, "the metadata 'case': ", std::string_view(error.what()));
  }
  result.options.erase("name");
  result.options.erase("op");
  for (io::NamedTensor& named : file.tensors) {
    (is_expected(named.name) ? result.expected : result.inputs).emplace(named.name, std::move(named.tensor));
  }
  require(result.expected.count("out") > 0, "the file has no tensor 'out'");
  return result;
}

std::vector<io::NamedTensor> Reader::rest() {
  std::vector<io::NamedTensor> list;
  for (auto& [name, tensor] : inputs_) {
    if (read_.insert(name).second) list.push_back({name, tensor});
  }
  return list;
}

void Reader::finish() const {
  for (const auto& [key, value] : options_.items()) {
    require(read_.count(key) > 0, "the metadata has '", key, "', which the runner does not know for this operation");
  }
  for (const auto& [name, tensor] : inputs_) {
    require(read_.count(name) > 0, "the file has a tensor '", name, "', which the runner does not know for this operation");
  }
}

}  // namespace polyhead::golden
