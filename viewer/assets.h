// The page's parts, embedded from page.html, page.css, live.css and script/*.js by embed.cmake.
#pragma once

#include <string_view>

namespace polyhead::viewer {

extern const std::string_view kTemplate;  // has the placeholders {{title}}, {{style}}, {{data}} and {{script}}
extern const std::string_view kStyle;
extern const std::string_view kLiveStyle;  // comes after kStyle in live pages
extern const std::string_view kScript;
extern const std::string_view kLiveScript;  // comes before kScript in live pages

}  // namespace polyhead::viewer
