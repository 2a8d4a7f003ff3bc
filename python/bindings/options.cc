#include "options.h"

#include <limits>

#include "bind.h"

namespace polyhead::python {
namespace {

[[noreturn]] void refuse_type(nb::handle object, const char* name, const char* wanted) {
  throw nb::type_error(text(name, " is of type ", kind_of(object), "; it must be ", wanted).c_str());
}

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();

// An object in messages; without letters that have no UTF-8.
std::string shown(nb::handle object) {
  const nb::object letters = nb::steal(PyObject_ASCII(object.ptr()));
  if (letters.is_valid()) return nb::str(letters).c_str();
  PyErr_Clear();
  return "of type " + kind_of(object);
}

// An int of any kind (NumPy's too) as Python's.
nb::object integer_object(nb::handle object, const char* name, const char* wanted) {
  if (nb::isinstance<nb::bool_>(object) || !PyIndex_Check(object.ptr())) refuse_type(object, name, wanted);
  nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    refuse_type(object, name, wanted);
  }
  return number;
}

std::vector<nb::object> elements(nb::handle object, const char* name, const char* wanted) {
  const nb::object list = nb::isinstance<nb::str>(object) ? nb::object() : nb::steal(PySequence_List(object.ptr()));
  if (!list.is_valid()) {
    PyErr_Clear();
    refuse_type(object, name, wanted);
  }
  std::vector<nb::object> result;
  for (nb::handle element : nb::borrow<nb::list>(list)) result.push_back(nb::borrow(element));
  return result;
}

}  // namespace

double read_number(nb::handle object, const char* name) {
  // A flag where a number belongs is a slip: dropout=True would drop everything.
  if (!PyNumber_Check(object.ptr()) || nb::isinstance<nb::bool_>(object)) refuse_type(object, name, "a number");
  const double value = PyFloat_AsDouble(object.ptr());
  if (PyErr_Occurred() == nullptr) return value;
  const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
  PyErr_Clear();
  if (too_large) throw nb::value_error(text(name, " is too large for a float").c_str());
  refuse_type(object, name, "a number");
}

bool read_flag(nb::handle object, const char* name) {
  if (!nb::isinstance<nb::bool_>(object)) refuse_type(object, name, "True or False");
  return nb::cast<bool>(object);
}

std::int64_t read_integer(nb::handle object, const char* name, std::int64_t least, std::int64_t most) {
  const nb::object number = integer_object(object, name, "an int");
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || value < least || value > most) {
    throw nb::value_error(text(name, " is ", shown(number), "; it must lie in [", least, ", ", most, "]").c_str());
  }
  return value;
}

std::uint64_t read_seed(nb::handle object) {
  if (object.is_none()) return 0;
  const nb::object number = integer_object(object, "seed", "an int");
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw nb::value_error(text("seed is ", shown(number), "; it must lie in [0, 2^64)").c_str());
  }
  return value;
}

std::string read_word(nb::handle object, const char* name) {
  if (!nb::isinstance<nb::str>(object)) refuse_type(object, name, "a str");
  Py_ssize_t size = 0;
  const char* letters = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (letters == nullptr) {
    PyErr_Clear();
    throw nb::value_error(text(name, " is ", shown(object), ", which is not valid Unicode").c_str());
  }
  return std::string(letters, static_cast<std::size_t>(size));
}

std::optional<std::string> read_optional_word(nb::handle object, const char* name) {
  return object.is_none() ? std::nullopt : std::optional(read_word(object, name));
}

std::string read_path(nb::handle object, const char* name) {
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(object.ptr(), &encoded) == 0) {
    const bool wrong_type = PyErr_ExceptionMatches(PyExc_TypeError) != 0;
    PyErr_Clear();
    if (wrong_type) refuse_type(object, name, "a str, bytes or os.PathLike");
    throw nb::value_error(text(name, " is ", shown(object), ", which is no path").c_str());
  }
  const nb::object bytes = nb::steal(encoded);
  return std::string(PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr())));
}

std::vector<std::int64_t> read_integers(nb::handle object, const char* name) {
  std::vector<std::int64_t> numbers;
  for (const nb::object& element : elements(object, name, "a sequence of ints")) numbers.push_back(read_integer(element, name, kLeast, kMost));
  return numbers;
}

std::vector<std::string> read_words(nb::handle object, const char* name) {
  std::vector<std::string> words;
  for (const nb::object& element : elements(object, name, "a sequence of str")) words.push_back(read_word(element, name));
  return words;
}

