// Texts with a rating, or with a class.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace polyhead::training {

struct ClassifiedTexts {
  std::vector<std::string> texts;
  std::vector<double> ratings;       // ratings of the texts; with labels: the number of each text's label
  std::vector<std::string> labels;   // sorted; empty: the file has ratings
  std::string skipped;               // lines that break the format; "" if none
};

// Reads a file of ratings (data.h). If less than half of its lines are ratings, reads it as lines "label TAB text".
ClassifiedTexts read_classified_texts(const std::filesystem::path& path);

}  // namespace polyhead::training
