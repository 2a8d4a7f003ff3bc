// Converts Python arguments to the library's options.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "core/option_words.h"
#include "core/text.h"
#include "polyhead/executor.h"
#include "polyhead/maps.h"
#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/sdpa.h"

namespace polyhead::python {

// The words that are allowed for an argument, and the value of each word.
template <class T, std::size_t count>
using Choices = std::array<std::pair<std::string_view, T>, count>;

// The value of a word, as in choice("empty_rows", word, kEmptyRows). For an unknown word, throws a ValueError that lists the known words.
template <class T, std::size_t count>
T choice(const char* name, std::string_view word, const Choices<T, count>& choices) {
  std::string words;
  for (const auto& [known, value] : choices) {
    if (known == word) return value;
    words += cat(words.empty() ? "" : ", ", "'", known, "'");
  }
  throw nb::value_error(cat(name, " is '", word, "'; it may be ", words).c_str());
}

template <class T, std::size_t count>
std::string word_of(const Choices<T, count>& choices, T value) {
  for (const auto& [word, known] : choices) {
    if (known == value) return std::string(word);
  }
  return {};
}

// The choices of an enum. `words` has a word for each value of the enum, in the order of the values.
template <class Enum, std::size_t count>
constexpr Choices<Enum, count> choices_of(const std::array<std::string_view, count>& words) {
  Choices<Enum, count> choices;
  for (std::size_t i = 0; i < count; ++i) choices[i] = {words[i], static_cast<Enum>(i)};
  return choices;
}

inline constexpr Choices<Diagonal, 2> kCorners{{{"top_left", Diagonal::top_left()}, {"bottom_right", Diagonal::bottom_right()}}};
inline constexpr auto kEmptyRows = choices_of<EmptyRows>(kEmptyRowsWords);
inline constexpr auto kPrecisions = choices_of<Precision>(kPrecisionWords);
inline constexpr auto kPoolings = choices_of<Pooling>(kPoolingWords);
inline constexpr auto kGlobalQueries = choices_of<nn::GlobalQuery>(kGlobalQueryWords);
inline constexpr Choices<nn::RotaryOrder, 2> kRotaryOrders{{{"halves", nn::RotaryOrder::halves}, {"pairs", nn::RotaryOrder::pairs}}};

// These functions convert the value of an argument. They throw a TypeError or ValueError that says which argument is wrong, what was given and what is allowed.
double read_number(nb::handle object, const char* name);
bool read_flag(nb::handle object, const char* name);
std::int64_t read_integer(nb::handle object, const char* name, std::int64_t least, std::int64_t most);
std::uint64_t read_seed(nb::handle object);
std::string read_word(nb::handle object, const char* name);
std::string read_path(nb::handle object, const char* name);                          // str, bytes or os.PathLike, in the encoding of the file system
std::optional<std::string> read_optional_word(nb::handle object, const char* name);  // None: nullopt
std::vector<std::int64_t> read_integers(nb::handle object, const char* name);        // any iterable of ints with an order
std::vector<double> read_numbers(nb::handle object, const char* name);               // any iterable of numbers with an order
std::vector<std::string> read_words(nb::handle object, const char* name);            // any iterable of str, except a str itself
MapValue read_map_value(nb::handle object);
inline constexpr std::int64_t kMostThreads = 1 << 16;
std::optional<LimitedThreads> read_num_threads(nb::handle object);  // None: nullopt

// The arguments of one call. The object cannot be copied or moved, because its options point into it.
struct CallArguments {
  CallArguments() { arrays.reserve(4); }
  CallArguments(const CallArguments&) = delete;
  CallArguments& operator=(const CallArguments&) = delete;
  ConstTensorView keep(Array array) { return arrays.emplace_back(std::move(array)).view(); }
  ConstTensorView required(nb::handle given, const char* name) { return keep(Array::required(given, name)); }

  std::vector<Array> arrays;  // the arrays to whose memory the views in the options refer
  std::optional<LimitedThreads> threads;  // nullopt: polyhead.num_threads()
};

// The keyword arguments of sdpa, its gradients or its maps (SdpaOptions of _options.py). The constructor throws a TypeError for an unknown keyword, which names
// the Python function and arguments with similar names.
struct SdpaCall : CallArguments {
  SdpaCall() = default;
  SdpaCall(const char* function, nb::handle given);
  SdpaOptions sdpa;
};

struct Cache;

// The arguments of a layer's pass; the keywords are LayerOptions of _options.py.
struct LayerCall : CallArguments {
  LayerCall(const char* function, nb::handle given);
  nn::AttentionInput input;
  nn::AttentionOptions options;  // options.cache points to cache->cache
  Cache* cache = nullptr;
};

}  // namespace polyhead::python
