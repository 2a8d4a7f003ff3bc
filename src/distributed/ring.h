// The steps of a ring: in step i a rank works on the keys of the rank that is i before it. Keys and values come straight from their owner, so a
// silent rank is named by all that wait for it. All sends are posted at the start; a receive is posted one step before its keys are used, which
// bounds the memory.
#pragma once

#include <chrono>
#include <optional>

#include "core/parallel.h"
#include "distributed/members.h"
#include "distributed/shard.h"

namespace polyhead::distributed {

class Ring {
 public:
  // queries, keys: the positions of each member.
  Ring(Call& call, Members members, const Shard& shard, std::vector<std::vector<Positions>> queries, std::vector<std::vector<Positions>> keys)
      : call_(call), members_(std::move(members)), shard_(shard), queries_(std::move(queries)), keys_(std::move(keys)) {}

  int size() const { return members_.size(); }
  int me() const { return members_.me; }
  int rank(int member) const { return members_.rank(member); }
  const std::vector<Positions>& keys(int member) const { return keys_[static_cast<std::size_t>(member)]; }
  std::vector<Block> blocks(int of_queries, int of_keys) const {
    return blocks_of(shard_.problem(), queries_[static_cast<std::size_t>(of_queries)], keys_[static_cast<std::size_t>(of_keys)]);
  }
  bool needs(int of_queries, int of_keys) const { return !blocks(of_queries, of_keys).empty(); }
  int owner_of_step(int step) const { return (me() - step + size()) % size(); }
  int user_in_step(int step) const { return (me() + step) % size(); }

  // Calls f(step, k, v, blocks) for each step in which this rank has pairs. k and v are its own rows of the shard's heads.
  template <class F>
  void run(const ConstTensorView& k, const ConstTensorView& v, const F& f) {
    const Tensor own_k = contiguous(k), own_v = contiguous(v);
    for (int step = 1; step < size() && own_k.numel() + own_v.numel() > 0; ++step) {
      if (!needs(user_in_step(step), me())) continue;
      if (own_k.numel() > 0) call_.send(own_k, Kind::keys, rank(user_in_step(step)));
      if (own_v.numel() > 0) call_.send(own_v, Kind::values, rank(user_in_step(step)));
    }
    std::optional<Arriving> next = arriving(1, k, v);
    if (const std::vector<Block> own = blocks(me(), me()); !own.empty()) f(0, widened(own_k), widened(own_v), own);
    while (next) {
      const int step = next->step;
      const Tensor of_k = next->k ? call_.take(std::move(*next->k)) : next->empty_k, of_v = next->v ? call_.take(std::move(*next->v)) : next->empty_v;
      next = arriving(step + 1, k, v);
      f(step, widened(of_k), widened(of_v), blocks(me(), owner_of_step(step)));
    }
  }

  // Runs f(block) for pieces of a block of about 10 ms, with the transport's progress between them.
  template <class F>
  void in_pieces(const Block& block, double passes, const F& f) {
    const double per_row = multiply_adds(pairs_of(shard_.problem(), {block})) * passes / static_cast<double>(block.rows.last - block.rows.first);
    const double piece_size = 1e9 * threads_of(shard_.executor);  // multiply-adds: 10 ms at 100 per nanosecond and thread
    constexpr std::int64_t kRows = 768;  // blocks of queries of both passes (src/cpu/sdpa/README.md)
    const std::int64_t rows = std::max(kRows, static_cast<std::int64_t>(std::min(piece_size / std::max(per_row, 1.0), 1e12)) / kRows * kRows);
    for (std::int64_t row = block.rows.first; row < block.rows.last; row += rows) {
      Block piece = block;
      piece.rows = {row, std::min(row + rows, block.rows.last)}, piece.query = block.query + row - block.rows.first;
      const auto begin = std::chrono::steady_clock::now();
      f(piece);
      call_.computed(per_row / passes * static_cast<double>(piece.rows.last - piece.rows.first), std::chrono::steady_clock::now() - begin);
      call_.progress();
    }
  }

 private:
  struct Arriving {
    int step;
    std::optional<Call::Incoming> k, v;
    Tensor empty_k, empty_v;
  };

  double multiply_adds(double pairs) const {
    const Problem& p = shard_.problem();
    return pairs * static_cast<double>(p.batch * (shard_.heads.last - shard_.heads.first)) * static_cast<double>(p.qk_width + p.v_width);
  }
  static Tensor contiguous(const ConstTensorView& view) { return Tensor::copy_of(view); }
  Tensor widened(const Tensor& tensor) const { return tensor.dtype() == shard_.dtype() ? Tensor::share(const_cast<Tensor&>(tensor).view(), tensor.owner()) : Tensor::copy_of(tensor, shard_.dtype()); }

  // The keys of the next step, from `step` on, in which this rank has pairs.
  std::optional<Arriving> arriving(int step, const ConstTensorView& k, const ConstTensorView& v) {
    while (step < size() && !needs(me(), owner_of_step(step))) ++step;
    if (step >= size()) return std::nullopt;
    const int owner = owner_of_step(step);
    Shape of_k = k.shape(), of_v = v.shape();
    of_k[-2] = of_v[-2] = count_of(keys(owner));
    Arriving result{step, std::nullopt, std::nullopt, {}, {}};
    if (numel(of_k) > 0) {
      result.k = call_.receive(k.dtype(), of_k, Kind::keys, rank(owner));
    } else {
      result.empty_k = Tensor(k.dtype(), of_k);
    }
    if (numel(of_v) > 0) {
      result.v = call_.receive(v.dtype(), of_v, Kind::values, rank(owner));
    } else {
      result.empty_v = Tensor(v.dtype(), of_v);
    }
    return result;
  }

  Call& call_;
  Members members_;
  const Shard& shard_;
  std::vector<std::vector<Positions>> queries_, keys_;
};

}  // namespace polyhead::distributed
