// Runs a test with every backend, because the backends `cpu` and `reference` must behave in the same way.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "polyhead/sdpa.h"

namespace polyhead::test {

using EachBackend = testing::TestWithParam<const Backend*>;

inline std::string name_of_backend(const testing::TestParamInfo<const Backend*>& info) { return std::string(backend_name(*info.param)); }

}  // namespace polyhead::test
