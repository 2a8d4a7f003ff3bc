// Lets `polyhead view` run `polyhead try` for models that `polyhead train` made.
#pragma once

#include <filesystem>
#include <string>

namespace polyhead::app {

struct TriedText {
  std::filesystem::path model;  // the model's folder; empty for the model of ratings that is part of polyhead
  std::string text;             // the text, or the path of an image or of a file of images
  std::string page;             // path of the page; empty to write no page
  bool json = false;
};
void try_text(const TriedText& given);

}  // namespace polyhead::app
