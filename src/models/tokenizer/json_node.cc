#include "models/tokenizer/json_node.h"

#include "models/tokenizer/utf8.h"

namespace polyhead::models {

using io::Json;

char32_t JsonNode::required_character(std::string_view key) const {
  const std::string text = required<std::string>(key);
  if (text.empty() || char_at(text, 0).last != text.size()) fail_at(key, cat("is ", io::quote(text), "; one character is needed"));
  return char_at(text, 0).code;
}

std::size_t JsonNode::required_count(std::string_view key) const {
  const auto count = required<std::int64_t>(key);
  if (count < 0 || count >= std::int64_t{1} << 31) fail_at(key, cat("is ", count, "; it must be in [0, 2^31)"));
  return static_cast<std::size_t>(count);
}

JsonNode JsonNode::member(std::string_view key) const {
  const Json& json = file_.require(json_, key, where_);
  if (json.as<Json::Object>() == nullptr) fail_at(key, cat("is ", io::describe(json), "; an object is needed"));
  return {file_, json, cat(where_, where_.empty() ? "" : ".", key)};
}

std::vector<JsonNode> JsonNode::list(std::string_view key) const {
  std::vector<JsonNode> nodes;
  for (const Json& json : array(key)) {
    const std::string place = cat(where_, where_.empty() ? "" : ".", key, "[", nodes.size(), "]");
    if (json.as<Json::Object>() == nullptr) file_.fail_at("", place, cat("is ", io::describe(json), "; an object is needed"));
    nodes.emplace_back(file_, json, place);
  }
  return nodes;
}

const Json::Array& JsonNode::array(std::string_view key) const {
  const Json& json = file_.require(json_, key, where_);
  if (json.as<Json::Array>() == nullptr) fail_at(key, cat("is ", io::describe(json), "; a list is needed"));
  return *json.as<Json::Array>();
}

}  // namespace polyhead::models
