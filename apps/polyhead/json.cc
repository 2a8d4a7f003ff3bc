#include "json.h"

#include "terminal.h"

namespace polyhead::app {

Json to_json(const Dims& dims) {
  Json list = Json::array();
  for (const std::int64_t extent : dims) list.push_back(extent);
  return list;
}

void print_json(const Json& json) { print(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"); }

}  // namespace polyhead::app
