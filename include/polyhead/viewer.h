// One self-contained HTML page that shows every head's attention: opens from disk, asks the network for nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/tensor_view.h"

namespace polyhead::viewer {

// The words along one side of a map. Bytes that are not UTF-8 are shown as U+FFFD.
struct Tokens {
  std::vector<std::string> pieces;  // as the tokenizer wrote them, "##" included
  std::vector<bool> special = {};   // [pieces] true for [CLS], [SEP], padding and the like: the page can hide them; empty: none is
  std::vector<int> segment = {};    // [pieces] 0, 1, … where a text has several parts; empty: all 0
};

struct Text {
  std::string text;
  Tokens queries;                   // T rows
  std::optional<Tokens> keys = {};  // S columns; absent: the queries once more (self attention)
  ConstTensorView attentions;       // [layers, heads, T, S] floating, probabilities; any strides
};

struct Page {
  std::string title;
  std::string model = {};   // named beneath the title
  std::vector<Text> texts;  // more than one: the page has a selector
};

// How weights are stored. One encoding serves the whole page; the page says which and shows no more digits than it holds.
enum class Encoding : std::uint8_t {
  linear16,      // even steps of 1/65534 on [0, 1]: off by at most 7.7e-6
  logarithmic8,  // steps of a factor 2^(1/14): off by at most 2.6 % of the weight, and 0 below 3.5e-6
};

inline constexpr std::int64_t kMaxLinearWeights = std::int64_t{1} << 23;  // on one page: 22 MB of HTML; 8 bits beyond
inline constexpr std::int64_t kMaxWeights = std::int64_t{1} << 26;        // 90 MB of HTML; more is an Error

Encoding choose_encoding(std::int64_t weights);

// The page as HTML text in UTF-8. Error where the sizes of tokens and attentions disagree, a weight is below 0 or above 1 by more than
// 1e-3, or the texts have more than kMaxWeights weights together. NaN weights are kept and shown as NaN.
std::string render(const Page& page);

}  // namespace polyhead::viewer
