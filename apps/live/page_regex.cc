// models::Regex for the engine of live pages, which supports only the patterns of page_patterns.h. It replaces src/models/tokenizer/regex.cc, which needs
// Oniguruma.
#include "page_regex.h"

#include "core/text.h"
#include "io/json.h"
#include "models/tokenizer/gpt2_pattern.h"
#include "page_patterns.h"  // a header of apps/polyhead

struct re_pattern_buffer {
  std::string text;
  bool is_plain;
};

namespace polyhead::models {

static_assert(app::kWordsOfGpt2 == kGpt2Pattern);

Regex::Regex(std::string_view pattern, std::string_view where) : where_(where), regex_(std::make_shared<re_pattern_buffer>(std::string(pattern), false)) {
  if (!app::page_has_pattern(pattern)) fail(ErrorCode::unsupported, where, " is the pattern ", io::quote(pattern), ", which a live page does not have");
}

Regex Regex::literal(std::string_view text, std::string_view where) {
  Regex regex(app::kSpaces, where);
  regex.regex_ = std::make_shared<re_pattern_buffer>(std::string(text), true);
  return regex;
}

std::vector<Match> Regex::split(std::string_view text) const {
  if (regex_->is_plain) return live::split_at_text(text, regex_->text);
  return regex_->text == app::kSpaces ? live::split_at_spaces(text) : live::split_gpt2_words(text);
}

}  // namespace polyhead::models
