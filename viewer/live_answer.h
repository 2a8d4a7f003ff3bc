// What the engine of a live page (apps/live) answers with: the page's script draws it as the data of a page, with exact attention weights.
#pragma once

#include <string>
#include <string_view>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

// `answer`: a JSON object, which becomes the member `answer` of the data.
std::string live_answer(const Page& page, std::string_view answer);

}  // namespace polyhead::viewer
