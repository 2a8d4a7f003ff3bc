// Measures of attention heads over many texts: how much of its attention a head gives to the previous token, to earlier occurrences of the same token, and so
// on. Maps are measured one text at a time and then dropped, so memory does not grow with the number of texts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::viewer {

// A measure of a head on a text of T tokens. p[t,s] is the attention weight from token t to token s, x[t] is the token. Each measure is the mean over the
// queries t that are not special tokens (over all queries, if all are special) and for which it is defined:
//   previous    p[t,t-1], t >= 1                                                          Clark et al. 2019, section 3.1; Voita et al. 2019
//   next        p[t,t+1], t < T - 1                                                       Clark et al. 2019, section 3.1
//   same        p[t,t]                                                                    Clark et al. 2019, section 3.1
//   first       p[t,0]                                                                    Gu et al. 2025
//   sink        p[t,0], t >= 2 and x[t] != x[0]                                           Xiao et al. 2024; Gu et al. 2025
//   separators  sum of p[t,s] over the special tokens s >= 1                              Clark et al. 2019, section 3.2
//   induction   sum of p[t,s] over 1 <= s <= t with x[s-1] = x[t], if there is such an s  Olsson et al. 2022, "prefix matching"
//   duplicate   sum of p[t,s] over s < t with x[s] = x[t], if there is such an s          Wang et al. 2023, "duplicate token heads"
//   positional  sum over s of min(p[t,s], m[t,s]): 1 - the total variation distance (Levin and Peres 2017, chapter 4) of row t to a row m[t] that is
//               predicted from positions alone; rows are divided by their sums. A key that is the first token or a special token is identified by its position,
//               any other key by its distance s - t. m[t,s] is the mean attention that the other queries give to keys of this kind, 0 if there are none.
//   entropy     -sum over s of p log2 p, in bits, of the row divided by its sum           Clark et al. 2019, section 3.3
//   distance    sum over s of p |t - s|, in tokens, of the row divided by its sum         Vig and Belinkov 2019, "attention distance"
// `sink` leaves out the first token, its neighbour and its repetitions, because they may attend to the first token for what it says. The other queries attend to
// it only because it is first.
struct HeadMeasure {
  std::string_view name;   // the measure's name, one of those above; the page's data and JSON use it
  std::string_view title;  // the measure's name for readers: "previous token"
  // The measure names a head, for example as a "previous token" head, if there are at least 5 texts and its value is at least named_from in 9 of 10 of them. 0:
  // the measure names no head.
  double named_from = 0;
};
std::span<const HeadMeasure> head_measures();

// The tokens of a text: the queries and keys of its attention maps.
struct MeasuredTokens {
  std::span<const std::string> pieces;
  const std::vector<bool>& special;  // for each piece, true if it is a special token; empty: no token is special
};

// Returns the measures of one map [T,T] (floating, any strides) in the order of head_measures(). A measure that is not defined for the text is NaN.
std::vector<double> measure_head(ConstTensorView map, const MeasuredTokens& tokens);

// The mean and the spread of each measure of each head over texts.
class MeasuredTexts {
 public:
  struct Value {
    std::int64_t count = 0;  // number of texts in which the measure is defined
    std::int64_t held = 0;   // number of texts in which the measure is at least HeadMeasure::named_from
    double mean = 0;         // mean over the texts in which the measure is defined
    double squares = 0;      // sum of the squared differences from the mean (Welford 1962)

    double spread() const;  // sample standard deviation; NaN for fewer than two texts
  };

  // attentions: [layers,heads,T,T] floating, any strides. Error if T is not the number of tokens, or if the number of layers or heads differs from earlier texts.
  void add(ConstTensorView attentions, const MeasuredTokens& tokens);

  std::int64_t texts() const { return texts_; }
  std::int64_t layers() const { return layers_; }
  std::int64_t heads() const { return heads_; }
  std::int64_t shortest() const { return shortest_; }  // the number of tokens of the shortest text; longest(): of the longest text
  std::int64_t longest() const { return longest_; }

  // measure: index in head_measures().
  const Value& value(std::int64_t layer, std::int64_t head, std::size_t measure) const;
  // Returns whether the measure names the head: the measure is defined in at least 5 texts, and in 9 of 10 of them it is at least HeadMeasure::named_from.
  bool names(std::int64_t layer, std::int64_t head, std::size_t measure) const;

 private:
  std::int64_t texts_ = 0, layers_ = 0, heads_ = 0, shortest_ = 0, longest_ = 0;
  std::vector<Value> values_;  // [layers,heads,measures]
};

}  // namespace polyhead::viewer
#pragma GCC visibility pop
