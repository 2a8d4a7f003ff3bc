#include "suggest.h"

#include <algorithm>

#include "arguments.h"
#include "core/edit_distance.h"
#include "core/join.h"

namespace polyhead::app {

std::string closest(std::string_view word, std::span<const std::string> candidates) {
  const std::size_t bare = word.substr(std::min(word.find_first_not_of('-'), word.size())).size();
  if (bare == 0 || word.size() > 64) return {};
  for (const std::string& candidate : candidates) {
    if (lower(candidate) == lower(word)) return candidate;
  }
  if (bare >= 2) {
    for (const std::string& candidate : candidates) {
      if (candidate.starts_with(word)) return candidate;
    }
  }
  std::string best;
  std::size_t nearest = std::max<std::size_t>(1, (bare + 1) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    // Require that at least one letter is kept: a candidate without a common letter is another word, not the correct spelling.
    if (distance < nearest && distance < bare) {
      nearest = distance;
      best = candidate;
    }
  }
  return best;
}

std::string unknown_name(std::string_view word, std::string_view what, std::span<const std::string> candidates) {
  std::string text = cat("'", word, "' is not a ", what);
  const std::string near = closest(word, candidates);
  return near.empty() ? cat(text, "; choose from ", join(candidates)) : cat(text, "; did you mean '", near, "'?");
}

}  // namespace polyhead::app
