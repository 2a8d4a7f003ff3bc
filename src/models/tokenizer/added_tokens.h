// Finds added tokens in a text before it is split into words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenizer/vocabulary.h"
#include "polyhead/models/tokenizer.h"

namespace polyhead::models {

// Bytes [first,last) of a text: an added token, or text without added tokens.
struct Section {
  const AddedToken* token = nullptr;  // nullptr: text without added tokens
  std::size_t first, last;
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() : contents_({}, "added_tokens") {}
  // `tokens`: each added token with the text to find, which is normalised if the token is looked for in normalised text. The tokens must outlive the
  // finder. Error if a text is empty or occurs twice.
  explicit AddedTokenFinder(std::vector<std::pair<const AddedToken*, std::string>> tokens);

  // Finds tokens from left to right, at each place the longest one. As in the `tokenizers` package, a token takes the white space behind it even if the next
  // token begins with that white space: both sections then contain it. If the next token ends inside that white space and also takes the white space before
  // it, the package panics; here the next token is not found.
  std::vector<Section> split(std::string_view text) const;

 private:
  std::vector<const AddedToken*> tokens_;
  Vocabulary contents_;  // the texts to find; their ids are indices in tokens_
};

}  // namespace polyhead::models
