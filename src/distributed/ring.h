// The steps of a ring: in step i, rank r computes with the keys of rank r - i. Each rank receives keys and values directly from their owner, so
// errors can name a silent rank. All sends are posted at the start; a receive is posted one step before its keys are used, which bounds the memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <list>
#include <optional>

#include "core/parallel.h"
#include "distributed/members.h"
#include "distributed/shard.h"

namespace polyhead::distributed {

class Ring {
 public:
  // queries, keys: for each member, the positions of the queries and of the keys that its rank holds.
  Ring(Call& call, Members members, const Shard& shard, std::vector<std::vector<Positions>> queries, std::vector<std::vector<Positions>> keys)
      : call_(call), members_(std::move(members)), shard_(shard), queries_(std::move(queries)), keys_(std::move(keys)) {}

  int size() const { return members_.size(); }
  int me() const { return members_.me; }
  int rank(int member) const { return members_.rank(member); }
  const std::vector<Positions>& keys(int member) const { return keys_[static_cast<std::size_t>(member)]; }
  std::vector<Block> blocks(int of_queries, int of_keys) const {
    return blocks_of(shard_.problem(), queries_[static_cast<std::size_t>(of_queries)], keys_[static_cast<std::size_t>(of_keys)]);
  }
  // Returns which rows of the keys of member `of_keys` the queries of member `of_queries` attend to, as ascending ranges. Only these rows are sent.
  std::vector<Positions> needed(int of_queries, int of_keys) const {
    std::vector<Positions> rows;
    for (const Block& block : blocks(of_queries, of_keys)) rows.push_back({block.keys.first, block.keys.last});
    return joined(std::move(rows));
  }
  bool needs(int of_queries, int of_keys) const { return !blocks(of_queries, of_keys).empty(); }
  int owner_of_step(int step) const { return (me() - step + size()) % size(); }
  int user_in_step(int step) const { return (me() + step) % size(); }

  // Calls f(step, k, v, blocks) for each step in which a query of this rank attends to a key. The arguments k and v of run() are this rank's keys and values. f
  // receives the keys and values of the step's owner: all rows in step 0, later only the rows that this rank needs. Block::keys counts the rows that f
  // receives.
  template <class F>
  void run(const ConstTensorView& k, const ConstTensorView& v, const F& f) {
    const Tensor own_k = Tensor::copy_of(k), own_v = Tensor::copy_of(v);
    struct Part {  // A copy of rows to send. Ranks that need the same rows share one copy: with a causal mask, all ranks with later queries do.
      std::vector<Positions> rows;
      Tensor k, v;
    };
    std::list<Part> parts;
    for (int step = 1; step < size(); ++step) {
      const std::vector<Positions> rows = needed(user_in_step(step), me());
      if (rows.empty()) continue;
      auto part = std::find_if(parts.begin(), parts.end(), [&](const Part& other) { return other.rows == rows; });
      if (part == parts.end()) {
        const bool all = count_of(rows) == k.extent(-2);
        part = parts.insert(parts.end(), {rows, all ? shared(own_k) : rows_at(own_k, rows), all ? shared(own_v) : rows_at(own_v, rows)});
      }
      if (part->k.numel() > 0) call_.send(part->k, MessageKind::keys, rank(user_in_step(step)));
      if (part->v.numel() > 0) call_.send(part->v, MessageKind::values, rank(user_in_step(step)));
    }
    parts.clear();  // a message that is still under way keeps its tensor alive
    std::optional<Arriving> next = arriving(1, k, v);
    if (const std::vector<Block> own = blocks(me(), me()); !own.empty()) f(0, widened(own_k), widened(own_v), own);
    while (next) {
      const int step = next->step, owner = owner_of_step(step);
      const Tensor of_k = next->k ? call_.take(std::move(*next->k)) : next->empty_k, of_v = next->v ? call_.take(std::move(*next->v)) : next->empty_v;
      next = arriving(step + 1, k, v);
      std::vector<Block> of_step = blocks(me(), owner);
      const std::vector<Positions> rows = needed(me(), owner);
      for (Block& block : of_step) {
        const std::int64_t first = row_of(rows, block.keys.first);
        block.keys = {first, first + block.keys.last - block.keys.first};
      }
      f(step, widened(of_k), widened(of_v), of_step);
    }
  }

  // Cuts a block into pieces that take about 10 ms each. Calls f(piece) for each piece, and Communicator::progress() between pieces.
  template <class F>
  void in_pieces(const Block& block, double passes, const F& f) {
    const double per_row = multiply_adds(pairs_of(shard_.problem(), {block})) * passes / static_cast<double>(block.rows.last - block.rows.first);
    const double piece_size = 1e9 * threads_of(shard_.executor);  // number of multiply-adds in 10 ms, at 100 per nanosecond and thread
    constexpr std::int64_t kRows = 768;  // a multiple of the query blocks of both passes (src/cpu/sdpa/README.md)
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
  static Tensor shared(const Tensor& tensor) { return Tensor::share(const_cast<Tensor&>(tensor).view(), tensor.owner()); }
  static Tensor rows_at(const Tensor& tensor, const std::vector<Positions>& rows) {
    Shape shape = tensor.shape();
    shape[-2] = count_of(rows);
    Tensor result = Tensor::uninitialised(tensor.dtype(), shape);
    std::int64_t first = 0;
    for (const Positions& range : rows) {
      copy(tensor.view().slice(-2, range.first, range.last), result.view().slice(-2, first, first + range.count()));
      first += range.count();
    }
    return result;
  }
  Tensor widened(const Tensor& tensor) const { return tensor.dtype() == shard_.dtype() ? shared(tensor) : Tensor::copy_of(tensor, shard_.dtype()); }

  // Posts the receive for the next step >= `step` in which this rank needs keys.
  std::optional<Arriving> arriving(int step, const ConstTensorView& k, const ConstTensorView& v) {
    while (step < size() && !needs(me(), owner_of_step(step))) ++step;
    if (step >= size()) return std::nullopt;
    const int owner = owner_of_step(step);
    Shape of_k = k.shape(), of_v = v.shape();
    of_k[-2] = of_v[-2] = count_of(needed(me(), owner));
    Arriving result{step, std::nullopt, std::nullopt, {}, {}};
    if (numel(of_k) > 0) {
      result.k = call_.receive(k.dtype(), of_k, MessageKind::keys, rank(owner));
    } else {
      result.empty_k = Tensor(k.dtype(), of_k);
    }
    if (numel(of_v) > 0) {
      result.v = call_.receive(v.dtype(), of_v, MessageKind::values, rank(owner));
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
