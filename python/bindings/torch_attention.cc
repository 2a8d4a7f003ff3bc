// Attention on torch's tensors in eager mode, for polyhead/torch/_eager.py. One call from Python checks the arguments, runs the pass and saves tensors for
// autograd. In Python these steps would take longer than a small attention.
#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "bind.h"
#include "core/index.h"
#include "gil.h"
#include "gradients.h"
#include "options.h"
#include "polyhead/executor.h"
#include "polyhead/sdpa.h"
#include "shapes.h"
#include "torch_tensors.h"

namespace polyhead::python {
namespace {

// Python objects that the functions below use. polyhead.torch._eager passes them once, and they live until the process ends.
struct Eager {
  std::vector<std::pair<PyObject*, PyObject*>> quiet;  // (function of torch, the object that the function returns if nothing observes torch's operators)
  PyObject* forward_ad;                                // the module torch.autograd.forward_ad, whose _current_level is -1 outside of forward mode
  PyObject* watched;                                   // () -> bool: whether torch's operators are observed; called only if `quiet` or forward_ad suggest it
  PyObject* is_autocast_enabled;                       // () -> bool
  PyObject* get_num_threads;                           // torch.get_num_threads
  PyObject* recorders;                                 // the list of running captures
  PyObject* apply;                                     // the method apply of the autograd.Function
  PyObject* without_tensors;                           // (options, names) -> options
  PyObject* with_tensors;                              // (options, names, tensors) -> options
  PyObject* gradients;                                 // (ctx, saved tensors, gradients of the outputs) -> gradients of the inputs, computed by torch operators
};

const Eager* eager = nullptr;

void connect(nb::handle quiet, nb::handle forward_ad, nb::handle watched, nb::handle is_autocast_enabled, nb::handle get_num_threads, nb::handle recorders, nb::handle apply,
             nb::handle without_tensors, nb::handle with_tensors, nb::handle gradients) {
  const auto kept = [](nb::handle object) { return object.inc_ref().ptr(); };
  auto* const made = new Eager{.quiet = {}, .forward_ad = kept(forward_ad), .watched = kept(watched), .is_autocast_enabled = kept(is_autocast_enabled), .get_num_threads = kept(get_num_threads),
                               .recorders = kept(recorders), .apply = kept(apply), .without_tensors = kept(without_tensors),
                               .with_tensors = kept(with_tensors), .gradients = kept(gradients)};
  for (nb::handle pair : quiet) made->quiet.emplace_back(kept(nb::object(pair[0])), kept(nb::object(pair[1])));
  eager = made;
}

nb::object checked(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

template <class... Arguments>
nb::object call(PyObject* function, const Arguments&... given) {
  PyObject* const arguments[] = {given.ptr()..., nullptr};
  return checked(PyObject_Vectorcall(function, arguments, sizeof...(given), nullptr));
}

nb::object attribute(nb::handle object, PyObject* name) { return checked(PyObject_GetAttr(object.ptr(), name)); }

void set_attribute(nb::handle object, PyObject* name, nb::handle value) {
  if (PyObject_SetAttr(object.ptr(), name, value.ptr()) != 0) throw nb::python_error();
}

bool is_observed() {
  static PyObject* const kNone = PyLong_FromLong(-1);  // CPython has only one object for each small int, so comparing objects compares the numbers
  bool quiet = attribute(eager->forward_ad, POLYHEAD_INTERNED("_current_level")).is(nb::handle(kNone));
  for (const auto& [function, answer] : eager->quiet) quiet = quiet && call(function).is(nb::handle(answer));
  return !quiet && !call(eager->watched).is(nb::bool_(false));
}

std::optional<LimitedThreads> limited_threads() {  // torch's limit if it is lower than polyhead's (1 in the workers of a DataLoader)
  const long threads = PyLong_AsLong(call(eager->get_num_threads).ptr());
  return threads < num_threads() ? std::optional<LimitedThreads>(static_cast<int>(threads)) : std::nullopt;
}

nb::object option(nb::handle options, PyObject* name) {
  PyObject* const value = PyDict_GetItemWithError(options.ptr(), name);
  return value == nullptr ? nb::object(nb::none()) : nb::borrow(value);
}

// The tensors among the options of a call. They include the slopes and the table of a relative bias.
struct OptionTensors {
  std::vector<nb::object> names, tensors;
  bool are_plain = true;

  explicit OptionTensors(nb::handle options) {
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(options.ptr(), &at, &name, &value) != 0;) add(name, value);
    const nb::object relative = option(options, POLYHEAD_INTERNED("relative_bias"));
    if (relative.is_none()) return;
    for (PyObject* const part : {POLYHEAD_INTERNED("slopes"), POLYHEAD_INTERNED("table")}) {
      const nb::object tensor = nb::getattr(relative, nb::handle(part), nb::none());
      are_plain = are_plain && (add(part, tensor) || tensor.is_none());
    }
  }
  bool require_grad() const {
    for (const nb::object& tensor : tensors) {
      if (requires_grad(tensor)) return true;
    }
    return false;
  }

 private:
  bool add(nb::handle name, nb::handle value) {
    if (is_plain_tensor(value)) {
      names.push_back(nb::borrow(name)), tensors.push_back(nb::borrow(value));
      return true;
    }
    are_plain = are_plain && !is_tensor_of_torch(value);
    return false;
  }
};

// The arguments of a pass. q, k or v is absent if its memory cannot be read directly.
struct TensorCall : SdpaCall {
  TensorCall(const char* function, nb::handle options, nb::handle q_given, nb::handle k_given, nb::handle v_given) : SdpaCall(function, options) {
    q = keep(Array::tensor_memory(q_given, "q")), k = keep(Array::tensor_memory(k_given, "k")), v = keep(Array::tensor_memory(v_given, "v"));
    if (threads) return;
    threads = limited_threads();
    if (threads) sdpa.executor = &*threads;
  }
  bool is_readable() const { return q && k && v && is_floating(q.dtype()) && q.rank() >= 3 && k.rank() >= 3 && v.rank() >= 3; }

