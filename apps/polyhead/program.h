// The whole program behind main(): the executable and the Python package run it.
#pragma once

#include <string>
#include <vector>

namespace polyhead::app {

// Returns the exit status. Takes over the signals and std::terminate of the process, which should end when this returns.
int run_program(const std::vector<std::string>& arguments);

}  // namespace polyhead::app
