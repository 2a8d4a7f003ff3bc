#include "io/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/text.h"
#include "io/foreign.h"

namespace polyhead::io::inline internal {
namespace {

constexpr std::size_t kMaxDepth = 64;  // limits the recursion of Json's destructor, one call per level

class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(std::string_view what) : what_(what) {}

  Json root;

  bool null() override { return add({nullptr}); }
  bool boolean(bool value) override { return add({value}); }
  bool number_integer(std::int64_t value) override { return add({value}); }
  bool number_unsigned(std::uint64_t value) override { return add({value}); }
  bool number_float(double value, const std::string&) override { return add({value}); }
  bool string(std::string& text) override { return add({std::move(text)}); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // JSON text has no binary values

  bool key(std::string& text) override {
    Level& level = open_.back();
    if (!level.keys.insert(text).second) {
      const std::string where = open_.size() == 1 ? "" : " in " + quote(open_[open_.size() - 2].key);
      fail(ErrorCode::format, what_, " has the key ", quote(text), " twice", where);
    }
    level.key = std::move(text);
    return true;
  }
  bool start_object(std::size_t) override { return add({Json::Object()}); }
  bool start_array(std::size_t) override { return add({Json::Array()}); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    const bool utf8 = std::string_view(error.what()).find("UTF-8") != std::string_view::npos;
    fail(ErrorCode::format, what_, " is not ", utf8 ? "UTF-8" : "JSON", " at its byte ", position);
  }

 private:
  // An array or object that is not closed yet. Until it is closed, its parent gets no further elements, so the pointer `json` stays valid.
  struct Level {
    Json* json;
    std::string key = {};  // key of the member that is being read
    std::set<std::string> keys = {};
  };

  bool add(Json json) {
    Json* added = &root;
    if (open_.empty()) {
      root = std::move(json);
    } else if (auto* array = std::get_if<Json::Array>(&open_.back().json->value)) {
      added = &array->emplace_back(std::move(json));
    } else {
      auto& members = std::get<Json::Object>(open_.back().json->value);
      members.push_back({open_.back().key, std::move(json)});
      added = &members.back().value;
    }
    if (added->as<Json::Array>() == nullptr && added->as<Json::Object>() == nullptr) return true;
    if (open_.size() == kMaxDepth) fail(ErrorCode::format, what_, " nests arrays and objects more than ", kMaxDepth, " levels deep");
    open_.push_back({added});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view what_;
  std::vector<Level> open_;
};

}  // namespace

const Json* Json::find(std::string_view key) const {
  const Object* members = as<Object>();
  if (members == nullptr) return nullptr;
  const auto member = std::ranges::find(*members, key, &Member::key);
  return member == members->end() ? nullptr : &member->value;
}

Json parse_json(std::string_view text, std::string_view what) {
  if (const std::string kind = foreign_kind(text); !kind.empty()) fail(ErrorCode::format, what, ": it is ", kind);
  // nlohmann's parser takes a NUL byte for the end of the text. JSON allows no NUL bytes, so a NUL is an error below.
  const std::string_view before_nul = text.substr(0, text.find('\0'));
  Builder builder(what);
  nlohmann::json::sax_parse(before_nul.begin(), before_nul.end(), &builder);  // the builder throws on errors
  if (before_nul.size() < text.size()) fail(ErrorCode::format, what, " is not JSON at its byte ", before_nul.size() + 1);
  return std::move(builder.root);
}

std::string describe(const Json& json) {
  if (const auto* number = json.as<std::int64_t>()) return cat("the number ", *number);
  if (const auto* number = json.as<std::uint64_t>()) return cat("the number ", *number);
  if (const auto* text = json.as<std::string>()) return quote(*text);
  constexpr std::string_view kKinds[] = {"null", "a boolean", "", "", "a number that is not a 64-bit integer", "", "an array", "an object"};
  return std::string(kKinds[json.value.index()]);
}

std::string json_string(std::string_view utf8) { return nlohmann::json(std::string(utf8)).dump(); }

std::string quote(std::string_view name) {
  std::size_t shown = 200;
  const bool cut = name.size() > shown;
  while (cut && shown > 197 && (static_cast<unsigned char>(name[shown]) & 0xc0u) == 0x80u) --shown;  // do not cut inside a UTF-8 sequence
  const nlohmann::json text = std::string(name.substr(0, shown));
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + (cut ? "…" : "");
}

bool is_utf8(std::string_view text) {
  try {
    (void)json_string(text);
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace polyhead::io::inline internal
