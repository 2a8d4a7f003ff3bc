// The pattern by which GPT-2's tokenizer splits a text into words, as tokenizer.json writes it.
#pragma once

#include <string_view>

namespace polyhead::models {

inline constexpr std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace polyhead::models
