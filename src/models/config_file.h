// config.json, or one of the objects in it. Records which keys were read, so that all others can be refused.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"
#include "models/json_file.h"
#include "polyhead/nn/activation.h"

namespace polyhead::models {

class ConfigFile {
 public:
  // Error if the folder of the file also holds an adapter of PEFT.
  explicit ConfigFile(const std::filesystem::path& path);
  // Returns the object that is the value of a key such as "vision_config". Error if the value is not an object.
  ConfigFile part(std::string_view key) {
    ConfigFile other = *this;
    other.where_ = where_.empty() ? std::string(key) : cat(where_, ".", key);
    other.read_.clear();
    file_->require(*object_, key, where_);
    other.object_ = find(key);
    if (other.object_->as<io::Json::Object>() == nullptr) fail_at(key, cat("is ", io::describe(*other.object_), "; an object is needed"));
    return other;
  }

  const JsonFile& file() const { return *file_; }
  const io::Json& object() const { return *object_; }
  std::string_view name() const { return file_->name(); }
  // Returns the value of a key; nullptr if it is missing or null.
  const io::Json* find(std::string_view key) {
    read_.emplace_back(key);
    return JsonFile::find(*object_, key);
  }
  template <class T>
  std::optional<T> get(std::string_view key) {
    return find(key) == nullptr ? std::nullopt : file_->get<T>(*object_, key, where_);
  }
  // Throws an Error if the key is null. Needed where transformers treats null differently from a missing key.
  void require_not_null(std::string_view key) const {
    if (const io::Json* given = object_->find(key); given != nullptr && given->as<std::nullptr_t>() != nullptr) unsupported(key, "is null; a value is needed, or no key");
  }
  // Returns an integer in [1, most]. If the key is missing: `otherwise`, or an Error if `otherwise` is 0.
  std::int64_t size(std::string_view key, std::int64_t otherwise = 0, std::int64_t most = kLargestExtent) {
    if (find(key) == nullptr && otherwise != 0) return otherwise;
    file_->require(*object_, key, where_);
    const std::int64_t value = *get<std::int64_t>(key);
    if (value < 1 || value > most) fail_at(key, cat("is ", value, "; it must be in [1, ", most, "]"));
    return value;
  }
  double positive(std::string_view key, std::optional<double> otherwise = {}) {
    if (find(key) == nullptr && otherwise) return *otherwise;
    file_->require(*object_, key, where_);
    const double value = *get<double>(key);
    if (!(value > 0) || value > 1e300) fail_at(key, cat("is ", value, "; it must be above 0 and finite"));
    return value;
  }
  // Returns the activation called `name`, which is a part of the value of `key`. An unknown name is an Error that lists the known names.
  nn::Activation named_activation(std::string_view key, std::string_view name) const;
  // Returns the activation that the value of `key` names; `otherwise` if the key is missing.
  nn::Activation activation(std::string_view key, std::string_view otherwise) { return named_activation(key, get<std::string>(key).value_or(std::string(otherwise))); }
  // Error if `alias`, another name that transformers has for the integer `key`, is given with another value.
  void require_same(std::string_view key, std::string_view alias);
  // Returns the words of layer_types, one for each layer; empty if the key is missing.
  std::vector<std::string> layer_types(std::int64_t layers);
  // Error if the object has a key that is not in the list; the message names the key.
  void allow_only(std::span<const std::string_view> keys) const { file_->allow_only(*object_, keys, where_); }
  [[noreturn]] void fail_at(std::string_view key, std::string_view message) const { file_->fail_at(where_, key, message); }
  [[noreturn]] void unsupported(std::string_view key, std::string_view message) const {
    fail(ErrorCode::unsupported, name(), ": ", where_, where_.empty() ? "" : ".", key, " ", message);
  }

  bool was_read(std::string_view key) const { return std::ranges::find(read_, key) != read_.end(); }
  // Throws an Error that names a key which was not read. Some keys are allowed because they cannot change results: those in `without_effect` or in the list in
  // language_families.cc, and those with their neutral value. `remedy` ends the message.
  void require_all_read(std::string_view family, std::span<const std::string_view> without_effect, std::span<const std::string> ignored = {}, std::string_view remedy = {}) const;

  // Keys that may change results, each with the value that switches it off ("": only null does). One that was not read and has another value is an Error.
  struct Effect {
    std::string_view key, neutral;
  };
  void require_without_effect(std::string_view family, std::span<const Effect> effects) const;

  // The largest extent in a config. It is so small that products of two extents, and sums of a few such products, do not overflow.
  static constexpr std::int64_t kLargestExtent = std::int64_t{1} << 30;

 private:
  std::shared_ptr<const JsonFile> file_;
  const io::Json* object_;
  std::string where_;  // "" for the root
  std::vector<std::string> read_;
};

}  // namespace polyhead::models
