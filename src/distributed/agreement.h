// Arguments that ranks compare before a call, so that every rank reports the same error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "core/text.h"
#include "distributed/call.h"

namespace polyhead::distributed {

// What one rank says. All ranks of a call write the same facts in the same order; those of another call differ in the first, the operation.
class Statement {
 public:
  explicit Statement(const Call& call) { same_text("the operation", call.operation()); }

  // Must be the same on all ranks.
  void same(const char* name, std::int64_t value) { add(name, value, Type::integer, true); }
  void same(const char* name, double value);
  void same(const char* name, DType dtype) { add(name, static_cast<std::int64_t>(dtype), Type::dtype, true); }
  // Compared by a hash: an error says that it differs, not how.
  void same_text(const char* name, std::string_view text) { same_hash(name, static_cast<std::int64_t>(fnv1a(text))); }
  void same_hash(const char* name, std::int64_t hash) { add(name, hash, Type::hash, true); }
  // Of this rank alone.
  void own(const char* name, std::int64_t value) { add(name, value, Type::integer, false); }
  // Why this rank refuses the call.
  void refuse(const std::string& reason) { refusal_ = reason; }

  // Exchanges the statements. Refusal on every rank if one refuses or differs.
  void agree(Call& call);

  // After agree(): the value of a fact on each rank.
  std::vector<std::int64_t> of_ranks(const char* name) const;

 private:
  enum class Type : std::uint8_t { integer, real, dtype, hash };
  struct Fact {
    const char* name;
    Type type;
    bool same;
  };
  void add(const char* name, std::int64_t value, Type type, bool same) {
    facts_.push_back({name, type, same});
    values_.push_back(value);
  }
  static std::string text_of(Type type, std::int64_t value);

  std::vector<Fact> facts_;
  std::vector<std::int64_t> values_;
  std::string refusal_;
  std::vector<std::vector<std::int64_t>> all_;  // of each rank
};

// What f() throws as an Error; empty if nothing.
template <class F>
std::string refusal_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace polyhead::distributed
