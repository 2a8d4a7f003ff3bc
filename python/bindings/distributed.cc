#include "polyhead/distributed.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>

#include "bind.h"
#include "gil.h"
#include "gradients.h"
#include "options.h"
#include "polyhead/error.h"
#include "polyhead/tensor.h"
#include "shapes.h"

namespace polyhead::python {
namespace {

using distributed::DistributedOptions;
using distributed::Message;
using distributed::Plan;
using distributed::Transfer;

// A message's memory as a NumPy array, which keeps the memory's owner alive.
nb::object bytes_of(const Message& message) {
  static std::byte none;  // NumPy needs a pointer even for an empty array
  auto owner = std::make_unique<std::shared_ptr<void>>(message.owner);
  const nb::capsule capsule(owner.get(), [](void* memory) noexcept { delete static_cast<std::shared_ptr<void>*>(memory); });
  owner.release();
  std::byte* const data = message.bytes.empty() ? &none : message.bytes.data();
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(data, {message.bytes.size()}, capsule), nb::rv_policy::reference);
}

// The library's side of a Python communicator, which lasts from call to call. The Python object owns it, and is passed to each call.
class Ranks final : public distributed::Communicator {
 public:
  int rank() const override { return number("rank"); }
  int size() const override { return number("size"); }
  std::unique_ptr<Transfer> send(const Message& message, int to, int tag) override { return begin("send", "to", message, to, tag); }
  std::unique_ptr<Transfer> receive(const Message& message, int from, int tag) override { return begin("receive", "from", message, from, tag); }
  void progress() override {
    with_python("progress()", [&] {
      check_signals();
      object_.attr("progress")();
      return true;
    });
  }

  // Runs f(), a distributed call, without the GIL. If a method of the Python communicator raises an Exception, run() raises a ConnectionError with this
  // exception as its cause. A BaseException that is not an Exception, such as KeyboardInterrupt, is raised unchanged.
  template <class F>
  void run(nb::handle object, const F& f) {
    if (object_.is_valid()) throw nb::value_error("another thread computes with this communicator; its calls must come one after the other");
    object_ = object;
    cause_.reset();
    try {
      without_gil(f);
    } catch (const Error& error) {
      object_ = {};
      if (error.code() != ErrorCode::communication || !cause_) throw;
      nb::python_error cause = *cause_;
      cause_.reset();
      if (!cause.matches(PyExc_Exception)) throw cause;
      nb::raise_from(cause, PyExc_ConnectionError, "%s", error.what());
    } catch (...) {
      object_ = {};
      throw;
    }
    object_ = {};
  }

 private:
  class Handle final : public Transfer {
   public:
    Handle(const Ranks& ranks, std::string what, nb::object handle) : ranks_(ranks), what_(std::move(what)), handle_(std::move(handle)) {}
    ~Handle() override {
      const TakenGil gil;
      handle_.reset();
    }
    bool wait(std::chrono::nanoseconds limit) override {
      using Clock = std::chrono::steady_clock;
      constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(200);  // longest time between two checks for signals
      const auto begin = Clock::now();
      std::chrono::nanoseconds left = limit;
      do {
        if (wait_once(std::clamp(left, left.zero(), kSlice))) return true;
        left = limit - (Clock::now() - begin);
      } while (left > left.zero());
      return false;
    }

   private:
    bool wait_once(std::chrono::nanoseconds limit) const {
      return ranks_.with_python(what_, [&] {
        check_signals();
        const nb::object done = handle_.attr("wait")(std::chrono::duration<double>(limit).count());
        const int truth = PyObject_IsTrue(done.ptr());
        if (truth < 0) throw nb::python_error();
        return truth == 1;
      });
    }

    const Ranks& ranks_;
    std::string what_;
    nb::object handle_;
  };

  static void check_signals() {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }

  // Runs f() with the GIL. Converts a Python exception to an Error that says what failed, and stores the Python exception for run().
  template <class F>
  std::invoke_result_t<F> with_python(const std::string& what, const F& f) const {
    const TakenGil gil;
    try {
      return f();
    } catch (const nb::python_error& error) {
      if (!cause_) cause_.emplace(error);  // keep the first exception: after a failure this rank still sends messages to the other ranks, and these calls may fail too
      throw Error(ErrorCode::communication, cat(what, " failed: ", shown(error)));
    } catch (const nb::cast_error&) {
      throw Error(ErrorCode::communication, cat(what, " failed: the communicator returned a value of another type"));
    }
  }

