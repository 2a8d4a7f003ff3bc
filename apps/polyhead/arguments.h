// Option values: each reader converts one word, or throws UsageError that says what is allowed.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "command.h"
#include "polyhead/tensor_view.h"

namespace polyhead::app {

std::string lower(std::string_view text);  // changes only ASCII letters to lower case

// The number that the whole word spells, or nullopt.
template <class T>
std::optional<T> parse(std::string_view word) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::int64_t read_integer(const std::string& word);
std::int64_t read_count(const std::string& word);     // reads 0, 1, 2, …
std::int64_t read_positive(const std::string& word);  // reads 1, 2, …
std::uint64_t read_seed(const std::string& word);
std::vector<std::int64_t> read_counts(const std::string& word);    // reads integers of 0 or more, separated by commas or semicolons
std::vector<std::int64_t> read_integers(const std::string& word);  // reads integers, separated by commas or semicolons
double read_number(const std::string& word);                     // reads a finite number
Shape read_shape(const std::string& word);                       // reads a shape such as "1,8,512,64"; "" is the shape of a scalar
DType read_floating(const std::string& word);                    // reads "f32", "float32", …

// Returns `word` if it is one of `names`; else UsageError that suggests the nearest name. `what` says what is named, such as "kind of pooling".
std::string read_choice(const std::string& word, std::string_view what, std::span<const std::string> names);
// Returns the enum value for `word`. `words` has the names of the enum's values, in the order of the values.
template <class Enum, std::size_t count>
Enum read_enum(const std::string& word, std::string_view what, const std::array<std::string_view, count>& words) {
  const std::vector<std::string> names(words.begin(), words.end());
  return static_cast<Enum>(std::ranges::find(names, read_choice(word, what, names)) - names.begin());
}
// Reads the word of --weighting. Returns true for "norm", norm-weighted maps, and false for "attention".
bool read_weighting(const std::string& word);

// Adds an option that calls take(value). Error messages of `take` are prefixed with the option's name; --help shows `type` for the value.
Option* add_word(Parser& parser, const std::string& name, std::function<void(const std::string&)> take, const std::string& type,
                      const std::string& description);

// Adds an option whose value is converted by `read` and stored in *target.
template <class T, class Read>
Option* add_value(Parser& parser, const std::string& name, T* target, Read read, const std::string& type,
                       const std::string& description) {
  return add_word(parser, name, [=](const std::string& word) { *target = read(word); }, type, description);
}

}  // namespace polyhead::app
