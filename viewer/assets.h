// The contents of page.html, page.css and script/*.js, which embed.cmake writes into a C++ file.
#pragma once

#include <string_view>

namespace polyhead::viewer {

extern const std::string_view kTemplate;  // has the placeholders {{title}}, {{style}}, {{data}} and {{script}}
extern const std::string_view kStyle;
extern const std::string_view kLiveStyle;  // comes after kStyle in live pages
extern const std::string_view kScript;
extern const std::string_view kLiveScript;  // comes before kScript in live pages

}  // namespace polyhead::viewer
