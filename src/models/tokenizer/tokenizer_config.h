// Applies tokenizer_config.json to what tokenizer.json holds. transformers 5 reads both files: the class of the tokenizer replaces steps of tokenizer.json by
// steps that it makes from keys of tokenizer_config.json.
#pragma once

#include <filesystem>
#include <string_view>

#include "models/json_file.h"
#include "models/tokenizer/pipeline.h"

namespace polyhead::models {

// Python code, shown in messages: it lets transformers write the files of a tokenizer again.
inline constexpr std::string_view kSaveTokenizer = "transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)";

// Reads an object with a token's "content" and flags, as AddedToken of transformers: a missing `normalized` means that the token is not special. `named`: the
// token is special whatever its flags say. The id is -1.
AddedToken read_added_token(const JsonFile& file, const io::Json& json, std::string_view where, bool named = false);

// Applies tokenizer_config.json as the class of the tokenizer in transformers does.
// - do_lower_case, strip_accents, tokenize_chinese_chars and add_prefix_space are followed where the class applies them.
// - The tokens that tokenizer_config.json names are added.
// - An Error: split_special_tokens; and cls_token, sep_token, bos_token, eos_token, keep_accents, add_prefix_space, do_lower_case or flags of added tokens that
//   contradict tokenizer.json and are not followed. A missing key counts with the default of the class, except keep_accents and, in classes other than BERT's,
//   do_lower_case.
// - Keys without effect, such as add_bos_token, are not read: with a tokenizer.json, transformers ignores them.
void apply_tokenizer_config(const std::filesystem::path& folder, PipelineParts& parts);

}  // namespace polyhead::models
