// The whole program except main(). The executable and the Python package run it.
#pragma once

#include <string>
#include <vector>

namespace polyhead::app {

// Runs the program and returns the exit status. It installs handlers for signals and std::terminate and does not restore the old ones, so the process should
// end afterwards.
int run_program(const std::vector<std::string>& arguments);

}  // namespace polyhead::app
