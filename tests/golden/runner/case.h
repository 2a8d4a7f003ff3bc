// A case: the inputs, the expected results and the options of one file of golden vectors.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "core/text.h"
#include "polyhead/io/tensor_file.h"

namespace polyhead::golden {

using Tensors = std::map<std::string, Tensor>;

struct Case {
  std::string name;
  std::string operation;
  nlohmann::json options;  // the file's metadata without `name` and `op`
  Tensors inputs;          // the tensors of the file that are not results
  Tensors expected;        // the results in the file: out, weights, lse, their tangents, and every gradient d_X
};

// Reads a case from a file of golden vectors. Error if the file has no metadata `case` or no tensor `out`.
Case read_case(const std::filesystem::path& path);

bool is_gradient(const std::string& name);

// Gives an operation the options and tensors of a case, and records which of them the operation read. finish() refuses a case with an option or tensor that was
// not read, because the test would ignore it.
class Reader {
 public:
  Reader(const nlohmann::json& options, Tensors inputs) : options_(options), inputs_(std::move(inputs)) {}

  template <class T>
  std::optional<T> option(const std::string& key) {
    read_.insert(key);
    const auto found = options_.find(key);
    if (found == options_.end() || found->is_null()) return std::nullopt;
    return found->get<T>();
  }
  template <class T>
  T required(const std::string& key) {
    const std::optional<T> value = option<T>(key);
    require(value.has_value(), "the metadata lacks '", key, "'");
    return *value;
  }

  bool has(const std::string& name) const { return inputs_.count(name) > 0; }
  Tensor* find(const std::string& name) {  // nullptr if there is no such tensor
    const auto found = inputs_.find(name);
    if (found == inputs_.end()) return nullptr;
    read_.insert(name);
    return &found->second;
  }
  Tensor& tensor(const std::string& name) {
    Tensor* found = find(name);
    require(found != nullptr, "there is no tensor '", name, "'");
    return *found;
  }
  ConstTensorView view(const std::string& name) {  // absent if there is no such tensor
    const Tensor* found = find(name);
    return found ? found->view() : ConstTensorView();
  }
  // Returns the tensors that were not read so far.
  std::vector<io::NamedTensor> rest();

  void finish() const;

 private:
  const nlohmann::json& options_;
  Tensors inputs_;
  std::set<std::string> read_;
};

}  // namespace polyhead::golden
