// Unicode's normal forms, with the alignment that the `tokenizers` package gives them.
#pragma once

#include "models/tokenizer/aligned_text.h"

namespace polyhead::models {

struct NormalForm {
  bool compatible = false;  // NFKC and NFKD
  bool composed = false;    // NFC and NFKC
};

// Characters that the package does not know as decomposable stay as they are; the others have utf8proc's values, which never change.
AlignedText normal_form(AlignedView text, NormalForm form);

}  // namespace polyhead::models
