// `polyhead view --live`: a page in which readers type their own sentence, with the models that are part of the program and with a model in a folder.
#pragma once

#include <optional>
#include <string>

#include "polyhead/viewer.h"

namespace polyhead::app {

struct LiveOptions {
  // model: a folder, or empty for only the models that are part of the program. engine: a file, or empty for the engine that is part of the program.
  std::string model, page, engine, text;
  std::optional<viewer::Language> language;
};

void write_live_page(const LiveOptions& options);

}  // namespace polyhead::app
