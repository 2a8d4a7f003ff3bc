// The whole program behind main(): the executable and the Python package run it.
#pragma once

#include <string>
#include <vector>

namespace polyhead::app {

// Returns the exit status. Installs handlers for signals and std::terminate and does not restore the old ones: end the process after this.
int run_program(const std::vector<std::string>& arguments);

}  // namespace polyhead::app
