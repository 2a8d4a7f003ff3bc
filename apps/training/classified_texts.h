// Texts with a rating, or with a class.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace polyhead::training {

struct ClassifiedTexts {
  std::vector<std::string> texts;
  // The texts' ratings. If the file has labels: for each text the number of its label.
  std::vector<double> ratings;
  std::vector<std::string> labels;   // all labels, sorted; empty if the file has ratings
  std::string skipped;               // describes the lines that break the format; "" if there are none
};

// Reads a file of ratings (data.h). If less than half of its lines are ratings, reads it as lines "label TAB text".
ClassifiedTexts read_classified_texts(const std::filesystem::path& path);

}  // namespace polyhead::training
