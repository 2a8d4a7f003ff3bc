// Regular expressions of tokenizer.json, searched by Oniguruma: the library and the syntax that the `tokenizers` package uses.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct re_pattern_buffer;  // Oniguruma's regex_t

namespace polyhead::models {

// Bytes [first,last) of a text that a pattern matches, or that lie between two matches.
struct Match {
  std::size_t first, last;
  bool matches;
};

class Regex {
 public:
  // Error if the pattern is malformed, or if it names a property that may differ between Unicode 14 and the version of Unicode in the `tokenizers` package.
  // regex_check.cc lists the properties that are allowed. `where` names the pattern in messages.
  Regex(std::string_view pattern, std::string_view where);
  // Returns a pattern that matches `text` itself.
  static Regex literal(std::string_view text, std::string_view where);

  // Splits the whole text into matches and the parts between them, in order. An empty text is one part that does not match. An empty match directly after
  // another match is left out.
  std::vector<Match> split(std::string_view text) const;

 private:
  std::string where_;
  std::shared_ptr<re_pattern_buffer> regex_;
};

// Error if the pattern names characters or properties whose meaning depends on the version of Unicode, or has more than 64 groups.
void require_stable_pattern(std::string_view pattern, std::string_view where);

}  // namespace polyhead::models
