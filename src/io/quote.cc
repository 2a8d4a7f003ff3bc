#include "io/quote.h"

#include <nlohmann/json.hpp>

namespace polyhead::io {

std::string quote(std::string_view name) {
  constexpr std::size_t kShown = 200;
  const bool cut = name.size() > kShown;
  const nlohmann::json text = std::string(name.substr(0, kShown));
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore) + (cut ? "…" : "");
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
