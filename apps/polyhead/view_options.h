// The options of `polyhead view`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/viewer.h"

namespace polyhead::app {

struct ViewOptions {
  std::string model, source, file, page, arrays;
  std::string measured;  // file of the texts over which --texts measures the heads
  std::vector<std::string> texts, images, without;
  std::optional<std::string> pair;
  std::optional<std::int64_t> layer, head;
  std::optional<std::string> link;  // value of --link, "QUERY,KEY"
  std::int64_t generate = 0;  // how many tokens the model generates
  std::optional<viewer::Language> language;
  std::string engine;
  bool by_norms = false;  // show norm-weighted maps instead of attention weights
  bool mean = false, truncate = false, json = false, live = false;
  std::optional<double> vector_megabytes;  // absent: the default of viewer::Page
};

}  // namespace polyhead::app
