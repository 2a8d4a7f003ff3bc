// The words of the teaching grammar as tables of text; grammar_words.cc explains the columns.
#pragma once

#include <span>
#include <string_view>

namespace polyhead::training {

std::span<const std::string_view> noun_rows();
std::span<const std::string_view> adjective_rows();
std::span<const std::string_view> participle_rows();
std::span<const std::string_view> verb_rows();
std::span<const std::string_view> determiner_rows();
std::span<const std::string_view> preposition_rows();
std::span<const std::string_view> place_rows();
std::span<const std::string_view> time_rows();
std::span<const std::string_view> past_time_rows();
std::span<const std::string_view> frequency_rows();
std::span<const std::string_view> modal_rows();
// Words that begin with h and take no elision.
std::span<const std::string_view> aspirated_rows();

}  // namespace polyhead::training
