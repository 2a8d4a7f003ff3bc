// Texts with a rating, or with a class.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace polyhead::training {

struct ClassifiedTexts {
  std::vector<std::string> texts;
  std::vector<double> ratings;       // of the texts; with labels: the number of the label
  std::vector<std::string> labels;   // sorted; empty: the file has ratings
  std::string skipped;               // lines that break the format; "" if none
};

// A file of ratings (data.h) or, if less than half of its lines are such, of lines "label TAB text".
ClassifiedTexts read_classified_texts(const std::filesystem::path& path);

}  // namespace polyhead::training
