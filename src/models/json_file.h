// JSON files of a model folder: read whole, with errors that name the file and the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace polyhead::models {

class JsonFile {
 public:
  explicit JsonFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  const nlohmann::json& root() const { return root_; }
  // A member of an object, or nullptr where it is missing or null. `where` names the object in messages, "" for the root.
  static const nlohmann::json* find(const nlohmann::json& object, std::string_view key);
  const nlohmann::json& require(const nlohmann::json& object, std::string_view key, std::string_view where = "") const;

  // The value of `key`; Error when it has another type. The optional forms give nullopt for a missing or null member.
  std::optional<std::int64_t> integer(const nlohmann::json& object, std::string_view key, std::string_view where = "") const;
  std::optional<double> number(const nlohmann::json& object, std::string_view key, std::string_view where = "") const;
  std::optional<bool> boolean(const nlohmann::json& object, std::string_view key, std::string_view where = "") const;
  std::optional<std::string> text(const nlohmann::json& object, std::string_view key, std::string_view where = "") const;

  [[noreturn]] void fail_at(std::string_view where, std::string_view key, std::string_view message) const;

 private:
  std::string name_;
  nlohmann::json root_;
};

}  // namespace polyhead::models
