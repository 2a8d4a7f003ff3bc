#include "polyhead/workspace.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "core/parameter_cache.h"
#include "core/threads.h"
#include "polyhead/dtype.h"

namespace polyhead {

namespace {

constexpr std::int64_t kLeastKept = 16 << 10;  // bytes; smaller memory blocks are freed at once, because a new small block is allocated fast

struct Block {
  std::shared_ptr<void> memory;
  std::int64_t bytes = 0;
  bool counted = false;  // true: the pool's in_use includes this block
};

// A cached result for the parameter `view`. `owner` keeps the parameter's memory alive, so that no other parameter can get the same address.
struct CacheEntry {
  ConstTensorView view;
  std::shared_ptr<void> owner;
  std::shared_ptr<const void> made;
  std::uint64_t generation = 0;

  bool is_of(ConstTensorView other) const {
    return view.dtype() == other.dtype() && view.shape() == other.shape() && view.strides() == other.strides();
  }
};

}  // namespace

struct Workspace::Pool {
  explicit Pool(Parameters of) : parameters(of) {}

  const Parameters parameters;
  // clear() increments this number. Cache entries with an older number are then invalid, even if clear() cannot get the lock.
  std::atomic<std::uint64_t> generation{0};
  Mutex mutex;
  std::map<std::pair<const void*, const void*>, CacheEntry> cache;  // key: address of the parameter, and `use` of cached_parameter()
  std::vector<Block> idle;  // unused memory blocks, oldest first
  std::int64_t idle_bytes = 0, most = 0;
  // Bytes; atomic, because release() updates in_use without the lock. `most` is the peak of in_use.
  std::atomic<std::int64_t> in_use{0};

  // Gives up after 1,000 attempts: in a process that was forked while another thread held the lock, no thread will ever release the lock.
  Lock lock() {
    constexpr int kPatience = 1000;
    Lock held(mutex, std::try_to_lock);
    for (int i = 0; i < kPatience && !held; ++i) {
      yield_thread();
      (void)held.try_lock();
    }
    return held;
  }

  // Returns the smallest idle block of at least `bytes` and at most twice as many, after adding it to in_use. If there is none, returns a block without memory.
  Block acquire(std::int64_t bytes) {
    Block block{nullptr, bytes};
    const auto held = lock();
    if (!held) return block;
    auto best = idle.end();
    for (auto at = idle.begin(); at != idle.end(); ++at) {
      if (at->bytes >= bytes && at->bytes / 2 <= bytes && (best == idle.end() || at->bytes < best->bytes)) best = at;
    }
    if (best != idle.end()) {
      block = std::move(*best);
      idle.erase(best);
      idle_bytes -= block.bytes;
      block.counted = true;
      most = std::max(most, in_use += block.bytes);
    }
    return block;
  }

  // Adds a block to in_use and to the peak. Call it after the memory was allocated: a failed allocation must not raise the peak.
  void count(Block& block) {
    const auto held = lock();
    if (!held) return;
    block.counted = true;
    most = std::max(most, in_use += block.bytes);
  }

  void release(Block block) {
    if (block.counted) in_use -= block.bytes;
    if (!block.memory) return;
    std::vector<Block> dropped;  // freed after the lock is released
    const auto held = lock();
    if (!held) return;
    const std::int64_t bytes = block.bytes;
    try {
      dropped.reserve(idle.size() + 1);
      idle.push_back(std::move(block));
    } catch (const std::bad_alloc&) {
      return;  // may not throw, because destructors call this function
    }
    idle_bytes += bytes;
    auto first_kept = idle.begin();
    for (; first_kept != idle.end() && idle_bytes > most + most / 2; ++first_kept) {
      idle_bytes -= first_kept->bytes;
      dropped.push_back(std::move(*first_kept));
    }
    idle.erase(idle.begin(), first_kept);
  }
};

Workspace::Workspace() : Workspace(Parameters::may_change) {}

Workspace::Workspace(Parameters parameters) : pool_(std::make_shared<Pool>(parameters)) {}

Parameters Workspace::parameters() const { return pool_->parameters; }

Tensor Workspace::tensor(DType dtype, const Shape& shape) const {
  std::int64_t bytes = 0;
  const bool fits = std::all_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent >= 0; }) &&
                    !__builtin_mul_overflow(numel(shape), static_cast<std::int64_t>(info(dtype).size), &bytes);
  if (!fits || bytes < kLeastKept) return Tensor::uninitialised(dtype, shape);
  // Gives the memory block back to the pool when the last owner of the tensor's memory is destroyed. The pool's cache of parameters may itself hold such a
  // tensor, so the pointer to the pool is weak.
  struct Lease {
    explicit Lease(const std::shared_ptr<Pool>& of) : pool(of) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      if (const auto alive = pool.lock()) alive->release(std::move(block));
    }
    std::weak_ptr<Pool> pool;
    Block block;
  };
  const auto lease = std::make_shared<Lease>(pool_);
  lease->block = pool_->acquire(bytes);
  if (!lease->block.memory) {
    lease->block.memory = Tensor::uninitialised(DType::u8, {bytes}).owner();
    pool_->count(lease->block);
  }
  void* memory = lease->block.memory.get();
#ifndef NDEBUG
  std::memset(memory, 0xff, static_cast<std::size_t>(bytes));  // NaN in every floating type, so that tests notice elements that were never written
#endif
  return Tensor::share(TensorView(memory, dtype, shape), std::shared_ptr<void>(lease, memory));
}

std::int64_t Workspace::idle_bytes() const {
  const auto held = pool_->lock();
  return held ? pool_->idle_bytes : 0;
}

void Workspace::clear() const {
  std::vector<Block> dropped;  // freed after the lock is released
  decltype(pool_->cache) forgotten;
  ++pool_->generation;
  const auto held = pool_->lock();
  if (!held) return;
  std::swap(dropped, pool_->idle);
  std::swap(forgotten, pool_->cache);
  pool_->idle_bytes = 0;
  pool_->most = pool_->in_use;
}

std::shared_ptr<const void> cached_parameter(const Workspace& workspace, const Tensor& parameter, const void* use,
                                             const std::function<std::shared_ptr<const void>()>& make) {
  Workspace::Pool& pool = *workspace.pool_;
  const ConstTensorView view = parameter.view();
  if (!parameter.owner()) return make();  // not cached: the caller may free the memory and reuse the address for another parameter
  const std::pair key{view.data(), use};
  const std::uint64_t generation = pool.generation;
  if (const auto held = pool.lock()) {
    const auto found = pool.cache.find(key);
    if (found != pool.cache.end() && found->second.generation == generation && found->second.is_of(view)) return found->second.made;
  }
  std::shared_ptr<const void> made = make();
  CacheEntry entry{view, parameter.owner(), made, generation};
  if (const auto held = pool.lock()) std::swap(pool.cache[key], entry);
  return made;
}

}  // namespace polyhead
