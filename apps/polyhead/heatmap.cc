#include "heatmap.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string_view>

#include "colour_ramp.h"
#include "core/text.h"
#include "format.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

constexpr std::size_t kWidestWord = 14;     // largest width, in terminal columns, of the word in front of a row
constexpr std::size_t kTallestWord = 8;     // largest number of letters of the word above a column
constexpr std::size_t kCellWithNumber = 5;  // "░ 12 ": a shade, a percentage and a gap
constexpr std::size_t kWidestCell = 8;

struct Layout {
  std::size_t number = 0;  // terminal columns of a row's number; 0: rows have no numbers
  std::size_t word = 0;    // terminal columns of a row's word
  std::size_t cell = 0;    // terminal columns of a cell; 0: a list of keys instead of cells
  std::size_t margin() const { return (number > 0 ? number + 1 : 0) + word + 1; }
};

class Drawing {
 public:
  Drawing(const Heatmap& map, std::size_t width, Colour colour) : map_(map), width_(std::max<std::size_t>(width, 20)), colour_(colour) {
    for (const std::string& word : map.rows) rows_.push_back(printable(word));
    for (const std::string& word : map.columns) columns_.push_back(printable(word));
    for (std::size_t t = 0; t < rows_.size(); ++t)
      for (std::size_t s = 0; s < columns_.size(); ++s)
        largest_ = std::isfinite(weight(t, s)) ? std::max(largest_, weight(t, s)) : largest_;
    choose_layout();
  }

  std::string text() const {
    std::string result = header();
    for (std::size_t t = 0; t < rows_.size(); ++t) append(result, cat(label(t), layout_.cell > 0 ? cells(t) : list(t), "\n"));
    return result + (layout_.cell > 0 ? legend() : "");
  }

 private:
  float weight(std::size_t t, std::size_t s) const {
    const auto& w = map_.weights;
    return w.data<float>()[static_cast<std::int64_t>(t) * w.stride(0) + static_cast<std::int64_t>(s) * w.stride(1)];
  }
  float part(std::size_t t, std::size_t s) const { return largest_ > 0 ? weight(t, s) / largest_ : 0; }

  void choose_layout() {
    std::size_t longest = 1;
    for (const std::string& word : rows_) longest = std::max(longest, columns(word));
    const std::size_t keys = std::max<std::size_t>(columns_.size(), 1);
    layout_.word = std::min({longest, kWidestWord, std::max<std::size_t>(width_ / 4, 4)});
    layout_.cell = std::min(room() / keys, kWidestCell);
    if (layout_.cell >= 2) return;
    layout_.number = cat(std::max(rows_.size(), keys) - 1).size();
    if (room() < keys) layout_.word = std::min<std::size_t>(layout_.word, 6);  // shorten the words, because the grid may then fit into the line
    layout_.cell = room() >= keys ? 1 : 0;
  }

  std::size_t room() const { return width_ > layout_.margin() ? width_ - layout_.margin() : 0; }

  std::string label(std::size_t t) const {
    std::string text;
    if (layout_.number > 0) text = pad_left(cat(t), layout_.number) + " ";
    return cat(text, fit(rows_[t], layout_.word), " ");
  }

  std::string header() const {
    if (layout_.cell >= kCellWithNumber) return words_across();
    if (layout_.cell >= 2) return words_downward();
    return layout_.cell == 1 ? numbers() : "";
  }

  std::string words_across() const {
    std::string line(layout_.margin(), ' ');
    for (const std::string& word : columns_) line += fit(word, layout_.cell - 1) + " ";
    return trimmed(line) + "\n";
  }

  // Each word is written downward and ends above its column.
  std::string words_downward() const {
    std::vector<std::vector<std::string>> words;
    std::size_t height = 0;
    for (const std::string& word : columns_) {
      auto letters = characters(word);
      if (letters.size() > kTallestWord) {
        letters.resize(kTallestWord - 1);
        letters.emplace_back("…");
      }
      height = std::max(height, letters.size());
      words.push_back(std::move(letters));
    }
    std::string text;
    for (std::size_t y = 0; y < height; ++y) {
      std::string line(layout_.margin(), ' ');
      for (const auto& letters : words) {
        const std::size_t above = height - letters.size();
        line += fit(y < above ? "" : letters[y - above], layout_.cell);
      }
      text += trimmed(line) + "\n";
    }
    return text;
  }