  // The exception as a text such as "ValueError: message".
  static std::string shown(const nb::python_error& error) {
    const nb::object letters = nb::steal(PyObject_Str(error.value().ptr()));
    if (!letters.is_valid()) PyErr_Clear();
    const std::string said = letters.is_valid() ? nb::borrow<nb::str>(letters).c_str() : "";
    return kind_of(error.value()) + (said.empty() ? "" : ": " + said);
  }

  int number(const char* name) const {
    return with_python(cat(name, "()"), [&] { return static_cast<int>(read_integer(object_.attr(name)(), name, 0, 1 << 30)); });
  }

  std::unique_ptr<Transfer> begin(const char* method, const char* direction, const Message& message, int other, int tag) {
    const std::string what = cat("a message ", direction, " rank ", other);
    return with_python(what, [&]() -> std::unique_ptr<Transfer> {
      return std::make_unique<Handle>(*this, what, nb::object(object_.attr(method)(bytes_of(message), other, tag)));
    });
  }

  nb::handle object_;  // set only during a call
  mutable std::optional<nb::python_error> cause_;
};

constexpr Choices<distributed::SliceOrder, 2> kOrders{{{"contiguous", distributed::SliceOrder::contiguous}, {"zigzag", distributed::SliceOrder::zigzag}}};
constexpr Choices<distributed::OneRow, 2> kOneRows{{{"own", distributed::OneRow::own}, {"shared", distributed::OneRow::shared}}};

std::chrono::milliseconds read_timeout(nb::handle timeout) {
  const double seconds = read_number(timeout, "timeout");
  constexpr double kLongest = 1e9;
  if (!(seconds > 0 && seconds <= kLongest)) throw nb::value_error("timeout must be a positive number of seconds, at most 1e9");
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

// Converts the Python arguments that say how the ranks divide a call to the library's DistributedOptions.
DistributedOptions read_distributed(nb::handle given) {
  if (!nb::isinstance<nb::tuple>(given) || nb::len(given) != 5) throw nb::type_error("distributed is (order, plan, timeout, one_row, ranks_per_machine)");
  const nb::tuple parts = nb::borrow<nb::tuple>(given);
  const nb::handle order = parts[0], plan = parts[1], timeout = parts[2], one_row = parts[3], ranks_per_machine = parts[4];
  DistributedOptions options;
  options.order = choice("order", read_word(order, "order"), kOrders);
  if (!plan.is_none()) {
    const bool pair = (nb::isinstance<nb::tuple>(plan) || nb::isinstance<nb::list>(plan)) && nb::len(plan) == 2;
    if (!pair) throw nb::type_error("plan must be (head_ranks, ring_ranks) or None");
    const auto part = [&](int i, const char* name) { return static_cast<int>(read_integer(plan[i], name, 1, 1 << 30)); };
    options.plan = Plan{part(0, "plan[0], head_ranks,"), part(1, "plan[1], ring_ranks,")};
  }
  options.timeout = read_timeout(timeout);
  if (!one_row.is_none()) options.one_row = choice("one_row", read_word(one_row, "one_row"), kOneRows);
  if (!ranks_per_machine.is_none()) options.links.ranks_per_machine = static_cast<int>(read_integer(ranks_per_machine, "ranks_per_machine", 1, 1 << 30));
  return options;
}

// Returns (out, lse or None).
Tuple<nb::any, nb::any> forward(Ranks& ranks, nb::handle communicator, nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle options,
                                nb::handle distributed, nb::handle lse_flag, nb::handle out_given, bool d_bias_follows, bool d_sink_follows) {
  SdpaCall call("distributed.sdpa", options);
  DistributedOptions of_ranks = read_distributed(distributed);
  of_ranks.d_bias_follows = d_bias_follows, of_ranks.d_sink_follows = d_sink_follows;
  const bool return_lse = read_flag(lse_flag, "return_lse");
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const Result out("out", out_given, true, q_given, out_shape(q, v), q.dtype(), q);
  const Result lse("lse", nb::none(), return_lse, q_given, without_last(q), lse_dtype(q.dtype()));
  ranks.run(communicator, [&] { sdpa_forward(ranks, {.q = q, .k = k, .v = v, .out = out.view(), .lse = lse.view()}, call.sdpa, of_ranks); });
  return nb::make_tuple(out.object, lse.object);
}

// Returns the fields of polyhead.Gradients, with None for gradients that are not wanted.
Gradients backward(Ranks& ranks, nb::handle communicator, nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle out, nb::handle lse, nb::handle d_out,
                   nb::handle options, nb::handle distributed, nb::handle d_bias, const Wanted& wanted) {
  SdpaCall call("distributed.sdpa_backward", options);
  const DistributedOptions of_ranks = read_distributed(distributed);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const GradientResults gradients({.q = q, .k = k, .v = v, .out = {}}, call.sdpa, q_given, wanted, d_bias);
  SdpaBackward tensors{.q = q, .k = k, .v = v, .out = call.required(out, "out"), .lse = call.required(lse, "lse"), .d_out = call.required(d_out, "d_out"),
                       .d_q = {}, .d_k = {}, .d_v = {}};
  gradients.place(tensors);
  ranks.run(communicator, [&] { sdpa_backward(ranks, tensors, call.sdpa, of_ranks); });
  return gradients.objects();
}

std::string explain_forward(Ranks& ranks, nb::handle communicator, nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle options,
                            nb::handle distributed) {
  SdpaCall call("distributed.explain", options);
  const DistributedOptions of_ranks = read_distributed(distributed);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  const Result out("out", nb::none(), true, q_given, out_shape(q, v), q.dtype());
  std::string found;
  ranks.run(communicator, [&] { found = explain(ranks, {.q = q, .k = k, .v = v, .out = out.view()}, call.sdpa, of_ranks); });
  return found;
}

// Sends rank 0's number to all ranks and returns it.
std::int64_t first_number(Ranks& ranks, nb::handle communicator, nb::handle number, nb::handle timeout) {
  const Tensor own = Tensor::of<std::int64_t>({1}, {read_integer(number, "number", 0, std::numeric_limits<std::int64_t>::max())});
  const distributed::CollectiveOptions options{.timeout = read_timeout(timeout)};
  Tensor all;
  ranks.run(communicator, [&] {
    all = Tensor(DType::i64, {ranks.size()});
    distributed::all_gather(ranks, own, 0, all, options);
  });
  return all.data<std::int64_t>()[0];
}

std::vector<std::pair<std::int64_t, std::int64_t>> slice_of(nb::handle order, nb::handle length, nb::handle rank, nb::handle ranks) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const distributed::Positions& range :
       distributed::slice_of(choice("order", read_word(order, "order"), kOrders), read_integer(length, "length", 0, kMost),
                             static_cast<int>(read_integer(rank, "rank", 0, 1 << 30)), static_cast<int>(read_integer(ranks, "ranks", 1, 1 << 30)))) {
    ranges.emplace_back(range.first, range.last);
  }
  return ranges;
}

}  // namespace

void bind_distributed(nb::module_& m) {
  nb::class_<Ranks>(m, "Ranks").def(nb::init<>());
  m.def("distributed_sdpa", &forward, nb::arg("ranks"), any("communicator"), any("q"), any("k"), any("v"), any("options"), any("distributed"),
        any("return_lse"), any("out"), nb::arg("d_bias_follows"), nb::arg("d_sink_follows"));
  m.def("distributed_sdpa_backward", &backward, nb::arg("ranks"), any("communicator"), any("q"), any("k"), any("v"), any("out"), any("lse"),
        any("d_out"), any("options"), any("distributed"), any("d_bias"), nb::arg("wanted"));
  m.def("distributed_explain", &explain_forward, nb::arg("ranks"), any("communicator"), any("q"), any("k"), any("v"), any("options"), any("distributed"));
  m.def("first_number", &first_number, nb::arg("ranks"), any("communicator"), any("number"), any("timeout"));
  m.def("slice_of", &slice_of, any("order"), any("length"), any("rank"), any("ranks"));
}

}  // namespace polyhead::python
