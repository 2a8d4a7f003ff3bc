// `polyhead view --live`: a page in which readers type their own sentence, with the models that are part of the program and with a model in a folder.
#pragma once

#include <optional>
#include <string>

#include "polyhead/viewer.h"

namespace polyhead::app {

struct LiveOptions {
  std::string model, page, engine, text;  // model: a folder; empty: only the program's models. engine: a file; empty: the engine in the program
  std::optional<viewer::Language> language;
};

void write_live_page(const LiveOptions& options);

}  // namespace polyhead::app
