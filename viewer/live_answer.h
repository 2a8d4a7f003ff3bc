// The answer of a live page's engine (apps/live): the same data as in other pages, with exact attention weights. The page's script draws it.
#pragma once

#include <string>
#include <string_view>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

// `answer`: a JSON object, which becomes the member `answer` of the data.
std::string live_answer(const Page& page, std::string_view answer);

}  // namespace polyhead::viewer
