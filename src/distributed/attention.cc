#include "polyhead/distributed/attention.h"

#include <deque>
#include <limits>
#include <list>
#include <optional>

#include "core/index.h"
#include "core/shared_sums.h"
#include "distributed/layout.h"
#include "distributed/partial_results.h"
#include "nn/elementwise.h"
#include "sdpa/backend.h"
#include "sdpa/normal_form.h"
#include "sdpa/relative_bias.h"
#include "sdpa/sink_gradient.h"

namespace polyhead::distributed {
namespace {

std::int64_t count(const KeyRange& range) { return range.last - range.first; }

// Returns the caller's view if `in_place`, else new memory for the result.
TensorView in_place_or(const TensorView& given, bool in_place, DType dtype, const Shape& shape, Tensor& memory) {
  if (in_place) return given;
  memory = Tensor(dtype, shape);
  return memory;
}

// Adds the lifetime of this object to CallReport::compute_seconds.
class ComputeTime {
 public:
  ComputeTime(Call& call, double multiply_adds) : call_(call), multiply_adds_(multiply_adds) {}
  ComputeTime(const ComputeTime&) = delete;
  ComputeTime& operator=(const ComputeTime&) = delete;
  ~ComputeTime() { call_.computed(multiply_adds_, std::chrono::steady_clock::now() - begin_); }

 private:
  Call& call_;
  double multiply_adds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

class Forward {
 public:
  Forward(Call& call, const WholeProblem& whole, const SdpaForward& own, const SdpaOptions& options)
      : call_(call), own_(own), options_(options), layout_(call, whole, options), shard_(layout_.shard()) {}

  void run() {
    shard_.q = layout_.of_heads(own_.q);
    const ConstTensorView k = layout_.of_kv_heads(own_.k), v = layout_.of_kv_heads(own_.v);
    const Problem& p = shard_.problem();
    const bool in_place = shard_.all_keys && !layout_.exchanges();
    const Shape rows = appended(p.lead, {count(shard_.heads), layout_.rows()});
    Tensor out_memory, lse_memory;
    const TensorView given_lse = own_.lse ? own_.lse.unsqueeze(-1) : TensorView();
    out_ = in_place_or(own_.out, in_place, shard_.dtype(), appended(rows, {p.v_width}), out_memory);
    lse_ = in_place_or(given_lse, in_place, shard_.all_keys ? accumulation_dtype(p.dtype) : DType::f64, appended(rows, {1}), lse_memory);
    if (shard_.all_keys) {
      call_.finish();  // finish sending this rank's rows before computing: no other rank then waits for them while this rank computes
      const ComputeTime time(call_, layout_.own_multiply_adds());
      for (const HeadRun& run : shard_.runs()) {
        for (const Block& block : whole_blocks(p)) compute(run, block, shard_.q, k, v, shard_.of_rows(out_, run, block.rows), lse_ ? shard_.of_rows(lse_, run, block.rows) : lse_);
      }
    } else {
      through_ring(k, v);
    }
    if (in_place) return;
    layout_.to_rows_of(out_, own_.out);
    if (own_.lse) layout_.to_rows_of(lse_, given_lse);
  }

 private:
  void through_ring(const ConstTensorView& k, const ConstTensorView& v) {
    fill(lse_, -std::numeric_limits<double>::infinity());
    const Tensor wide = shard_.q.dtype() == shard_.dtype() ? Tensor() : Tensor::copy_of(shard_.q, shard_.dtype());
    const ConstTensorView q = wide ? wide.view() : shard_.q;
    Ring ring = layout_.ring();
    ring.run(k, v, [&](int, const Tensor& of_k, const Tensor& of_v, const std::vector<Block>& blocks) {
      for (const Block& block : blocks) {
        ring.in_pieces(block, 1, [&](const Block& piece) {
          for (const HeadRun& run : shard_.runs()) {
            const Shape rows = appended(shard_.problem().lead, {count(run.heads), count(piece.rows)});
            Tensor out = Tensor::uninitialised(shard_.dtype(), appended(rows, {shard_.problem().v_width})), lse = Tensor::uninitialised(shard_.dtype(), appended(rows, {1}));
            compute(run, piece, q, of_k, of_v, out, lse);
            join(out, lse, shard_.of_rows(out_, run, piece.rows), shard_.of_rows(lse_, run, piece.rows), shard_.executor);
          }
        });
      }
    });
    if (!shard_.pairs.sink) return;
    Shape of_sink = lse_.shape();
    join_sink(shard_.pairs.sink.view.expand(of_sink), out_, lse_);
  }

