// Reads a JSON file of a model folder. Errors name the file and the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/json.h"

namespace polyhead::models {

constexpr std::int64_t kMostLayers = 1 << 16;  // maximum number of layers in a config

// Returns a number of any kind; nullopt for other values.
std::optional<double> as_number(const io::Json& json);

class JsonFile {
 public:
  explicit JsonFile(const std::filesystem::path& path);
  JsonFile(std::string_view text, std::string name);

  const std::string& name() const { return name_; }
  const io::Json& root() const { return root_; }
  // Returns a member of an object; nullptr if it is missing or null.
  static const io::Json* find(const io::Json& object, std::string_view key);
  // Returns a member of an object; Error if it is missing or null. `where` names the object in messages, "" for the root.
  const io::Json& require(const io::Json& object, std::string_view key, std::string_view where = "") const;
  // Returns a member's value; nullopt if it is missing or null. Error if the value is not a T. T is std::int64_t, double, bool or std::string.
  template <class T>
  std::optional<T> get(const io::Json& object, std::string_view key, std::string_view where = "") const;

  // Error if the object has a member whose key is not in `keys`: polyhead does not read such a member, but it could change what the model computes.
  void allow_only(const io::Json& object, std::span<const std::string_view> keys, std::string_view where) const;

  [[noreturn]] void fail_at(std::string_view where, std::string_view key, std::string_view message) const;

 private:
  std::string name_;
  io::Json root_;
};

}  // namespace polyhead::models
