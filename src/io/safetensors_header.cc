#include "io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/text.h"
#include "io/quote.h"

namespace polyhead::io {
namespace {

std::string known_dtypes() {
  std::string list;
  for (const DTypeInfo& row : kDTypes) list += (list.empty() ? "" : ", ") + std::string(row.safetensors);
  return list;
}

// Events instead of a document: a document would keep one of two equal keys without a word.
class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  Handler(const FileBytes& file, SafetensorsHeader& header) : file_(file), header_(header) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(std::int64_t number) override { return value(cat("the number ", number)); }
  bool number_float(double, const std::string& text) override { return value(cat("the number ", text.substr(0, 40))); }
  bool binary(nlohmann::json::binary_t&) override { return value("binary data"); }

  bool number_unsigned(std::uint64_t number) override {
    switch (where_) {
      case Where::shape:
        if (entry().shape.size() == kMaxRank) bad_tensor("has a shape of more than ", kMaxRank, " extents");
        if (number > std::numeric_limits<std::int64_t>::max()) bad_tensor("has an extent of ", number, ", which is above 2^63 - 1");
        entry().shape.push_back(static_cast<std::int64_t>(number));
        return true;
      case Where::offsets:
        if (offsets_ < 2) (offsets_ == 0 ? entry().begin : entry().end) = number;
        ++offsets_;
        return true;
      default:
        return value(cat("the number ", number));
    }
  }

  bool string(std::string& text) override {
    if (where_ == Where::metadata) {
      header_.metadata.emplace(key_, text);
      return true;
    }
    if (where_ != Where::tensor || key_ != "dtype") return value(quote(text));
    const auto row = std::ranges::find(kDTypes, text, &DTypeInfo::safetensors);
    if (row == kDTypes.end()) bad_tensor("has the dtype ", quote(text), "; polyhead reads ", known_dtypes());
    entry().dtype = row->dtype;
    return true;
  }

  bool key(std::string& text) override {
    key_ = text;
    if (!(where_ == Where::header ? names_ : keys_).insert(text).second) {
      switch (where_) {
        case Where::header:
          bad_header("has the key ", quote(text), " twice");
        case Where::metadata:
          bad_header("has the key ", quote(text), " twice in its __metadata__");
        default:
          bad_tensor("has the field ", quote(text), " twice");
      }
    }
    if (where_ == Where::tensor && text != "dtype" && text != "shape" && text != "data_offsets") {
      bad_tensor("has the field ", quote(text), "; a tensor has dtype, shape and data_offsets");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    switch (where_) {
      case Where::before:
        where_ = Where::header;
        return true;
      case Where::header:
        keys_.clear();
        where_ = key_ == "__metadata__" ? Where::metadata : Where::tensor;
        if (where_ == Where::tensor) header_.entries.emplace_back().name = key_;
        return true;
      default:
        return value("an object");
    }
  }

  bool end_object() override {
    if (where_ == Where::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!keys_.contains(field)) bad_tensor("has no ", field);
      }
    }
    where_ = where_ == Where::header ? Where::after : Where::header;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::tensor || key_ == "dtype") return value("an array");
    where_ = key_ == "shape" ? Where::shape : Where::offsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (where_ == Where::offsets && offsets_ != 2) bad_tensor("has ", offsets_, " data_offsets; there must be 2");
    where_ = Where::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    const bool utf8 = std::string_view(error.what()).find("UTF-8") != std::string_view::npos;
    bad_header("is not ", utf8 ? "UTF-8" : "JSON", " at its byte ", position);
  }

 private:
  enum class Where { before, header, metadata, tensor, shape, offsets, after };

  SafetensorsEntry& entry() { return header_.entries.back(); }

  template <class... Parts>
  [[noreturn]] void bad_header(const Parts&... parts) const {
    fail(ErrorCode::format, file_.name(), ": the safetensors header ", parts...);
  }
  template <class... Parts>
  [[noreturn]] void bad_tensor(const Parts&... parts) {
    fail(ErrorCode::format, file_.name(), ": tensor ", quote(entry().name), " ", parts...);
  }
  // A value where the format wants another one.
  bool value(const std::string& what) {
    switch (where_) {
      case Where::before:
        bad_header("is ", what, "; it must be an object");
      case Where::header:
        bad_header("has ", what, " under ", quote(key_), "; it must be an object");
      case Where::metadata:
        bad_header("has ", what, " in its __metadata__ under ", quote(key_), "; it must be a string");
      case Where::tensor:
        bad_tensor("has ", what, " as its ", key_, "; it must be ", key_ == "dtype" ? "a string" : "an array");
      case Where::shape:
        bad_tensor("has ", what, " in its shape; extents are unsigned integers");
      case Where::offsets:
        bad_tensor("has ", what, " in its data_offsets; they are two unsigned integers");
      case Where::after:
        break;
    }
    return false;
  }

  const FileBytes& file_;
  SafetensorsHeader& header_;
  Where where_ = Where::before;
  std::string key_;
  std::set<std::string> names_, keys_;  // of the header, of the object inside it
  int offsets_ = 0;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(const FileBytes& file, std::string_view json) {
  SafetensorsHeader header;
  Handler handler(file, header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &handler);  // throws through the handler
  return header;
}

}  // namespace polyhead::io