  // Runs f(). Releases the GIL meanwhile, unless the problem is small: releasing and taking the GIL takes as long as a small problem.
  template <class F>
  void compute(const F& f) const {
    constexpr double kSmall = 1 << 15;  // a number of multiplications that takes a few microseconds
    const double pairs = static_cast<double>(k.extent(-2)) * static_cast<double>(q.numel());
    const double products = q.extent(-1) == 0 ? 0 : pairs + pairs / static_cast<double>(q.extent(-1)) * static_cast<double>(v.extent(-1));
    if (products < kSmall) {
      f();
    } else {
      without_gil(f);
    }
  }

  ConstTensorView q, k, v;
};

struct Outputs {
  nb::object out, lse, attention_weights;  // None if not wanted
};

// Runs the forward pass. fits(call) says whether the tensors can be used as they are. If fits(call) is false, or if an argument cannot be read, the function
// returns nullopt before anything is computed. The caller then calls the torch operator, which converts tensors and reports errors. Errors of the pass itself
// are raised.
template <class F>
std::optional<Outputs> run_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle given, bool want_lse, bool want_weights, nb::handle out_given, const F& fits) {
  nb::object options = nb::borrow(given);
  nb::object scales[2] = {nb::none(), nb::none()};  // k_scale and v_scale, which are separate arguments of sdpa, not options
  PyObject* const names[2] = {POLYHEAD_INTERNED("k_scale"), POLYHEAD_INTERNED("v_scale")};
  for (int i = 0; i < 2; ++i) {
    scales[i] = option(options, names[i]);
    if (scales[i].is_none()) continue;
    options = checked(PyDict_Copy(options.ptr()));
    PyDict_DelItem(options.ptr(), names[i]);
  }
  std::optional<TensorCall> read;
  ConstTensorView k_scale, v_scale;
  std::optional<Result> out, lse, weights;
  try {
    TensorCall& pass = read.emplace("sdpa", options, q, k, v);
    if (!pass.is_readable() || !fits(pass)) return std::nullopt;
    k_scale = pass.keep(Array::input(scales[0], "k_scale")), v_scale = pass.keep(Array::input(scales[1], "v_scale"));
    out.emplace("out", out_given, true, q, out_shape(pass.q, pass.v), pass.q.dtype(), pass.q);
    lse.emplace("lse", nb::none(), want_lse, q, without_last(pass.q), lse_dtype(pass.q.dtype()));
    weights.emplace("attention_weights", nb::none(), want_weights, q, with_last(pass.q, pass.k.extent(-2)), pass.q.dtype());
  } catch (const nb::builtin_exception&) {
    return std::nullopt;
  }
  if (PyList_Size(eager->recorders) > 0) {
    for (nb::handle recorder : nb::borrow<nb::list>(eager->recorders)) recorder.attr("record")(q, k, given);
  }
  read->compute([&] {
    sdpa_forward({.q = read->q, .k = read->k, .v = read->v, .out = out->view(), .lse = lse->view(), .attention_weights = weights->view(), .k_scale = k_scale,
                  .v_scale = v_scale}, read->sdpa);
  });
  return Outputs{std::move(out->object), std::move(lse->object), std::move(weights->object)};
}

nb::object tuple_of(const std::vector<nb::object>& objects) {
  nb::object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(objects.size())));
  for (std::size_t i = 0; i < objects.size(); ++i) PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), nb::object(objects[i]).release().ptr());
  return tuple;
}

