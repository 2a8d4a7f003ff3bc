// Applies tokenizer_config.json to what tokenizer.json holds. transformers 5 reads both files: the class of the tokenizer replaces steps of tokenizer.json by
// steps that it makes from keys of tokenizer_config.json.
#pragma once

#include <filesystem>
#include <string_view>

#include "models/tokenizer/pipeline.h"

namespace polyhead::models {

// Python that writes the files of a tokenizer anew.
inline constexpr std::string_view kSaveTokenizer = "transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)";

// Follows do_lower_case, strip_accents, tokenize_chinese_chars and add_prefix_space where the class applies them, and adds the tokens that
// tokenizer_config.json names. A key that contradicts tokenizer.json and is not followed is an Error. Keys without effect are not read, such as add_bos_token:
// with a tokenizer.json, transformers leaves them out.
void apply_tokenizer_config(const std::filesystem::path& folder, PipelineParts& parts);

}  // namespace polyhead::models
