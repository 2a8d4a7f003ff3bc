// What all ranks say of a call before it begins, so that a wrong one is named by all.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/text.h"
#include "distributed/call.h"

namespace polyhead::distributed {

// What one rank says. All ranks write the same number of facts in the same order.
class Statement {
 public:
  // Must be the same on all ranks.
  void alike(const char* name, std::int64_t value) { add(name, value, true); }
  void alike(const char* name, double value);
  // Of this rank alone.
  void own(const char* name, std::int64_t value) { add(name, value, false); }
  // Why this rank refuses the call.
  void refuse(const std::string& reason) { refusal_ = reason; }

  // Exchanges the statements. Refusal on every rank if one refuses or differs.
  void agree(Call& call);

  // After agree(): the value of a fact on each rank.
  std::vector<std::int64_t> of_ranks(const char* name) const;

 private:
  struct Fact {
    const char* name;
    bool alike, real;
  };
  void add(const char* name, std::int64_t value, bool alike, bool real = false) {
    facts_.push_back({name, alike, real});
    values_.push_back(value);
  }
  std::string text_of(const Fact& fact, std::int64_t value) const;

  std::vector<Fact> facts_;
  std::vector<std::int64_t> values_;
  std::string refusal_;
  std::vector<std::vector<std::int64_t>> all_;  // of each rank
};

}  // namespace polyhead::distributed
