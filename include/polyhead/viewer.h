// Writes one HTML page that shows the attention maps of every head. The page needs no other file and no network.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/error.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::viewer {

// The tokens along one side of an attention map. Bytes that are not valid UTF-8 are shown as U+FFFD.
struct Tokens {
  std::vector<std::string> pieces;  // as the tokenizer wrote them, "##" included
  std::vector<bool> special = {};   // [pieces] true for tokens such as [CLS], [SEP] and padding, which the page can hide; empty: all false
  std::vector<int> segment = {};    // [pieces] 0, 1, … for the parts of a text; empty: all 0
  std::vector<std::pair<std::int64_t, std::string>> unknown = {};  // tokens that the model does not know: place, and its characters in the text
};

struct Text {
  std::string text;
  Tokens queries;                   // T rows
  std::optional<Tokens> keys = {};  // S columns; if absent, the queries are also the keys (self attention)
  ConstTensorView attentions;       // attention weights [layers, heads, T, S], floating, any strides
};

// Of the page's own texts; a reader can choose the other one in its menu.
enum class Language : std::uint8_t {
  readers,  // Chinese if the reader's browser prefers it, else English
  english,
  chinese,
};

struct Page {
  std::string title;
  std::string model = {};   // shown below the title
  std::vector<Text> texts;  // if there are several, the page has a selector
  Language language = Language::readers;
};

inline constexpr std::int64_t kMaxAttentionWeights = std::int64_t{1} << 26;  // per page; such a page is 90 MB of HTML

// The page as HTML text in UTF-8. Throws Error if tokens and attentions have different sizes, if an attention weight is below 0 or above 1
// by more than 1e-3, or if all texts together have more than kMaxAttentionWeights. NaN is shown as NaN.
std::string render(const Page& page);

}  // namespace polyhead::viewer
#pragma GCC visibility pop
