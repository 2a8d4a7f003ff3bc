// The steps of BERT's tokenizer, and of GPT-2's, for folders without tokenizer.json.
#pragma once

#include <string>
#include <vector>

#include "models/tokenizer/pipeline.h"

namespace polyhead::models {

PipelineParts bert_pipeline(std::vector<std::string> vocabulary, const BertTokenizerOptions& options);

}  // namespace polyhead::models
