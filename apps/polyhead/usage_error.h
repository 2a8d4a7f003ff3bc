#pragma once

#include <stdexcept>

namespace polyhead::app {

// Wrong arguments: exit status 2. A polyhead::Error is a failed operation: exit status 1.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace polyhead::app
