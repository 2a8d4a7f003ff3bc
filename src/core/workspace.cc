#include "polyhead/workspace.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "polyhead/dtype.h"

namespace polyhead {

namespace {

constexpr std::int64_t kSmall = 16 << 10;  // which the allocator has at hand

struct Block {
  std::shared_ptr<void> memory;
  std::int64_t bytes = 0;
};

}  // namespace

struct Workspace::Pool {
  std::mutex mutex;
  std::vector<Block> idle;  // the oldest first
  std::int64_t in_use = 0, idle_bytes = 0, most = 0;

  // The smallest idle block that fits, unless half of it would go to waste.
  Block take(std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    auto best = idle.end();
    for (auto at = idle.begin(); at != idle.end(); ++at) {
      if (at->bytes >= bytes && at->bytes / 2 <= bytes && (best == idle.end() || at->bytes < best->bytes)) best = at;
    }
    Block block{nullptr, bytes};
    if (best != idle.end()) {
      block = std::move(*best);
      idle.erase(best);
      idle_bytes -= block.bytes;
    }
    in_use += block.bytes;
    most = std::max(most, in_use);
    return block;
  }

  void give(Block block) {
    std::vector<Block> dropped;  // freed when the lock is gone
    const std::lock_guard lock(mutex);
    const std::int64_t bytes = block.bytes;
    in_use -= bytes;
    try {
      dropped.reserve(idle.size() + 1);
      idle.push_back(std::move(block));
    } catch (const std::bad_alloc&) {
      return;  // called by destructors
    }
    idle_bytes += bytes;
    auto kept = idle.begin();
    for (; kept != idle.end() && idle_bytes > most + most / 2; ++kept) {
      idle_bytes -= kept->bytes;
      dropped.push_back(std::move(*kept));
    }
    idle.erase(idle.begin(), kept);
  }
};

Workspace::Workspace() : pool_(std::make_shared<Pool>()) {}

Tensor Workspace::tensor(DType dtype, const Shape& shape) const {
  std::int64_t bytes = 0;
  const bool fits = std::all_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent >= 0; }) &&
                    !__builtin_mul_overflow(numel(shape), static_cast<std::int64_t>(info(dtype).size), &bytes);
  if (!fits || bytes < kSmall) return Tensor::uninitialised(dtype, shape);
  Block block = pool_->take(bytes);
  // From here on the memory goes back by itself, also where there is none to be had.
  struct Lease {
    Lease(std::shared_ptr<Pool> of, Block taken) : pool(std::move(of)), block(std::move(taken)) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      if (block.memory) {
        pool->give(std::move(block));
      } else {
        const std::lock_guard lock(pool->mutex);
        pool->in_use -= block.bytes;
      }
    }
    std::shared_ptr<Pool> pool;
    Block block;
  };
  const auto lease = std::make_shared<Lease>(pool_, std::move(block));
  if (!lease->block.memory) lease->block.memory = Tensor::uninitialised(DType::u8, {bytes}).owner();
  void* memory = lease->block.memory.get();
#ifndef NDEBUG
  std::memset(memory, 0xff, static_cast<std::size_t>(bytes));  // as Tensor::uninitialised
#endif
  return Tensor::share(TensorView(memory, dtype, shape), std::shared_ptr<void>(lease, memory));
}

std::int64_t Workspace::idle_bytes() const {
  const std::lock_guard lock(pool_->mutex);
  return pool_->idle_bytes;
}

void Workspace::clear() const {
  std::vector<Block> dropped;
  const std::lock_guard lock(pool_->mutex);
  std::swap(dropped, pool_->idle);
  pool_->idle_bytes = 0;
  pool_->most = pool_->in_use;
}

}  // namespace polyhead
