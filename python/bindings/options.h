// Keyword arguments of attention as the library's options.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "polyhead/executor.h"
#include "polyhead/maps.h"
#include "polyhead/sdpa.h"
#include "text.h"

namespace polyhead::python {

// Words and what they stand for.
template <class T, std::size_t count>
using Choices = std::array<std::pair<std::string_view, T>, count>;

// The value of a word: choice("empty_rows", word, kEmptyRows). ValueError that lists the words for another one.
template <class T, std::size_t count>
T choice(const char* name, std::string_view word, const Choices<T, count>& choices) {
  std::string words;
  for (const auto& [known, value] : choices) {
    if (known == word) return value;
    words += text(words.empty() ? "" : ", ", "'", known, "'");
  }
  throw nb::value_error(text(name, " is '", word, "'; it may be ", words).c_str());
}

template <class T, std::size_t count>
std::string word_of(const Choices<T, count>& choices, T value) {
  for (const auto& [word, known] : choices) {
    if (known == value) return std::string(word);
  }
  return {};
}

inline constexpr Choices<EmptyRows, 3> kEmptyRows{{{"zero", EmptyRows::zero}, {"uniform", EmptyRows::uniform}, {"unmasked", EmptyRows::unmasked}}};
inline constexpr Choices<MapValue, 5> kMapValues{{{"scaled_score", MapValue::scaled_score},
                                                  {"capped_score", MapValue::capped_score},
                                                  {"score", MapValue::score},
                                                  {"probability", MapValue::probability},
                                                  {"dropped", MapValue::dropped}}};
inline constexpr Choices<Diagonal, 2> kCorners{{{"top_left", Diagonal::top_left()}, {"bottom_right", Diagonal::bottom_right()}}};

// Values of keyword arguments. TypeError and ValueError name the argument, what was given and what is allowed.
double read_number(nb::handle object, const char* name);
bool read_flag(nb::handle object, const char* name);
std::int64_t read_integer(nb::handle object, const char* name, std::int64_t least, std::int64_t most);
std::uint64_t read_seed(nb::handle object);  // None: 0
std::string read_word(nb::handle object, const char* name);
std::string read_path(nb::handle object, const char* name);                      // str, bytes or os.PathLike, as the file system encodes it
std::optional<std::string> read_optional_word(nb::handle object, const char* name);  // None: nullopt
std::vector<std::int64_t> read_integers(nb::handle object, const char* name);    // any iterable of ints
std::vector<std::string> read_words(nb::handle object, const char* name);        // any iterable of str but a str
const Backend* read_backend(nb::handle object);  // None: nullptr
inline constexpr std::int64_t kMostThreads = 1 << 16;
std::optional<int> read_num_threads(nb::handle object);

// None, "top_left", "bottom_right" or an offset. TypeError for True and False: they do not name a corner.
std::optional<Diagonal> read_diagonal(nb::handle object, const char* name);

// None, or (left, right) with None for an open side.
Window read_window(nb::handle object);

// Boolean tensors of a mask, with what keeps their memory alive.
struct MaskArrays {
  Array attend, block, attend_keys, block_keys, key_lengths;
  Mask mask(std::optional<Diagonal> causal, const Window& window) const;
};

// Everything that sdpa, its gradients and its maps have in common. Made once per call in Python; keeps its arrays alive.
struct Options {
  MaskArrays arrays;
  Array bias, dropout_keep;
  SdpaOptions sdpa;  // without the executor
  std::optional<int> num_threads;  // None: as many as the process uses
};

// The options of one call with its executor. Neither copied nor moved: `sdpa` points into it.
struct CallOptions {
  explicit CallOptions(const Options& options);
  CallOptions(const CallOptions&) = delete;
  CallOptions& operator=(const CallOptions&) = delete;

  std::optional<LimitedThreads> threads;
  SdpaOptions sdpa;
};


}  // namespace polyhead::python
