// `polyhead view --live`: a page in which readers type their own sentence.
#pragma once

#include <optional>
#include <string>

#include "polyhead/viewer.h"

namespace polyhead::app {

struct LiveOptions {
  std::string page, engine, text;  // engine: path of the engine's file; empty: the engine that the program contains
  std::optional<viewer::Language> language;
};

void write_live_page(const LiveOptions& options);

}  // namespace polyhead::app
