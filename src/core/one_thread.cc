#include "core/process_pool.h"

namespace polyhead {

int internal::hardware_threads() { return 1; }

void internal::run_in_pool(std::int64_t count, int, const std::function<void(std::int64_t)>& task) {
  for (std::int64_t i = 0; i < count; ++i) task(i);
}

bool internal::pool_has_ended() { return false; }

}  // namespace polyhead
