// Before a distributed call computes, the ranks exchange and compare their arguments. If one rank's arguments are wrong or differ, every rank throws an error.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "core/text.h"
#include "distributed/call.h"

namespace polyhead::distributed {

// The facts that one rank states about its call. All ranks that call the same operation state the same facts in the same order; the first fact is the
// operation.
class Statement {
 public:
  explicit Statement(const Call& call) { same_text("the operation", call.operation()); }

  // Adds a fact that must be the same on all ranks.
  void same(const char* name, std::int64_t value) { add(name, value, Type::integer, true); }
  void same(std::string name, std::int64_t value) { same(names_.emplace_back(std::move(name)).c_str(), value); }
  void same(const char* name, double value);
  void same(const char* name, DType dtype) { add(name, static_cast<std::int64_t>(dtype), Type::dtype, true); }
  // Adds a text that must be the same on all ranks. Only hashes are compared, so the error names the fact but not the two texts.
  void same_text(const char* name, std::string_view text) { same_hash(name, static_cast<std::int64_t>(fnv1a(text))); }
  void same_hash(const char* name, std::int64_t hash) { add(name, hash, Type::hash, true); }
  // Adds a fact that may differ between ranks.
  void may_differ(const char* name, std::int64_t value) { add(name, value, Type::integer, false); }
  // Sets the reason why this rank refuses the call.
  void refuse(const std::string& reason) { refusal_ = reason; }

  // Exchanges the statements of all ranks. If a rank refuses the call, or a fact differs that must be the same, every rank throws Refusal.
  void agree(Call& call);

  // Returns the value of a fact on each rank. Call it after agree().
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

  std::deque<std::string> names_;  // owns the names in facts_ that are not string literals
  std::vector<Fact> facts_;
  std::vector<std::int64_t> values_;
  std::string refusal_;
  std::vector<std::vector<std::int64_t>> all_;  // [rank][fact]
};

// Returns the text of the Error that f() throws; empty if it throws none.
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