  void compute(const HeadRun& run, const Block& block, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, const TensorView& out,
               const TensorView& lse) const {
    ForwardProblem p;
    KeyRules rules;
    Tensor bias;
    shard_.set_problem(run, block, p, rules, bias);
    p.q = shard_.of_rows(q, run, block.rows), p.k = shard_.of_keys(k, run, block.keys), p.v = shard_.of_keys(v, run, block.keys);
    p.out = out, p.lse = lse;
    const Backend& backend = select_backend(p, Operation::forward, options_.backend);
    if (p.queries > 0) backend.forward(p);
  }

  Call& call_;
  const SdpaForward& own_;
  const SdpaOptions& options_;
  Layout layout_;
  Shard& shard_;
  TensorView out_, lse_;
};

class Backward {
 public:
  Backward(Call& call, const WholeProblem& whole, const SdpaBackward& own, const SdpaOptions& options)
      : call_(call), whole_(whole), own_(own), options_(options), layout_(call, whole, options), shard_(layout_.shard()) {}

  void run() {
    const Problem& p = shard_.problem();
    shard_.q = layout_.of_heads(own_.q);
    shard_.widened |= layout_.key_heads_are_shared() && (own_.d_k || own_.d_v);
    // In a ring, keys travel in the caller's dtype; each rank converts them to float32 when it computes with them.
    const auto at_hand = [&](const ConstTensorView& view) { return shard_.all_keys ? widened(view) : view; };
    const ConstTensorView k = at_hand(layout_.of_kv_heads(own_.k)), v = at_hand(layout_.of_kv_heads(own_.v));
    q_ = widened(shard_.q), out_ = widened(layout_.of_heads(own_.out)), d_out_ = widened(layout_.of_heads(own_.d_out));
    lse_ = layout_.of_heads(own_.lse.unsqueeze(-1));
    const bool in_place = shard_.all_keys && !layout_.exchanges();
    const Shape of_q = q_.shape(), of_k = k.shape(), of_v = v.shape();
    Tensor q_memory, k_memory, v_memory;
    if (own_.d_q) d_q_ = in_place_or(own_.d_q, in_place, shard_.dtype(), of_q, q_memory);
    if (own_.d_k) d_k_ = in_place_or(own_.d_k, in_place, shard_.dtype(), of_k, k_memory);
    if (own_.d_v) d_v_ = in_place_or(own_.d_v, in_place, shard_.dtype(), of_v, v_memory);
    begin_bias();
    if (own_.d_sink) d_sink_ = Tensor(DType::f64, lse_.shape());
    if (own_.d_relative_bias) d_relative_ = Tensor(DType::f64, p.relative_bias.shape());

    if (shard_.all_keys) {
      call_.finish();  // finish sending this rank's rows before computing: no other rank then waits for them while this rank computes
      if (shard_.heads.empty()) {  // this rank computes no query heads, so its key/value heads get no gradient
        if (d_k_) fill(d_k_, 0);
        if (d_v_) fill(d_v_, 0);
      }
      const ComputeTime time(call_, layout_.own_multiply_adds());
      for (const HeadRun& run : shard_.runs()) {
        for (const Block& block : whole_blocks(p)) {
          compute(run, block, k, v, d_q_ ? shard_.of_rows(d_q_, run, block.rows) : d_q_, d_k_ ? shard_.of_keys(d_k_, run, block.keys) : d_k_,
                  d_v_ ? shard_.of_keys(d_v_, run, block.keys) : d_v_);
        }
      }
    } else {
      through_ring(k, v);
      if (d_sink_) differentiate_sink(shard_.pairs.sink.view.expand(lse_.shape()), out_, lse_, d_out_, d_sink_);
    }
    if (!in_place) {
      if (own_.d_q) layout_.to_rows_of(d_q_, own_.d_q);
      if (own_.d_k) layout_.to_keys_of(d_k_, own_.d_k);
      if (own_.d_v) layout_.to_keys_of(d_v_, own_.d_v);
    }
    end_bias();
    end_sink();
    if (d_relative_) {
      all_reduce(call_, d_relative_);
      add_up_relative_gradient(options_.relative_bias, whole_.memory.distances, d_relative_, own_.d_relative_bias);
    }
  }