// Records a pass for autograd: calls autograd.Function.apply(call, results, q, k, v, *tensors), where `call` is (options without tensors, names of `tensors`,
// number of outputs).
nb::object record_pass(nb::handle q, nb::handle k, nb::handle v, nb::handle given, const OptionTensors& more, const Outputs& results, int outputs) {
  const nb::object names = tuple_of(more.names);
  const nb::object options = more.names.empty() ? nb::borrow(given) : call(eager->without_tensors, given, names);
  std::vector<nb::object> arguments{nb::make_tuple(options, names, outputs), nb::make_tuple(results.out, results.lse, results.attention_weights),
                                    nb::borrow(q), nb::borrow(k), nb::borrow(v)};
  arguments.insert(arguments.end(), more.tensors.begin(), more.tensors.end());
  return checked(PyObject_CallObject(eager->apply, tuple_of(arguments).ptr()));
}

// Returns out, or (out, lse, attention weights) if lse or attention weights are wanted; None if the caller must call the torch operator.
template <class F>
nb::object run(nb::handle q, nb::handle k, nb::handle v, nb::handle given, bool want_lse, bool want_weights, nb::handle out, const F& fits) {
  if (!is_plain_tensor(q) || !is_plain_tensor(k) || !is_plain_tensor(v) || is_observed()) return nb::none();
  const OptionTensors more(given);
  if (!more.are_plain) return nb::none();
  const bool of_options = more.require_grad();
  const auto result = [&](const Outputs& results) -> nb::object {
    return want_lse || want_weights ? nb::object(nb::make_tuple(results.out, results.lse, results.attention_weights)) : results.out;
  };
  if (!is_grad_enabled() || !(of_options || requires_grad(q) || requires_grad(k) || requires_grad(v))) {
    const std::optional<Outputs> results = run_forward(q, k, v, given, want_lse, want_weights, out, fits);
    return results ? result(*results) : nb::none();
  }
  // polyhead does not have some gradients. Leave calls that need them to the torch operator, which raises the error.
  const bool of_scales = !option(given, POLYHEAD_INTERNED("k_scale")).is_none() || !option(given, POLYHEAD_INTERNED("v_scale")).is_none();
  if ((of_options && of_scales) || !out.is_none()) return nb::none();
  if (want_lse && option(given, POLYHEAD_INTERNED("empty_rows")).equal(nb::str("uniform"))) return nb::none();
  nb::object options = nb::borrow(given);
  if (of_options) {
    std::vector<nb::object> detached;
    for (const nb::object& tensor : more.tensors) detached.push_back(tensor.attr("detach")());
    options = call(eager->with_tensors, given, tuple_of(more.names), tuple_of(detached));
  }
  const std::optional<Outputs> results = run_forward(q, k, v, options, true, want_weights, out, fits);
  if (!results) return nb::none();
  const int outputs = want_weights ? 3 : want_lse ? 2 : 1;
  const nb::object recorded = record_pass(q, k, v, given, more, *results, outputs);
  if (outputs == 1) return recorded;
  const nb::tuple parts = nb::borrow<nb::tuple>(recorded);
  return result({parts[0], parts[1], outputs == 3 ? nb::object(parts[2]) : nb::none()});
}

