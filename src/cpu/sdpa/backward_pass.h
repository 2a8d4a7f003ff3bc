// Runs the schedule of a backward pass: calls the kernel for each task, and then adds the partial sums of splits that different threads computed.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "core/interrupt.h"
#include "core/parallel.h"
#include "cpu/scratch_memory.h"
#include "cpu/sdpa/bias_gradient.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/schedule.h"
#include "cpu/select.h"

namespace polyhead::cpu {

// Memory for the partial sums of a gradient whose splits are computed by different threads: [sequence and head, split, row, gradient_stride()].
class SplitSums {
 public:
  // Allocates memory only if the gradient is computed and `apart` is true, that is, the splits run on different threads.
  SplitSums(const BackwardProblem& p, const TensorView& gradient, bool apart, std::int64_t splits, std::int64_t rows)
      : gradient_(gradient), splits_(splits), rows_(rows) {
    if (!apart || !gradient) return;
    size_ = rows * gradient_stride(gradient.extent(-1)) * (p.dtype == DType::f64 ? 8 : 4);
    memory_.emplace(p.batch * p.kv_heads * splits * size_, p.workspace);
  }
  bool any() const { return memory_.has_value(); }
  const TensorView& gradient() const { return gradient_; }
  std::int64_t rows() const { return rows_; }
  // Returns the address of the sums of a head, split and row, or nullptr if no memory was allocated.
  void* at(std::int64_t head, std::int64_t split, std::int64_t row) const {
    return memory_ ? static_cast<char*>(memory_->get()) + (head * splits_ + split) * size_ + row * (size_ / rows_) : nullptr;
  }

 private:
  const TensorView& gradient_;
  std::int64_t splits_, rows_, size_ = 0;  // size_: bytes of the sums of one split of one head
  std::optional<ScratchMemory> memory_;
};

// The kernel's task type and functions with which DocumentPass runs sdpa_backward(). One object is created for each document, before the document's cells run.
struct FirstBackward {
  using Problem = BackwardProblem;
  using Task = BackwardTask;

  FirstBackward(const BackwardProblem& /*p*/, int /*threads*/) {}
  static void place(const BackwardProblem& p, const MaskBlocks& blocks, std::int64_t b, std::int64_t kv, BackwardTask& task) {
    set_heads(p, &blocks, p.q, p.k, b, kv, task);
    const std::int64_t n = kv * task.heads;
    task.v = head_view(p.v, b, kv);
    task.out = head_view(p.out, b, n), task.lse = head_view(p.lse, b, n), task.d_out = head_view(p.d_out, b, n);
    task.d_q = head_view(p.d_q, b, n), task.d_k = head_view(p.d_k, b, kv), task.d_v = head_view(p.d_v, b, kv);
    task.d_sink = head_view(p.d_sink, b, n);
    task.rule_sums = p.score_rule_sums(b, n);
  }
  // Returns true if a key block adds several products to d_q.
  static bool adds_often(const BackwardProblem& /*p*/) { return false; }
  static std::int64_t scratch_bytes(const BackwardTask& task) { return current_kernels_of<BackwardKernels>().backward_scratch(task); }
  static void run(const BackwardTask& task, void* scratch) { current_kernels_of<BackwardKernels>().backward(task, scratch); }
};

// The backward pass of one document: runs the cells of the schedule, then adds the partial sums of splits that ran on different threads.
template <class Pass>
class DocumentPass {
  using Task = typename Pass::Task;

 public:
  DocumentPass(const Pass& pass, const typename Pass::Problem& p, BiasGradient* bias, int threads)
      : pass_(pass),
        p_(p),
        bias_(bias),
        schedule_(AttentionSizes(p), together(), threads),
        mask_(p),
        group_rows_(p.heads / p.kv_heads * p.queries),
        of_d_q_(p, p_.d_q, schedule_.keys_apart, schedule_.splits.key_splits, group_rows_),
        of_d_k_(p, p_.d_k, schedule_.rows_apart, schedule_.splits.row_splits, p.keys),
        of_d_v_(p, p_.d_v, schedule_.rows_apart, schedule_.splits.row_splits, p.keys) {
    set_sizes(p, task_);
    task_.rows_per_split = schedule_.splits.rows_per_split, task_.keys_per_split = schedule_.splits.keys_per_split;
    task_.store_d_q = !of_d_q_.any();
    task_.part_of_keys = p.part_of_keys;
    if (bias != nullptr) task_.write_d_bias = bias->written(), task_.stream_d_bias = bias->streamed();
    pass_.place(p_, mask_, 0, 0, task_);
    for (const BackwardCell& cell : schedule_.cells) most_rows_ = std::max(most_rows_, cell.last_row - cell.first_row);
    by_split_ = schedule_.cells;
    std::sort(by_split_.begin(), by_split_.end(), [](const BackwardCell& a, const BackwardCell& b) {
      return a.first_row != b.first_row ? a.first_row < b.first_row : a.first_key < b.first_key;
    });
  }