 private:
  ConstTensorView widened(const ConstTensorView& view) { return view.dtype() == shard_.dtype() ? view : ConstTensorView(kept_.emplace_back(Tensor::copy_of(view, shard_.dtype()))); }

  // Chooses the memory in which gradients of the bias are added up: the caller's d_bias if its dtype and layout allow it, else new memory in the shape of the
  // shard's bias.
  void begin_bias() {
    if (!own_.d_bias) return;
    const PairTensor& bias = shard_.pairs.bias;
    const DType dtype = accumulation_dtype(shard_.problem().dtype);
    TensorView given = own_.d_bias;
    while (given.rank() < bias.view.rank()) given = given.unsqueeze(0);
    bias_in_place_ = !layout_.exchanges() && bias.own_rows && given.dtype() == dtype && given.stride(-1) == 1;
    d_bias_ = in_place_or(given, bias_in_place_, dtype, bias.view.shape(), bias_memory_);
    if (bias_in_place_) fill(d_bias_, 0);
    // True if each element of d_bias gets a gradient from only one block and one run of heads. d_bias is then written, as on one machine, instead of
    // accumulated.
    write_bias_ = shard_.all_keys && bias.own_rows && bias.view.extent(-1) == shard_.problem().keys && (!bias.one_head() || shard_.runs().size() < 2);
  }

  void through_ring(const ConstTensorView& k, const ConstTensorView& v) {
    Ring ring = layout_.ring();
    // Gradients of this rank's keys that arrive from other ranks. They are added in the order of the steps. The messages of two steps may be under way:
    // gradients of one step travel while the next step is computed.
    struct Returning {
      std::vector<Positions> rows;
      Call::Incoming d_k, d_v;
    };
    std::deque<Returning> returning;
    const auto add_rows = [&](Call::Incoming& incoming, const std::vector<Positions>& rows, const TensorView& sums) {
      if (!incoming.transfer) return;
      const Tensor gradient = call_.take(std::move(incoming));
      std::int64_t first = 0;
      for (const Positions& range : rows) {
        nn::add(gradient.view().slice(-2, first, first + range.count()), sums.slice(-2, range.first, range.last), shard_.executor);
        first += range.count();
      }
    };
    const auto add_first = [&] {
      Returning& first = returning.front();
      add_rows(first.d_k, first.rows, d_k_), add_rows(first.d_v, first.rows, d_v_);
      returning.pop_front();
    };
    const auto expect_returned = [&](int step) {
      if (returning.size() > 1) add_first();
      const std::vector<Positions> rows = ring.needed(ring.user_in_step(step), ring.me());
      if (rows.empty()) return;
      const int from = ring.rank(ring.user_in_step(step));
      Returning& next = returning.emplace_back();
      next.rows = rows;
      const auto expect = [&](const TensorView& sums, MessageKind kind, Call::Incoming& incoming) {
        if (!sums) return;
        Shape shape = sums.shape();
        shape[-2] = count_of(rows);
        if (numel(shape) > 0) incoming = call_.receive(shard_.dtype(), shape, kind, from);
      };
      expect(d_k_, MessageKind::d_keys, next.d_k), expect(d_v_, MessageKind::d_values, next.d_v);
    };
    int expected = 0;  // number of steps for which gradients of this rank's keys were received or are under way
    ring.run(k, v, [&](int step, const Tensor& of_k, const Tensor& of_v, const std::vector<Block>& blocks) {
      while (expected < step) expect_returned(++expected);
      Tensor d_k, d_v;
      if (step > 0 && own_.d_k) d_k = Tensor(shard_.dtype(), of_k.shape());
      if (step > 0 && own_.d_v) d_v = Tensor(shard_.dtype(), of_v.shape());
      const TensorView to_k = step > 0 ? d_k : d_k_, to_v = step > 0 ? d_v : d_v_;
      for (const Block& block : blocks) {
        ring.in_pieces(block, 2.5, [&](const Block& piece) {
          for (const HeadRun& run : shard_.runs()) add_piece(run, piece, of_k, of_v, to_k, to_v);
        });
      }
      if (step == 0) return;
      const int owner = ring.rank(ring.owner_of_step(step));
      // at most 4 messages stay under way (d_k and d_v of two earlier steps), so that memory does not grow with the number of ranks
      call_.limit_sent({MessageKind::d_keys, MessageKind::d_values}, 4);
      if (d_k.numel() > 0) call_.send(d_k, MessageKind::d_keys, owner);
      if (d_v.numel() > 0) call_.send(d_v, MessageKind::d_values, owner);
    });
    while (expected + 1 < ring.size()) expect_returned(++expected);
    while (!returning.empty()) add_first();
  }

