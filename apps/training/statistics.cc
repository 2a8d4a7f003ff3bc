#include "training/statistics.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "core/text.h"

namespace polyhead::training {
namespace {

template <class T>
void check_sizes(const char* name, std::span<const T> given, std::span<const T> wanted) {
  require(given.size() == wanted.size() && !given.empty(), name, ": ", given.size(), " numbers given for ", wanted.size(), "; there must be equally many, and at least one");
}

}  // namespace

double accuracy(std::span<const std::int64_t> given, std::span<const std::int64_t> wanted) {
  check_sizes("accuracy", given, wanted);
  std::int64_t right = 0;
  for (std::size_t i = 0; i < given.size(); ++i) right += given[i] == wanted[i];
  return static_cast<double>(right) / static_cast<double>(given.size());
}

double sign_accuracy(std::span<const double> given, std::span<const double> wanted, double least) {
  check_sizes("sign_accuracy", given, wanted);
  std::int64_t right = 0, count = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (wanted[i] == 0 || std::abs(wanted[i]) < least) continue;
    ++count;
    right += !std::isnan(given[i]) && (given[i] > 0) == (wanted[i] > 0);
  }
  return static_cast<double>(right) / static_cast<double>(count);
}

double correlation(std::span<const double> given, std::span<const double> wanted) {
  check_sizes("correlation", given, wanted);
  const auto n = static_cast<double>(given.size());
  const double mean_a = std::accumulate(given.begin(), given.end(), 0.0) / n, mean_b = std::accumulate(wanted.begin(), wanted.end(), 0.0) / n;
  double aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const double a = given[i] - mean_a, b = wanted[i] - mean_b;
    aa += a * a, bb += b * b, ab += a * b;
  }
  return aa == 0 || bb == 0 ? std::numeric_limits<double>::quiet_NaN() : ab / std::sqrt(aa) / std::sqrt(bb);
}

void AlignmentErrors::add(std::span<const Link> links, std::span<const Link> wanted) {
  using Pairs = std::set<std::pair<std::int64_t, std::int64_t>>;
  Pairs answer, possible, certain;
  for (const Link& link : links) answer.emplace(link.source, link.target);
  for (const Link& link : wanted) {
    possible.emplace(link.source, link.target);
    if (link.sure) certain.emplace(link.source, link.target);
  }
  given += std::ssize(answer), sure += std::ssize(certain);
  for (const auto& pair : answer) given_possible += possible.contains(pair), given_sure += certain.contains(pair);
}

double AlignmentErrors::rate() const { return 1 - static_cast<double>(given_sure + given_possible) / static_cast<double>(given + sure); }

}  // namespace polyhead::training