// Computes attention, and records the pass for autograd if a gradient is needed. Returns None if the torch operator must compute the call.
nb::object attention(nb::handle q, nb::handle k, nb::handle v, nb::handle options, bool lse, bool attention_weights, nb::handle out) {
  return run(q, k, v, options, lse, attention_weights, out, [](const TensorCall&) { return true; });
}

// Whether sdpa_forward accepts the shapes and dtypes of the tensors, so that torch's rules of broadcasting and conversion are not needed. mask: the view of
// attn_mask.
bool need_no_conversion(const TensorCall& read, bool grouped, ConstTensorView mask) {
  const ConstTensorView q = read.q, k = read.k, v = read.v;
  const int lead = q.rank() - 3;
  if (k.rank() != q.rank() || v.rank() != q.rank() || k.dtype() != q.dtype() || v.dtype() != q.dtype()) return false;
  for (int axis = 0; axis < lead; ++axis) {
    if (k.extent(axis) != q.extent(axis) || v.extent(axis) != q.extent(axis)) return false;
  }
  const std::int64_t heads = q.extent(-3), shared = k.extent(-3);
  if (v.extent(-3) != shared || !(shared == heads || (grouped && shared > 0 && heads % shared == 0))) return false;
  if (!mask) return true;
  Shape pairs = q.shape();
  pairs[-1] = k.extent(-2);
  return (mask.dtype() == DType::boolean || mask.dtype() == q.dtype()) && broadcasts(mask.shape(), pairs);
}

// Computes torch's scaled_dot_product_attention for a call that needs no conversion. Returns None for other calls and for wrong arguments.
nb::object torch_sdpa(nb::handle query, nb::handle key, nb::handle value, nb::handle mask, nb::handle dropout, nb::handle causal, nb::handle scale,
                      nb::handle grouped, nb::handle precision) {
  static PyObject* const kZero = PyLong_FromLong(0);
  const auto is_number = [](nb::handle x) { return PyFloat_CheckExact(x.ptr()) || PyLong_CheckExact(x.ptr()); };
  const auto is_true = [](nb::handle x) { return x.is(nb::handle(Py_True)); };
  const auto is_flag = [&](nb::handle x) { return is_true(x) || x.is(nb::handle(Py_False)); };
  if (!is_number(dropout) || !checked(PyObject_RichCompare(dropout.ptr(), kZero, Py_EQ)).is(nb::handle(Py_True)) || !is_flag(causal) || !is_flag(grouped) || !(scale.is_none() || is_number(scale))) return nb::none();
  if (!PyUnicode_CheckExact(precision.ptr()) || call(eager->is_autocast_enabled).is(nb::handle(Py_True))) return nb::none();
  const nb::object options = checked(PyDict_New());
  const auto set = [&](PyObject* name, nb::handle x) {
    if (PyDict_SetItem(options.ptr(), name, x.ptr()) != 0) throw nb::python_error();
  };
  if (!mask.is_none()) {
    nb::dlpack::dltensor tensor;
    if (is_true(causal) || !read_tensor_memory(mask, tensor)) return nb::none();
    const bool boolean = tensor.dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bool);
    set(boolean ? POLYHEAD_INTERNED("attend") : POLYHEAD_INTERNED("bias"), mask);
  }
  if (is_true(causal)) set(POLYHEAD_INTERNED("causal"), POLYHEAD_INTERNED("top_left"));
  if (!scale.is_none()) set(POLYHEAD_INTERNED("scale"), scale);
  if (PyUnicode_Compare(precision.ptr(), POLYHEAD_INTERNED("native")) != 0) set(POLYHEAD_INTERNED("precision"), precision);
  return run(query, key, value, options, false, false, nb::none(), [&](const TensorCall& read) {
    return need_no_conversion(read, is_true(grouped), read.sdpa.mask.attend ? read.sdpa.mask.attend : read.sdpa.bias);
  });
}

