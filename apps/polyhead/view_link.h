// Ranks the heads of a model by their attention weight from one word of a text to another. The page does the same for a pinned pair (viewer/script/link.js).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "polyhead/tensor.h"

namespace polyhead::app {

struct LinkedHead {
  std::int64_t layer = 0, head = 0;
  double weight = 0;
  // The mean weight of the head's other pairs at the same distance. NaN if there is no such pair, or if queries and keys are different texts.
  double usual = 0;
};

struct WordLink {
  std::int64_t query = 0, key = 0;
  bool same_text = true;            // true if queries and keys are the same tokens
  std::vector<LinkedHead> heads{};  // largest weight first

  std::string address() const;  // selects the view of this pair; it is a part of the page's address
};

// Reads "QUERY,KEY", each a place in the text or a word of it. UsageError if a word is not in the text, or more than once.
WordLink read_link(const std::string& given, const std::vector<std::string>& queries, const std::vector<std::string>& keys, bool same_text);

// Fills link.heads from attentions [L,N,T,S]. `special` has an entry for each token: pairs with special tokens count for `usual` only if a word of the link is special.
void rank_heads(WordLink& link, const Tensor& attentions, const std::vector<bool>& special);

// The heads with the largest weights, as lines for the terminal.
std::string describe(const WordLink& link, const std::vector<std::string>& queries, const std::vector<std::string>& keys, std::size_t width);
nlohmann::json to_json(const WordLink& link);

}  // namespace polyhead::app
