// The contents of page.html, page.css and script/*.js, which embed.cmake writes into a C++ file.
#pragma once

#include <string_view>

namespace polyhead::viewer {

extern const std::string_view kTemplate;  // the HTML page, with the placeholders {{title}}, {{style}}, {{data}} and {{script}}
extern const std::string_view kStyle;
extern const std::string_view kLiveStyle;  // further style of live pages, which follows kStyle
extern const std::string_view kScript;
extern const std::string_view kLiveScript;  // further script of live pages, which precedes kScript

}  // namespace polyhead::viewer
