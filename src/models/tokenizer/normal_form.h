// Unicode's normal forms, with the alignment that the `tokenizers` package gives them.
#pragma once

#include "models/tokenizer/aligned_text.h"

namespace polyhead::models {

struct NormalForm {
  bool compatible = false;  // NFKC and NFKD
  bool composed = false;    // NFC and NFKC
};

// Returns a normal form. Characters that the `tokenizers` package does not decompose stay as they are; the others get utf8proc's decompositions, which are the
// same in all versions of Unicode.
AlignedText normal_form(AlignedView text, NormalForm form);

}  // namespace polyhead::models
