// Puts special tokens around texts: the "post_processor" of tokenizer.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "polyhead/models/tokenizer.h"

namespace polyhead::models {

// A token of a text, or a special token around texts.
struct TextToken {
  std::int64_t id;
  std::string piece;
  ByteSpan span;
  int text = -1;          // 0 for the text, 1 for the second text of a pair; -1 for a special token
  int segment = 0;
  std::string found = {};  // the text in which an added token was found, with the white space that it took; empty for other tokens
};

// Makes spans shorter by the spaces with which the token's text begins and ends.
struct TrimSpans {
  bool add_prefix_space;  // the first token of a text may begin with a space that the text does not have
};

struct TemplatePart {
  int text = -1;  // 0 or 1: the tokens of this text; -1: the tokens in `special`
  int segment = 0;
  std::vector<std::pair<std::int64_t, std::string>> special{};
};
struct Template {
  std::vector<TemplatePart> single, pair;
  std::int64_t added(bool is_pair) const;  // number of special tokens that the template adds
};

using PostProcessorStep = std::variant<TrimSpans, Template>;

// Applies the steps in order. `texts` has the tokens of the text and, if there is one, of the pair; `sources` are the texts themselves.
std::vector<TextToken> post_process(std::vector<std::vector<TextToken>> texts, const std::vector<std::string_view>& sources, const std::vector<PostProcessorStep>& steps);

}  // namespace polyhead::models
