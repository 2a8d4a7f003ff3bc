#include "io/quote.h"

#include <nlohmann/json.hpp>

namespace polyhead::io {

std::string quote(std::string_view name) {
  std::size_t shown = 200;
  const bool cut = name.size() > shown;
  while (cut && shown > 197 && (static_cast<unsigned char>(name[shown]) & 0xc0u) == 0x80u) --shown;  // not inside a character
  const nlohmann::json text = std::string(name.substr(0, shown));
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + (cut ? "…" : "");
}

bool is_utf8(std::string_view text) {
  try {
    (void)nlohmann::json(std::string(text)).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace polyhead::io