  void run() {
    if (bias_ == nullptr || bias_->groups() == 1) {
      run_sequences(0, p_.batch);
    } else if (schedule_.groups_apart) {
      bias_->allocate_groups(bias_->groups());
      run_sequences(0, p_.batch);
      bias_->add_groups(p_.executor);
    } else {
      for (std::int64_t first = 0; first < p_.batch; first += bias_->group_size()) {
        bias_->allocate_groups(1);
        run_sequences(first, std::min(first + bias_->group_size(), p_.batch));
        bias_->add_groups(p_.executor);
      }
    }
    add_splits();
  }

 private:
  Together together() const {
    Together together = of_bias();
    if (p_.d_score_rule) {  // one thread adds all gradients of the rule that belong to the same sums, so that the order of the additions is fixed
      together.rows = together.keys = true;
      if (p_.d_score_rule.extent(0) < p_.batch) together.sequences = true, together.groups = false;
    }
    return together;
  }

  Together of_bias() const {
    const auto sinks = static_cast<bool>(p_.d_sink);
    if (bias_ == nullptr) return {.every_pair = sinks};
    return {.sequences = bias_->shared_by_sequences(),
            .heads = bias_->shared_by_heads(),
            .rows = bias_->shared_by_rows(),
            .keys = bias_->shared_by_keys(),
            .groups = bias_->groups() > 1,
            .every_pair = bias_->written() || sinks};
  }

  // Runs the pass for the sequences [first_b, last_b): all sequences, or the sequences of one group of BiasGradient.
  void run_sequences(std::int64_t first_b, std::int64_t last_b) {
    const std::int64_t row_bytes = gradient_stride(p_.qk_width) * (p_.dtype == DType::f64 ? 8 : 4);
    Task largest = task_;
    largest.rows = most_rows_;
    const std::int64_t scratch_bytes = pass_.scratch_bytes(largest);
    // Memory for the sums of d_q of a task's rows. A task with several splits of keys needs this memory twice if it adds several products to d_q in each split.
    // It sums them in the second half and then adds this sum to that of the earlier splits.
    const bool one_product = schedule_.splits.keys_per_split <= backward_block_keys(p_.dtype == DType::f64 ? 8 : 4) && !pass_.adds_often(p_);
    const bool split_memory = !schedule_.keys_apart && schedule_.splits.key_splits > 1 && !one_product;
    const std::int64_t own_bytes = !p_.d_q ? 0 : (split_memory ? 2 : schedule_.keys_apart ? 0 : 1) * most_rows_ * row_bytes;
    parallel_pieces(schedule_.pieces, p_.executor, [&](std::int64_t first, std::int64_t last) {
      const ScratchMemory scratch(scratch_bytes, p_.workspace), own(own_bytes, p_.workspace);
      Task task = task_;
      for (std::int64_t item = first; item < last; ++item) {
        const std::int64_t first_head = item % schedule_.heads, sequence = item / schedule_.heads % schedule_.sequences;
        const BackwardCell& cell = schedule_.cells[static_cast<std::size_t>(item / schedule_.heads / schedule_.sequences)];
        std::int64_t begin = first_b, end = last_b;
        if (schedule_.groups_apart) {
          begin = sequence * bias_->group_size(), end = std::min(begin + bias_->group_size(), last_b);
        } else if (schedule_.sequences > 1) {
          begin = sequence, end = sequence + 1;
        }
        // The loop over heads is outermost, so that the d_bias of a head stays in the cache while all sequences add to it.
        for (std::int64_t kv = first_head; kv < p_.kv_heads; kv += schedule_.heads) {
          for (std::int64_t b = begin; b < end; ++b) {
            pass_.place(p_, mask_, b, kv, task);
            if (bias_ != nullptr)
              task.d_bias = bias_->view(b, kv * task.heads, p_.documents.front(), schedule_.groups_apart ? sequence : 0);
            set_cell(cell, b * p_.kv_heads + kv, task);
            if (own_bytes > 0) {
              task.d_q_sums = own.get();
              if (split_memory) task.d_q_split = static_cast<char*>(own.get()) + most_rows_ * row_bytes;
            }
            pass_.run(task, scratch.get());
            check_interrupt();  // throws if an interrupt made the kernel return early
          }
        }
      }
    });
  }

  void set_cell(const BackwardCell& cell, std::int64_t head, BackwardTask& task) const {
    task.first_row = cell.first_row, task.rows = cell.last_row - cell.first_row;
    task.first_key = cell.first_key, task.last_key = cell.last_key;
    const std::int64_t row_split = cell.first_row / task.rows_per_split, key_split = cell.first_key / task.keys_per_split;
    task.d_q_sums = of_d_q_.at(head, key_split, cell.first_row);
    task.d_k_sums = of_d_k_.at(head, row_split, cell.first_key), task.d_v_sums = of_d_v_.at(head, row_split, cell.first_key);
  }

