#include "training/bag_of_words.h"

#include <utf8proc.h>

#include <cmath>
#include <set>

#include "core/text.h"
#include "training/lines.h"

namespace polyhead::training {
namespace {

std::set<std::string> terms_of(std::string_view text) {
  const auto words = words_and_signs(text);
  std::set<std::string> terms(words.begin(), words.end());
  for (std::size_t i = 1; i < words.size(); ++i) terms.insert(words[i - 1] + ' ' + words[i]);
  return terms;
}

}  // namespace

std::vector<std::string> words_and_signs(std::string_view text) {
  std::vector<std::string> result;
  bool in_word = false;
  while (!text.empty()) {
    const char32_t code = take_character(text);
    const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(code));
    const auto category = utf8proc_category(lower);
    const bool letter = code == '\'' || code == 0x2019 || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO);
    if (!is_white_space(code)) {
      if (!in_word || !letter) result.emplace_back();
      char bytes[4];
      result.back().append(bytes, static_cast<std::size_t>(utf8proc_encode_char(code == 0x2019 ? '\'' : lower, reinterpret_cast<utf8proc_uint8_t*>(bytes))));
    }
    in_word = letter;
  }
  return result;
}

BagOfWords::BagOfWords(std::span<const std::string> texts, std::span<const double> ratings, const BagOfWordsConfig& config) {
  require(texts.size() == ratings.size() && !texts.empty(), "BagOfWords: ", texts.size(), " texts and ", ratings.size(), " ratings; each text needs one rating, and there must be at least one text");
  std::map<std::string, std::int64_t> counts;
  for (const std::string& text : texts)
    for (const std::string& term : terms_of(text)) ++counts[term];
  for (const auto& [term, count] : counts) {
    if (count < config.min_count) continue;
    index_.emplace(term, idf_.size());
    idf_.push_back(1 + std::log((1 + static_cast<double>(texts.size())) / (1 + static_cast<double>(count))));
  }
  std::vector<SparseRow> rows;
  for (const std::string& text : texts) rows.push_back(row_of(text));
  ridge_ = fit_ridge(rows, idf_.size(), ratings, config.ridge);
}

SparseRow BagOfWords::row_of(std::string_view text) const {
  SparseRow row;
  double squares = 0;
  for (const std::string& term : terms_of(text)) {
    const auto found = index_.find(term);
    if (found == index_.end()) continue;
    row.push_back({found->second, idf_[found->second]});
    squares += row.back().value * row.back().value;
  }
  for (SparseEntry& entry : row) entry.value /= std::sqrt(squares);
  return row;
}

double BagOfWords::predict(std::string_view text) const {
  double sum = ridge_.constant;
  for (const SparseEntry& entry : row_of(text)) sum += entry.value * ridge_.parameters[entry.column];
  return sum;
}

}  // namespace polyhead::training
