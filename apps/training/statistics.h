// Scores of numbers, labels and word links.
#pragma once

#include <cstdint>
#include <span>

#include "training/data.h"

namespace polyhead::training {

// The share of indices at which given and wanted labels are equal.
double accuracy(std::span<const std::int64_t> given, std::span<const std::int64_t> wanted);
// The share of numbers that have the wanted sign; a given 0 counts as negative. A number is left out if its wanted number is 0 or has a magnitude below
// `least`. NaN if all numbers are left out.
double sign_accuracy(std::span<const double> given, std::span<const double> wanted, double least = 0);
// Pearson's correlation; NaN if all numbers of `given` or all numbers of `wanted` are equal.
double correlation(std::span<const double> given, std::span<const double> wanted);

// Alignment error rate (Och and Ney 2003): 1 - (|A and S| + |A and P|) / (|A| + |S|) over all sentences. A are the given links, S the sure links, P the sure
// and possible links. A link given twice counts once.
struct AlignmentErrors {
  std::int64_t given = 0, sure = 0, given_sure = 0, given_possible = 0;
  void add(std::span<const Link> links, std::span<const Link> wanted);
  double rate() const;  // NaN if there are neither given links nor sure links
};

}  // namespace polyhead::training
