#include "models/tokenizer/regex.h"

#include <oniguruma.h>

#include <array>
#include <new>
#include <optional>

#include "core/text.h"
#include "io/json.h"
#include "models/tokenizer/char_class.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

const OnigUChar* bytes_of(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

std::string message_of(int code, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = info != nullptr ? onig_error_code_to_str(text.data(), code, info) : onig_error_code_to_str(text.data(), code);
  return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(length)};
}

// Initialises Oniguruma once, before the first pattern. Oniguruma would do so itself, but not safely with several threads.
void initialize() {
  static const int done = [] {
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    return onig_initialize(&utf8, 1);
  }();
  if (done != ONIG_NORMAL) fail(ErrorCode::unsupported, "Oniguruma cannot start: ", message_of(done, nullptr));
}

// Replaces characters that are newer than Unicode 14 by older ones of the same class and length. Returns nullopt if the text has no such characters.
std::optional<std::string> with_stand_ins(std::string_view text) {
  std::string replaced;
  std::size_t copied = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, last] = char_at(text, at);
    if (code >= 0x80)
      if (const char32_t other = stand_in(code); other != code) {
        replaced += text.substr(copied, at - copied);
        append_char(replaced, other);
        copied = last;
      }
    at = last;
  }
  if (copied == 0) return std::nullopt;
  replaced += text.substr(copied);
  return replaced;
}

}  // namespace

Regex::Regex(std::string_view pattern, std::string_view where) : where_(where) {
  initialize();
  require_stable_pattern(pattern, where);
  OnigRegex regex = nullptr;
  OnigErrorInfo info{};
  const int code = onig_new(&regex, bytes_of(pattern), bytes_of(pattern) + pattern.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) fail(ErrorCode::format, where, " is the pattern ", io::quote(pattern), ", which Oniguruma refuses: ", message_of(code, &info));
  regex_ = std::shared_ptr<re_pattern_buffer>(regex, onig_free);
}

Regex Regex::literal(std::string_view text, std::string_view where) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view(R"(\.+*?()|[]{}^$#&-~)").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return Regex(pattern, where);
}

std::vector<Match> Regex::split(std::string_view text) const {
  if (text.empty()) return {{0, 0, false}};
  const auto replaced = with_stand_ins(text);
  const OnigUChar* const begin = bytes_of(replaced ? *replaced : text);
  const OnigUChar* const end = begin + text.size();
  const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(onig_region_new(), [](OnigRegion* old) { onig_region_free(old, 1); });
  const std::unique_ptr<OnigMatchParam, void (*)(OnigMatchParam*)> limits(onig_new_match_param(), onig_free_match_param);
  if (region == nullptr || limits == nullptr) throw std::bad_alloc();
  onig_initialize_match_param(limits.get());
  // The number of backtracks of a pattern may grow exponentially with the text. Useful patterns need only a few backtracks for each character.
  onig_set_retry_limit_in_search_of_match_param(limits.get(), 10'000'000 + 100 * text.size());

  std::vector<Match> parts;
  std::size_t done = 0, start = 0;  // done: end of the part of the text that `parts` covers
  std::optional<std::size_t> last_end;
  while (start <= text.size()) {
    const int found = onig_search_with_param(regex_.get(), begin, end, begin + start, end, region.get(), ONIG_OPTION_NONE, limits.get());
    if (found == ONIG_MISMATCH) break;
    if (found < 0) fail(ErrorCode::invalid_argument, where_, ": Oniguruma cannot search the text: ", message_of(found, nullptr));
    const auto first = static_cast<std::size_t>(region->beg[0]), last = static_cast<std::size_t>(region->end[0]);
    if (first == last && last_end == last) {
      start = start < text.size() ? char_at(text, start).last : start + 1;
      continue;
    }
    start = last;
    last_end = last;
    if (done < first) parts.push_back({done, first, false});
    parts.push_back({first, last, true});
    done = last;
  }
  if (done < text.size()) parts.push_back({done, text.size(), false});
  return parts;
}

}  // namespace polyhead::models
