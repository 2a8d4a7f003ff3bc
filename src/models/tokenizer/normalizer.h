// Steps that change a text before it is split: the "normalizer" of tokenizer.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "models/tokenizer/aligned_text.h"
#include "models/tokenizer/normal_form.h"
#include "models/tokenizer/precompiled.h"
#include "models/tokenizer/regex.h"

namespace polyhead::models {

struct BertNormalizer {
  bool clean_text = true;   // removes control characters, U+0000 and U+FFFD; turns each white space character into a space
  bool isolate_cjk = true;  // puts a space on both sides of each CJK ideograph
  bool strip_accents = true;
  bool lowercase = true;
};
struct Lowercase {};
struct StripAccents {};
struct StripEnds {  // removes white space at the ends of the text
  bool left = true, right = true;
};
struct ReplaceMatches {
  Regex pattern;
  std::string content;
};
struct Prepend {
  std::string text;  // nothing is put before an empty text
};
struct ByteLevelText {};
struct Nmt {};

using NormalizerStep = std::variant<BertNormalizer, NormalForm, Lowercase, StripAccents, StripEnds, ReplaceMatches, Prepend, ByteLevelText, Nmt, std::shared_ptr<const CharsMap>>;

// Applies the steps in order. Error if a step makes the text longer than growth_limit.h allows.
AlignedText normalize(AlignedText text, const std::vector<NormalizerStep>& steps);

}  // namespace polyhead::models
