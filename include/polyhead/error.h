#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)
namespace polyhead {

enum class ErrorCode : std::uint8_t {
  invalid_argument,  // the operation does not allow a given shape, extent, stride, dtype or value
  unsupported,       // the request is valid, but the chosen backend or format does not support it
  io,                // a file cannot be opened, read, written or renamed
  format,            // the contents of a file break the rules of its format
  communication,     // another rank does not answer, has ended, or passed other arguments than this rank
};

// The library throws only Error and std::bad_alloc. what() names the operation, the value that was given and the values that are allowed.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace polyhead
#pragma GCC visibility pop
