#pragma once

#include <string>
#include <string_view>

namespace polyhead::io {

// A name from a file for a message: quoted, at most 200 bytes, with control characters escaped and invalid UTF-8 replaced by U+FFFD.
std::string quote(std::string_view name);

bool is_utf8(std::string_view text);

}  // namespace polyhead::io