const Backend* read_backend(nb::handle object) { return object.is_none() ? nullptr : &find_backend(read_word(object, "backend")); }

std::optional<int> read_num_threads(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  return static_cast<int>(read_integer(object, "num_threads", 1, kMostThreads));
}

std::optional<Diagonal> read_diagonal(nb::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  if (nb::isinstance<nb::bool_>(object)) {
    throw nb::type_error(text(name, " is a bool, which does not say where the diagonal begins; give 'top_left', 'bottom_right' or an offset").c_str());
  }
  if (PyIndex_Check(object.ptr())) return Diagonal::offset(read_integer(object, name, kLeast, kMost));
  if (!nb::isinstance<nb::str>(object)) {
    throw nb::type_error(text(name, " is of type ", kind_of(object), "; it must be 'top_left', 'bottom_right', an int or None").c_str());
  }
  return choice(name, read_word(object, name), kCorners);
}

Window read_window(nb::handle object) {
  Window window;
  if (object.is_none()) return window;
  const bool pair = (nb::isinstance<nb::tuple>(object) || nb::isinstance<nb::list>(object)) && nb::len(object) == 2;
  if (!pair) throw nb::type_error("window must be (left, right): how many keys before and after the diagonal are kept, None for all of a side");
  const auto side = [](nb::handle value) -> std::optional<std::int64_t> {
    if (value.is_none()) return std::nullopt;
    return read_integer(value, "window", 0, kMost);
  };
  window.left = side(object[0]);
  window.right = side(object[1]);
  return window;
}

CallOptions::CallOptions(const Options& options) : sdpa(options.sdpa) {
  if (options.num_threads) sdpa.executor = &threads.emplace(*options.num_threads);
}

Mask MaskArrays::mask(std::optional<Diagonal> causal, const Window& window) const {
  return {.causal = causal, .window = window, .key_lengths = key_lengths.view(), .attend = attend.view(), .block = block.view(),
          .attend_keys = attend_keys.view(), .block_keys = block_keys.view()};
}

void bind_options(nb::module_& m) {
  nb::class_<Options>(m, "Options", "The keyword arguments that polyhead.sdpa, sdpa_backward, maps and explain share, checked and converted.")
      .def(
          "__init__",
          [](Options* self, nb::handle attend, nb::handle block, nb::handle causal, nb::handle window, nb::handle key_lengths, nb::handle bias,
             nb::handle scale, nb::handle softcap, nb::handle dropout, nb::handle seed, nb::handle dropout_keep, nb::handle empty_rows, nb::handle backend,
             nb::handle num_threads) {
            Options o;
            o.arrays.attend = Array::input(attend, "attend");
            o.arrays.block = Array::input(block, "block");
            o.arrays.key_lengths = Array::input(key_lengths, "key_lengths");
            o.bias = Array::input(bias, "bias");
            o.dropout_keep = Array::input(dropout_keep, "dropout_keep");
            const double p = read_number(dropout, "dropout");
            if (p > 0 && seed.is_none() && !o.dropout_keep) throw nb::value_error("dropout needs a seed, which the backward pass and maps are given too");
            if (!(p > 0) && o.dropout_keep) throw nb::value_error("dropout_keep is given, and dropout is 0: there is nothing to drop");
            if (!scale.is_none()) o.sdpa.scale = read_number(scale, "scale");
            o.sdpa.mask = o.arrays.mask(read_diagonal(causal, "causal"), read_window(window));
            o.sdpa.bias = o.bias.view();
            o.sdpa.softcap = read_number(softcap, "softcap");
            o.sdpa.dropout = {.p = p, .seed = read_seed(seed), .keep = o.dropout_keep.view()};
            o.sdpa.empty_rows = choice("empty_rows", read_word(empty_rows, "empty_rows"), kEmptyRows);
            o.sdpa.backend = read_backend(backend);
            o.num_threads = read_num_threads(num_threads);
            new (self) Options(std::move(o));
          },
          nb::arg("attend").none(), nb::arg("block").none(), nb::arg("causal").none(), nb::arg("window").none(), nb::arg("key_lengths").none(),
          nb::arg("bias").none(), nb::arg("scale").none(), nb::arg("softcap").none(), nb::arg("dropout").none(), nb::arg("seed").none(), nb::arg("dropout_keep").none(),
          nb::arg("empty_rows").none(), nb::arg("backend").none(), nb::arg("num_threads").none());
}

}  // namespace polyhead::python
