// config.json of a decoder or of a model with two sides. Notes which keys the reader asks for, so that the others can be refused.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"
#include "models/json_file.h"
#include "models/language_families.h"
#include "polyhead/models/language_model.h"

namespace polyhead::models {

class LanguageConfigFile {
 public:
  explicit LanguageConfigFile(const std::filesystem::path& path) : file_(path) {}

  const JsonFile& file() const { return file_; }
  std::string_view name() const { return file_.name(); }
  // nullptr if it is missing or null.
  const io::Json* find(std::string_view key) {
    read_.emplace_back(key);
    return JsonFile::find(file_.root(), key);
  }
  template <class T>
  std::optional<T> get(std::string_view key) {
    return find(key) == nullptr ? std::nullopt : file_.get<T>(file_.root(), key);
  }
  // In [1, most]. Absent: `otherwise`, or an Error if that is 0.
  std::int64_t size(std::string_view key, std::int64_t otherwise = 0, std::int64_t most = kMostOfAnExtent) {
    if (find(key) == nullptr && otherwise != 0) return otherwise;
    file_.require(file_.root(), key);
    const std::int64_t value = *get<std::int64_t>(key);
    if (value < 1 || value > most) fail_at(key, cat("is ", value, "; it must be in [1, ", most, "]"));
    return value;
  }
  double positive(std::string_view key, std::optional<double> otherwise = {}) {
    if (find(key) == nullptr && otherwise) return *otherwise;
    file_.require(file_.root(), key);
    const double value = *get<double>(key);
    if (!(value > 0) || value > 1e300) fail_at(key, cat("is ", value, "; it must be above 0 and finite"));
    return value;
  }
  [[noreturn]] void fail_at(std::string_view key, std::string_view message) const { file_.fail_at("", key, message); }
  [[noreturn]] void unsupported(std::string_view key, std::string_view message) const { fail(ErrorCode::unsupported, name(), ": ", key, " ", message); }

  bool was_read(std::string_view key) const { return std::ranges::find(read_, key) != read_.end(); }

  // Products of two extents do not overflow, nor does the sum of a few.
  static constexpr std::int64_t kMostOfAnExtent = std::int64_t{1} << 30;

 private:
  JsonFile file_;
  std::vector<std::string> read_;
};

// The activation that `name`, the value of `key`, means; Error that lists the known ones.
nn::Activation named_activation(const LanguageConfigFile& file, std::string_view key, std::string_view name);
// A number or a list of numbers; null or missing: none.
std::vector<std::int64_t> token_ids(const JsonFile& file, std::string_view key);
// eos_token_id of generation_config.json in the folder, else of the file.
std::vector<std::int64_t> end_tokens(LanguageConfigFile& file, const std::filesystem::path& folder);
// Error for a key that was not read and may have an effect. `without_effect`: keys of the family that have none, beside those of all families.
void require_known_keys(const LanguageConfigFile& file, std::string_view model_type, std::span<const std::string_view> without_effect, const std::vector<std::string>& ignored);

// Of the family's rope_parameters (transformers 5), or rope_theta, rope_scaling and the like (transformers 4). `width` of a head.
void read_rotary(LanguageConfigFile& file, const Family& family, LanguageModelConfig& config);

}  // namespace polyhead::models
