// Machine-readable results.
#pragma once

#include <nlohmann/json.hpp>

#include "polyhead/tensor_view.h"

namespace polyhead::app {

using Json = nlohmann::ordered_json;

Json to_json(const Dims& dims);
void print_json(const Json& json);  // one line on stdout; bytes that are not UTF-8 become U+FFFD

}  // namespace polyhead::app