  // The digits of a column's number, written downward. Only the last digit is repeated for every column.
  std::string numbers() const {
    std::string text;
    const std::size_t digits = cat(columns_.size() - 1).size();
    for (std::size_t y = 0; y < digits; ++y) {
      std::string line(layout_.margin(), ' ');
      for (std::size_t s = 0; s < columns_.size(); ++s) {
        const std::string number = pad_left(cat(s), digits);
        const bool last = y + 1 == digits;
        const std::string before = s > 0 ? pad_left(cat(s - 1), digits) : "";
        line += last || before.substr(0, y + 1) != number.substr(0, y + 1) ? number[y] : ' ';
      }
      text += trimmed(line) + "\n";
    }
    return text;
  }

  static std::string percent(float w) { return std::isfinite(w) ? fixed(100 * static_cast<double>(w), 0) : "nan"; }

  std::string cells(std::size_t t) const {
    std::string line;
    for (std::size_t s = 0; s < columns_.size(); ++s) {
      const bool number = layout_.cell >= kCellWithNumber;
      const std::string weight_text = number ? percent(weight(t, s)) : "";
      if (colour_ == Colour::none) {
        const std::size_t gap = layout_.cell > 2 ? 1 : 0;
        const std::size_t shades = layout_.cell - gap - (number ? 3 : 0);
        for (std::size_t i = 0; i < shades; ++i) line += shade(part(t, s));
        line += number ? pad_left(weight_text, 3) + " " : std::string(gap, ' ');
      } else {
        // The number takes three columns in the middle of the cell, so that the digits of all rows are aligned.
        line += paint(number ? std::string((layout_.cell - 2) / 2, ' ') + pad_left(weight_text, 3) : "", t, s);
      }
    }
    return colour_ == Colour::none ? trimmed(line) : line;
  }

  std::string paint(std::string_view text, std::size_t t, std::size_t s) const {
    return painted(fit(text, layout_.cell), part(t, s), colour_);
  }

  // The keys with the largest weights of a row, as many as fit on the line.
  std::string list(std::size_t t) const {
    std::vector<std::size_t> keys(columns_.size());
    std::iota(keys.begin(), keys.end(), std::size_t{0});
    std::stable_sort(keys.begin(), keys.end(), [&](std::size_t a, std::size_t b) { return weight(t, a) > weight(t, b); });
    std::string line;
    std::size_t used = layout_.margin();
    for (const std::size_t s : keys) {
      const std::string entry = cat(line.empty() ? "" : "  ", clip(columns_[s], kWidestWord), " ", percent(weight(t, s)));
      used += columns(entry);
      if ((used > width_ && !line.empty()) || percent(weight(t, s)) == "0") break;
      line += entry;
    }
    return line;
  }

  std::string legend() const {
    const auto share = [&](float p) { return percent(p * largest_); };
    if (colour_ == Colour::none) {
      std::string text;
      for (const Shade& row : kShades)
        if (row.from > 0) append(text, cat(row.block, row.block, " from ", share(row.from), "%  "));
      return wrap(cat(text, "largest ", share(1), "%"), width_);
    }
    std::string bar;
    const std::size_t steps = std::min<std::size_t>(16, width_ - 8);  // 8 columns are for "0% " before the bar and " 100%" after it
    for (std::size_t i = 0; i < steps; ++i) bar += painted(" ", static_cast<float>(i) / static_cast<float>(steps - 1), colour_);
    return cat("0% ", bar, " ", share(1), "%\n");
  }

  const Heatmap& map_;
  std::size_t width_;
  Colour colour_;
  std::vector<std::string> rows_, columns_;
  float largest_ = 0;
  Layout layout_;
};

}  // namespace

std::vector<std::string> numbers_to(std::int64_t count) {
  std::vector<std::string> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(cat(i));
  return numbers;
}

std::string render(const Heatmap& map, std::size_t width, Colour colour) { return Drawing(map, width, colour).text(); }

}  // namespace polyhead::app
