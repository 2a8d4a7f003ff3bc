#include "core/text.h"
#include "sdpa/backend.h"

namespace polyhead {

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::forward: return "forward";
    case Operation::backward: return "backward";
    case Operation::jvp: return "jvp";
    case Operation::backward_backward: return "backward_backward";
    default: return "maps";
  }
}

const Backend& require_serves(const Backend& forced, const Problem& problem, Operation operation) {
  const std::string reason = forced.declines(problem, operation);
  if (!reason.empty()) {
    fail(ErrorCode::unsupported, "the backend '", forced.name, "' was chosen by the caller and declines ", name_of(operation), ": ", reason);
  }
  return forced;
}

void fail_unserved() { fail(ErrorCode::unsupported, "no backend serves this problem"); }

}  // namespace polyhead
