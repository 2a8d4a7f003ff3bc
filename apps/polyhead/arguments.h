// Values of options: each reader turns one word into a value or throws UsageError that says what is allowed.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "command.h"
#include "core/text.h"
#include "polyhead/tensor_view.h"

namespace polyhead::app {

std::string lower(std::string_view text);  // of ASCII letters

// The whole word as a number; absent where it is none.
template <class T>
std::optional<T> parse(std::string_view word) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::int64_t read_integer(const std::string& word);
std::int64_t read_count(const std::string& word);  // 0, 1, 2, …
double read_number(const std::string& word);       // finite
Shape read_shape(const std::string& word);         // "1,8,512,64"; "" is rank 0
DType read_dtype(const std::string& word);         // "f32", "float32", …

// One of `names`, or UsageError with the nearest.
std::string read_choice(const std::string& word, std::string_view what, std::span<const std::string> names);

// An option whose word `read` turns into *target; the message of a refused word names the option. Its type is what --help shows.
template <class T, class Read>
CLI::Option* add_value(CLI::App& parser, const std::string& name, T* target, Read read, const std::string& type,
                       const std::string& description) {
  return parser
      .add_option_function<std::string>(
          name,
          [=](const std::string& word) {
            try {
              *target = read(word);
            } catch (const std::exception& error) {
              throw UsageError(cat(name.substr(name.rfind(',') + 1), ": ", error.what()));
            }
          },
          description)
      ->type_name(type);
}

}  // namespace polyhead::app