// The method forward of the autograd.Function: (ctx, call, results, q, k, v, *tensors). torch saves the tensors, masks included, because torch detects later
// writes to saved tensors.
nb::object save(const nb::args& given) {
  const nb::handle ctx = given[0], call_of = given[1];
  const nb::tuple results = nb::borrow<nb::tuple>(given[2]);
  const int outputs = nb::cast<int>(nb::borrow<nb::tuple>(call_of)[2]);
  set_attribute(ctx, POLYHEAD_INTERNED("call"), call_of);
  std::vector<nb::object> saved{given[3], given[4], given[5], results[0]};
  for (std::size_t i = 6; i < given.size(); ++i) saved.push_back(given[i]);
  if (outputs == 1) {
    set_attribute(ctx, POLYHEAD_INTERNED("lse"), results[1]);  // lse is not an output of the function here, so the caller cannot write to it
    set_attribute(ctx, POLYHEAD_INTERNED("to_save"), tuple_of(saved));
    return results[0];
  }
  saved.push_back(results[1]), saved.push_back(results[2]);
  set_attribute(ctx, POLYHEAD_INTERNED("to_save"), tuple_of(saved));
  set_attribute(ctx, POLYHEAD_INTERNED("materialize_grads"), nb::bool_(false));
  if (outputs == 2) return nb::make_tuple(results[0], results[1]);
  return results;
}

// Computes d_q, d_k, d_v and the gradients of the named tensors; nullopt if the torch operator must compute them. wanted: which gradients to compute.
std::optional<std::vector<nb::object>> run_backward(nb::handle call_of, const nb::tuple& saved, nb::handle lse_saved, nb::handle d_out_given, const nb::tuple& wanted) {
  const nb::tuple parts = nb::borrow<nb::tuple>(call_of), names = nb::borrow<nb::tuple>(parts[1]);
  const auto named = [&](std::string_view name) {  // whether the gradient of the option `name` is wanted
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (name == nb::borrow<nb::str>(names[i]).c_str()) return nb::cast<bool>(wanted[i + 3]);
    }
    return false;
  };
  nb::object options = parts[0];
  if (names.size() > 0) {
    if (!option(options, POLYHEAD_INTERNED("k_scale")).is_none()) return std::nullopt;
    std::vector<nb::object> tensors;
    for (std::size_t i = 0; i < names.size(); ++i) tensors.push_back(saved[i + 4]);
    options = call(eager->with_tensors, options, names, tuple_of(tensors));
  }
  std::optional<TensorCall> read;
  std::optional<GradientResults> gradients;
  SdpaBackward tensors{.q = {}, .k = {}, .v = {}, .out = {}, .lse = {}, .d_out = {}, .d_q = {}, .d_k = {}, .d_v = {}};
  const nb::object q = saved[0], k = saved[1], v = saved[2];
  try {
    TensorCall& pass = read.emplace("sdpa_backward", options, q, k, v);
    tensors.out = pass.keep(Array::tensor_memory(saved[3], "out")), tensors.lse = pass.keep(Array::tensor_memory(lse_saved, "lse"));
    tensors.d_out = pass.keep(Array::tensor_memory(d_out_given, "d_out"));
    if (!pass.is_readable() || !tensors.out || !tensors.lse || !tensors.d_out) return std::nullopt;
    tensors.q = pass.q, tensors.k = pass.k, tensors.v = pass.v;
    for (const ConstTensorView& view : {tensors.k, tensors.v, tensors.out, tensors.d_out}) {  // tensors of other dtypes are left to the torch operator, which converts them
      if (view.dtype() != pass.q.dtype()) return std::nullopt;
    }
    gradients.emplace(SdpaForward{.q = pass.q, .k = pass.k, .v = pass.v, .out = {}}, pass.sdpa, q,
                      [&](std::string_view argument, std::size_t i) { return i < 3 ? nb::cast<bool>(wanted[i]) : named(argument); });
  } catch (const nb::builtin_exception&) {
    return std::nullopt;
  }
  gradients->place(tensors);
  read->compute([&] { sdpa_backward(tensors, read->sdpa); });
  std::vector<nb::object> found;
  for (std::size_t i = 0; i < 3; ++i) found.push_back(gradients->all()[i].result.object);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const nb::str name = nb::borrow<nb::str>(names[i]);
    nb::object gradient = nb::none();
    for (const GradientResult& one : gradients->all().subspan(3)) {
      if (name.c_str() == one.argument) gradient = one.result.object;
    }
    found.push_back(gradient);
  }
  return found;
}

