#include "json.h"

#include "terminal.h"

namespace polyhead::app {

Json to_json(const Dims& dims) { return std::vector<std::int64_t>(dims.begin(), dims.end()); }

std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void print_json(const Json& json) { print(to_text(json) + "\n"); }

}  // namespace polyhead::app
