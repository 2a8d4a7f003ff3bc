// Writes the answer of a live page's engine (apps/live) as JSON. The JSON has the same format as the data of other pages, with attention weights in float32. The page's
// script draws the maps from it.
#pragma once

#include <string>
#include <string_view>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

// Returns the page's data as JSON. `answer` is a JSON object, which becomes the member `answer` of these data.
std::string live_answer(const Page& page, std::string_view answer);

}  // namespace polyhead::viewer
