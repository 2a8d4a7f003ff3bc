#pragma once

#include <cerrno>
#include <system_error>

#include "core/text.h"

namespace polyhead::io {

// Throws Error (io) "<what>: <the system's reason>"; call it directly after the system call that set errno.
template <class... Parts>
[[noreturn]] void fail_errno(const Parts&... what) {
  const int number = errno;
  fail(ErrorCode::io, what..., ": ", std::generic_category().message(number));
}

}  // namespace polyhead::io
