// An object of tokenizer.json with its place in the file, for messages such as "tokenizer.json: pre_tokenizer.pretokenizers[1].type is ...".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/join.h"
#include "core/text.h"
#include "models/json_file.h"

namespace polyhead::models {

class JsonNode {
 public:
  JsonNode(const JsonFile& file, const io::Json& json, std::string where) : file_(file), json_(json), where_(std::move(where)) {}

  const JsonFile& file() const { return file_; }
  const io::Json& json() const { return json_; }
  const std::string& where() const { return where_; }
  std::string location(std::string_view key) const { return cat(file_.name(), ": ", where_, where_.empty() ? "" : ".", key); }

  template <class T>
  std::optional<T> get(std::string_view key) const {
    return file_.get<T>(json_, key, where_);
  }
  template <class T>
  T required(std::string_view key) const {
    file_.require(json_, key, where_);
    return *get<T>(key);
  }
  char32_t required_character(std::string_view key) const;
  std::size_t required_count(std::string_view key) const;  // an integer in [0, 2^31)

  bool has(std::string_view key) const { return JsonFile::find(json_, key) != nullptr; }
  JsonNode member(std::string_view key) const;              // Error if the member is missing or not an object
  std::vector<JsonNode> list(std::string_view key) const;   // Error if the member is missing or not a list of objects
  const io::Json::Array& array(std::string_view key) const;  // Error if the member is missing or not a list
  [[noreturn]] void fail_at(std::string_view key, std::string_view message) const { file_.fail_at(where_, key, message); }

 private:
  const JsonFile& file_;
  const io::Json& json_;
  std::string where_;
};

// One kind of step: its name in "type", the other members that it may have, and the function that reads it.
template <class Steps>
struct StepKind {
  std::string_view name;
  std::vector<std::string_view> keys;
  void (*read)(const JsonNode& node, Steps& steps);
};

// Appends the steps of a node. Error (unsupported) if the type of the node or one of its members is unknown; the message names the known ones.
template <class Steps>
void read_step(const JsonNode& node, const std::vector<StepKind<Steps>>& kinds, Steps& steps) {
  const std::string type = node.required<std::string>("type");
  for (const StepKind<Steps>& kind : kinds) {
    if (kind.name != type) continue;
    std::vector<std::string_view> keys = kind.keys;
    keys.push_back("type");
    node.file().allow_only(node.json(), keys, node.where());
    return kind.read(node, steps);
  }
  fail(ErrorCode::unsupported, node.location("type"), " is '", type, "', which is not supported; supported: ", join(kinds, &StepKind<Steps>::name));
}

// Reads a member that must have one of a few names as value. Returns the value that `choices` gives for this name.
template <class Value>
Value required_choice(const JsonNode& node, std::string_view key, std::initializer_list<std::pair<std::string_view, Value>> choices) {
  const std::string name = node.required<std::string>(key);
  for (const auto& [known, value] : choices)
    if (known == name) return value;
  fail(ErrorCode::unsupported, node.location(key), " is '", name, "'; it must be one of ", join(choices, [](const auto& choice) { return choice.first; }));
}

}  // namespace polyhead::models