  // Computes the gradients of one piece of a block and adds them to the sums.
  void add_piece(const HeadRun& run, const Block& piece, const ConstTensorView& k, const ConstTensorView& v, const TensorView& to_k, const TensorView& to_v) {
    Tensor d_q, d_k, d_v;
    const auto part = [&](const TensorView& sums, Tensor& memory) {
      if (sums) memory = Tensor::uninitialised(shard_.dtype(), sums.shape());
      return static_cast<bool>(sums);
    };
    const TensorView q_sums = d_q_ ? shard_.of_rows(d_q_, run, piece.rows) : d_q_, k_sums = to_k ? shard_.of_keys(to_k, run, piece.keys) : to_k,
                     v_sums = to_v ? shard_.of_keys(to_v, run, piece.keys) : to_v;
    part(q_sums, d_q), part(k_sums, d_k), part(v_sums, d_v);
    compute(run, piece, k, v, d_q, d_k, d_v);
    if (d_q) nn::add(d_q, q_sums, shard_.executor);
    if (d_k) nn::add(d_k, k_sums, shard_.executor);
    if (d_v) nn::add(d_v, v_sums, shard_.executor);
  }

  void compute(const HeadRun& run, const Block& block, const ConstTensorView& k, const ConstTensorView& v, const TensorView& d_q, const TensorView& d_k, const TensorView& d_v) {
    BackwardProblem p;
    KeyRules rules;
    Tensor bias, d_bias, d_sink, d_relative;
    shard_.set_problem(run, block, p, rules, bias);
    p.part_of_keys = !shard_.all_keys;
    p.q = shard_.of_rows(q_, run, block.rows), p.k = shard_.of_keys(k, run, block.keys), p.v = shard_.of_keys(v, run, block.keys);
    p.out = shard_.of_rows(out_, run, block.rows), p.lse = shard_.of_rows(lse_, run, block.rows), p.d_out = shard_.of_rows(d_out_, run, block.rows);
    p.d_q = d_q, p.d_k = d_k, p.d_v = d_v;
    TensorView bias_sums;
    if (d_bias_) {
      bias_sums = shard_.of_pairs(d_bias_, shard_.pairs.bias.own_rows, run, block);
      d_bias = Tensor(p.dtype, bias_sums.shape());
      p.d_bias_given = d_bias, p.d_bias = d_bias.view().expand(p.bias.shape());
    }
    if (d_sink_ && shard_.all_keys) {
      d_sink = Tensor(DType::f64, p.lse.shape());
      p.d_sink = d_sink;
    }
    if (d_relative_) {
      d_relative = Tensor(DType::f64, p.relative_bias.shape());
      p.d_relative_bias = d_relative;
    }
    select_backend(p, Operation::backward, options_.backend).backward(p);
    if (d_bias) {
      const Tensor wide = d_bias.dtype() == d_bias_.dtype() ? Tensor() : Tensor::copy_of(d_bias, d_bias_.dtype());
      const ConstTensorView addends = wide ? wide.view() : ConstTensorView(d_bias);
      write_bias_ ? copy(addends, bias_sums) : nn::add(addends, bias_sums, shard_.executor);
    }
    if (d_sink) copy(d_sink, shard_.of_rows(d_sink_.view(), run, block.rows));
    if (d_relative) nn::add(d_relative, d_relative_.view().slice(0, run.heads.first, run.heads.last), nullptr);
  }