  // Adds the partial sums of splits that ran on different threads, in the order of the splits.
  void add_splits() {
    constexpr std::int64_t kChunk = 64;  // number of rows that are added at a time
    const SplitSums* all[] = {&of_d_q_, &of_d_k_, &of_d_v_};
    std::int64_t ends[3], count = 0, chunks[3];
    for (int i = 0; i < 3; ++i) {
      chunks[i] = (all[i]->rows() + kChunk - 1) / kChunk;
      ends[i] = count += all[i]->any() ? chunks[i] * p_.batch * p_.kv_heads : 0;
    }
    if (count == 0) return;
    const double elements =
        static_cast<double>(kChunk * std::max(p_.qk_width, p_.v_width) * (schedule_.splits.key_splits + schedule_.splits.row_splits));
    parallel_for(count, grain_of(elements * kMergeElement), p_.executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const int which = i < ends[0] ? 0 : i < ends[1] ? 1 : 2;
        const std::int64_t own = which == 0 ? i : i - ends[which - 1], row = own % chunks[which] * kChunk;
        add_splits_of(*all[which], which, own / chunks[which], row, std::min(row + kChunk, all[which]->rows()));
      }
    });
  }

  // Adds the partial sums of all splits for the rows [first, last) of one gradient of a key/value head. `which` is 0 for d_q, 1 for d_k and 2 for d_v.
  void add_splits_of(const SplitSums& sums, int which, std::int64_t head, std::int64_t first, std::int64_t last) const {
    const std::int64_t group = p_.heads / p_.kv_heads, b = head / p_.kv_heads, kv = head % p_.kv_heads;
    GradientTask task{.dtype = p_.dtype, .width = sums.gradient().extent(-1)};
    if (which == 0) task.factor = task_.scale_power * task_.scale_factor;
    if (which == 1) task.factor = task_.scale_factor;
    const std::int64_t size = static_cast<std::int64_t>(info(p_.dtype).size);
    for (std::int64_t row = first; row < last; row += task.rows) {
      // All rows of a chunk have the same splits and, for d_q, the same query head.
      const std::int64_t per_split = which == 0 ? task_.rows_per_split : task_.keys_per_split, length = which == 0 ? p_.queries : last;
      task.rows = std::min({last, (row / per_split + 1) * per_split, (row / length + 1) * length}) - row;
      void* parts[BackwardSplits::kMost];
      task.sums = parts, task.splits = 0;
      for (const BackwardCell& cell : by_split_) {
        const bool has = which == 0 ? cell.first_row <= row && row < cell.last_row : cell.first_key <= row && row < cell.last_key;
        if (has)
          parts[task.splits++] =
              sums.at(head, which == 0 ? cell.first_key / task_.keys_per_split : cell.first_row / task_.rows_per_split, row);
      }
      const MutableHeadView view = head_view(sums.gradient(), b, which == 0 ? kv * group + row / p_.queries : kv);
      task.to = view;
      task.to.data = static_cast<char*>(view.data) + row % length * view.row * size;
      current_kernels_of<GradientKernels>().add_splits(task);
    }
  }

  const Pass& pass_;
  const typename Pass::Problem& p_;
  BiasGradient* const bias_;
  const BackwardSchedule schedule_;
  const MaskBlocks mask_;
  const std::int64_t group_rows_;
  SplitSums of_d_q_, of_d_k_, of_d_v_;
  Task task_;  // members of a task that are equal for all tasks
  std::int64_t most_rows_ = 0;
  std::vector<BackwardCell> by_split_;  // the cells in the order of their splits
};

// Runs a whole backward pass. Documents run in parallel, or one after the other if they add to the same elements of d_bias or to the same gradients of the
// score rule.
template <class Pass>
void run_backward(const typename Pass::Problem& p) {
  using P = typename Pass::Problem;
  std::optional<BiasGradient> bias;
  if (p.d_bias || p.d_relative_bias) bias.emplace(p);
  BiasGradient* const d_bias = bias ? &*bias : nullptr;
  const auto run_document = [&](const P& part, int threads) {
    const Pass pass(part, threads);
    if (!part.d_q && !part.d_k && !part.d_v && d_bias == nullptr && !part.d_sink && !part.d_score_rule) return;
    if (part.batch * part.heads * part.queries * part.keys != 0) return DocumentPass<Pass>(pass, part, d_bias, threads).run();
    // A gradient without elements may have 2^62 heads, and a loop over these heads would not end.
    for (const TensorView& gradient : {part.d_q, part.d_k, part.d_v}) {
      if (gradient) fill(gradient, 0);
    }
  };
  if (!p.packed()) {
    run_document(p, threads_of(p.executor));
  } else {
    const bool written = d_bias != nullptr && d_bias->written();
    // Documents that add to the same elements of d_bias, or to the same gradients of the score rule, must run one after the other.
    const bool in_order = (d_bias != nullptr && !written) || p.d_score_rule;
    for_each_document(p, in_order, [&](const Document& document, const P& part, int threads) {
      if (written) fill_other_keys(p.d_bias.slice(-2, document.queries.first, document.queries.last), document.keys, 0);
      run_document(part, threads);
    });
  }
  if (bias) bias->store();
}

}  // namespace polyhead::cpu