// The method backward of the autograd.Function: (ctx, d_out), or with more outputs (ctx, d_out, d_lse[, d_attention_weights]).
nb::object backward(const nb::args& given) {
  const nb::handle ctx = given[0], d_out = given[1];
  const nb::object call_of = attribute(ctx, POLYHEAD_INTERNED("call"));
  const nb::tuple saved = nb::borrow<nb::tuple>(attribute(ctx, POLYHEAD_INTERNED("saved_tensors")));  // read saved_tensors only once: under torch's checkpoint a second read fails
  bool of_out = is_plain_tensor(d_out);
  for (std::size_t i = 2; i < given.size(); ++i) of_out = of_out && nb::handle(given[i]).is_none();
  if (of_out && !is_grad_enabled() && !is_observed()) {
    const nb::tuple needs = nb::borrow<nb::tuple>(attribute(ctx, POLYHEAD_INTERNED("needs_input_grad")));
    const nb::object wanted = checked(PyTuple_GetSlice(needs.ptr(), 2, static_cast<Py_ssize_t>(needs.size())));
    const nb::object lse = given.size() > 2 ? nb::object(saved[saved.size() - 2]) : attribute(ctx, POLYHEAD_INTERNED("lse"));
    if (const auto gradients = run_backward(call_of, saved, lse, d_out, nb::borrow<nb::tuple>(wanted))) {
      std::vector<nb::object> all{nb::none(), nb::none()};
      all.insert(all.end(), gradients->begin(), gradients->end());
      return tuple_of(all);
    }
  }
  const nb::object of_outputs = checked(PyTuple_GetSlice(given.ptr(), 1, static_cast<Py_ssize_t>(given.size())));
  return call(eager->gradients, ctx, saved, of_outputs);
}

}  // namespace

void bind_torch_attention(nb::module_& m) {
  m.def("connect_eager_attention", &connect, any("quiet"), any("forward_ad"), any("watched"), any("is_autocast_enabled"), any("get_num_threads"), any("recorders"), any("apply"),
        any("without_tensors"), any("with_tensors"), any("gradients"));
  m.def("eager_attention", &attention, any("q"), any("k"), any("v"), any("options"), nb::arg("return_lse"), nb::arg("return_attention_weights"), any("out"));
  m.def("eager_sdpa", &torch_sdpa, any("query"), any("key"), any("value"), any("attn_mask"), any("dropout_p"), any("is_causal"), any("scale"),
        any("enable_gqa"), any("precision"));
  m.def("eager_attention_save", &save, nb::sig("def eager_attention_save(*args: object) -> object"));
  m.def("eager_attention_backward", &backward, nb::sig("def eager_attention_backward(*args: object) -> object"));
}

}  // namespace polyhead::python
