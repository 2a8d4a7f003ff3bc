// Lets `polyhead view` run `polyhead try` for models that `polyhead train` made.
#pragma once

#include <filesystem>
#include <string>

namespace polyhead::app {

struct TriedText {
  std::filesystem::path model;  // empty: the model of ratings that is part of polyhead
  std::string text;             // the text, or the path of a file of images
  std::string page;             // empty: none is written
  bool json = false;
};
void try_text(const TriedText& given);

}  // namespace polyhead::app
