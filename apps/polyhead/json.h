// JSON output of the commands.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "polyhead/tensor_view.h"

namespace polyhead::app {

using Json = nlohmann::ordered_json;

Json to_json(const Dims& dims);

// The elements of a tensor as nested lists. Each number has the fewest digits from which its dtype gets the same value again. Non-finite numbers are "nan",
// "inf" and "-inf".
Json number_json(ConstTensorView values);

std::string to_text(const Json& json);  // writes one line; replaces bytes that are not valid UTF-8 by U+FFFD
void print_json(const Json& json);

}  // namespace polyhead::app