  void end_bias() {
    if (!d_bias_ || bias_in_place_) return;
    const PairTensor& given = whole_.pairs.bias;
    TensorView to = own_.d_bias;
    while (to.rank() < given.view.rank()) to = to.unsqueeze(0);
    if (given.own_rows) return given.one_head() ? layout_.add_to_rows_of(d_bias_, to) : layout_.to_rows_of(d_bias_, to);
    Tensor all = Tensor(d_bias_.dtype(), to.shape());
    copy(d_bias_, given.one_head() ? all.view() : all.view().slice(-3, shard_.heads.first, shard_.heads.last));
    all_reduce(call_, all);
    copy(all, to);
  }

  void end_sink() {
    if (!d_sink_) return;
    const Problem& p = shard_.problem();
    Tensor rows(DType::f64, appended(p.lead, {p.heads, own_.q.extent(-2), 1}));
    layout_.to_rows_of(d_sink_, rows);
    Tensor sums(DType::f64, own_.d_sink.shape());
    add_up_sink_gradient(rows, sums);
    if (!whole_.pairs.sink.own_rows) all_reduce(call_, sums);
    copy(sums, own_.d_sink);
  }

  Call& call_;
  const WholeProblem& whole_;
  const SdpaBackward& own_;
  const SdpaOptions& options_;
  Layout layout_;
  Shard& shard_;
  std::list<Tensor> kept_;
  ConstTensorView q_, out_, lse_, d_out_;
  TensorView d_q_, d_k_, d_v_;
  TensorView d_bias_;  // sums of the bias gradient, in the shape of the shard's bias
  Tensor bias_memory_;
  bool bias_in_place_ = false, write_bias_ = false;
  Tensor d_sink_, d_relative_;  // float64: [*,heads,rows,1], [N,L]
};

}  // namespace

void sdpa_forward(Communicator& communicator, const SdpaForward& own, const SdpaOptions& options, const DistributedOptions& distributed) {
  run_call(communicator, "sdpa_forward", distributed.timeout, [&](Call& call) {
    const WholeProblem whole(call, own, options, distributed);
    call.end_agreement();
    Forward(call, whole, own, options).run();
    call.finish();
    if (distributed.report != nullptr) *distributed.report = call.report();
  });
}

void sdpa_backward(Communicator& communicator, const SdpaBackward& own, const SdpaOptions& options, const DistributedOptions& distributed) {
  run_call(communicator, "sdpa_backward", distributed.timeout, [&](Call& call) {
    const WholeProblem whole(call, own, options, distributed);
    call.end_agreement();
    Backward(call, whole, own, options).run();
    call.finish();
    if (distributed.report != nullptr) *distributed.report = call.report();
  });
}

std::string explain(Communicator& communicator, const SdpaForward& own, const SdpaOptions& options, const DistributedOptions& distributed) {
  std::string text;
  run_call(communicator, "explain", distributed.timeout, [&](Call& call) {
    const WholeProblem whole(call, own, options, distributed);
    const Problem& p = whole.problem;
    Layout layout(call, whole, options);
    Ring ring = layout.ring();
    int steps = 0;
    for (int step = 0; step < ring.size(); ++step) steps += ring.needs(ring.me(), ring.owner_of_step(step));
    append(text, cat("plan: ", whole.plan.head_ranks, " head ranks x ", whole.plan.ring_ranks, " ring ranks: ", whole.plan_reason, "\n"));
    append(text, cat("problem: ", p.dtype, ", B ", p.batch, ", N ", p.heads, ", K ", p.kv_heads, ", T ", p.queries, ", S ", p.keys, ", H ", p.qk_width, ", V ", p.v_width, "\n"));
    append(text, cat("rank ", call.rank(), " of ", call.size(), ": ", count_of(whole.queries[static_cast<std::size_t>(call.rank())]), " queries, ",
                     count_of(whole.keys[static_cast<std::size_t>(call.rank())]), " keys; computes heads [", layout.shard().heads.first, ", ", layout.shard().heads.last, ") of ",
                     layout.rows(), " queries in ", steps, " of ", ring.size(), " steps\n"));
    append(text, cat("products: ", p.native && !layout.shard().widened ? "bfloat16 where the processor has them" : "exact", "\n"));
  });
  return text;
}

}  // namespace polyhead::distributed
