// Limits how long the steps of a tokenizer may make a text. A file of 3 kB can describe steps that turn one byte into a million bytes.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/text.h"

namespace polyhead::models {

class GrowthLimit {
 public:
  // The limit for a text of `bytes` bytes. `stage` names the steps in messages: "normalizer", "decoder".
  GrowthLimit(std::string_view stage, std::size_t bytes) : stage_(stage), bytes_(bytes), limit_(64 * bytes + (std::size_t{1} << 20)) {}

  // Returns the limit in bytes. A step may stop when its result is longer.
  std::size_t limit() const { return limit_; }
  // Error if the result of a step is longer than the limit; steps are counted from 1.
  void check(std::size_t result, std::size_t step, std::string_view kind) const {
    if (result > limit_)
      fail(ErrorCode::invalid_argument, "tokenizer: ", stage_, ": step ", step, " (", kind, ") makes ", bytes_, " bytes of text longer than ", limit_, " bytes");
  }

 private:
  std::string_view stage_;
  std::size_t bytes_, limit_;
};

}  // namespace polyhead::models
