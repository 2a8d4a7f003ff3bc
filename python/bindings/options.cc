#include "options.h"

#include <limits>

#include "bind.h"
#include "cache.h"
#include "option_fields.h"

namespace polyhead::python {
namespace {

[[noreturn]] void refuse_type(nb::handle object, const char* name, const char* wanted) {
  throw nb::type_error(cat(name, " is of type ", kind_of(object), "; it must be ", wanted).c_str());
}

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();

// ascii(object), for messages.
std::string shown(nb::handle object) {
  const nb::object letters = nb::steal(PyObject_ASCII(object.ptr()));
  if (letters.is_valid()) return nb::str(letters).c_str();
  PyErr_Clear();
  return "of type " + kind_of(object);
}

// Converts any kind of integer, such as NumPy's, to a Python int. TypeError for bool and for everything that is not an integer.
nb::object integer_object(nb::handle object, const char* name, const char* wanted) {
  if (nb::isinstance<nb::bool_>(object) || !PyIndex_Check(object.ptr())) refuse_type(object, name, wanted);
  nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    refuse_type(object, name, wanted);
  }
  return number;
}

nb::list elements(nb::handle object, const char* name, const char* wanted) {
  // Refuse sets, which have no defined order, and dicts, where it is unclear whether keys or values are meant.
  const bool unordered = PyAnySet_Check(object.ptr()) != 0 || PyDict_Check(object.ptr()) != 0;
  nb::object list = unordered || nb::isinstance<nb::str>(object) ? nb::object() : nb::steal(PySequence_List(object.ptr()));
  if (!list.is_valid()) {
    PyErr_Clear();
    refuse_type(object, name, wanted);
  }
  return nb::borrow<nb::list>(list);
}

}  // namespace

double read_number(nb::handle object, const char* name) {
  // Refuse bool: dropout=True would mean 1, which drops every attention weight.
  if (!PyNumber_Check(object.ptr()) || nb::isinstance<nb::bool_>(object)) refuse_type(object, name, "a number");
  const double value = PyFloat_AsDouble(object.ptr());
  if (PyErr_Occurred() == nullptr) return value;
  const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
  PyErr_Clear();
  if (too_large) throw nb::value_error(cat(name, " is too large for a float").c_str());
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
    throw nb::value_error(cat(name, " is ", shown(number), "; it must lie in [", least, ", ", most, "]").c_str());
  }
  return value;
}

std::uint64_t read_seed(nb::handle object) {
  const nb::object number = integer_object(object, "seed", "an int");
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw nb::value_error(cat("seed is ", shown(number), "; it must lie in [0, 2^64)").c_str());
  }
  return value;
}

std::string read_word(nb::handle object, const char* name) {
  if (!nb::isinstance<nb::str>(object)) refuse_type(object, name, "a str");
  Py_ssize_t size = 0;
  const char* letters = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (letters == nullptr) {
    PyErr_Clear();
    throw nb::value_error(cat(name, " is ", shown(object), ", which is not valid Unicode").c_str());
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
    throw nb::value_error(cat(name, " is ", shown(object), ", which is no path").c_str());
  }
  const nb::object bytes = nb::steal(encoded);
  return std::string(PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr())));
}

std::vector<std::int64_t> read_integers(nb::handle object, const char* name) {
  std::vector<std::int64_t> numbers;
  for (nb::handle element : elements(object, name, "a sequence of ints")) numbers.push_back(read_integer(element, name, kLeast, kMost));
  return numbers;
}

std::vector<double> read_numbers(nb::handle object, const char* name) {
  std::vector<double> numbers;
  for (nb::handle element : elements(object, name, "a sequence of numbers")) numbers.push_back(read_number(element, name));
  return numbers;
}

std::vector<std::string> read_words(nb::handle object, const char* name) {
  std::vector<std::string> words;
  for (nb::handle element : elements(object, name, "a sequence of str")) words.push_back(read_word(element, name));
  return words;
}

MapValue read_map_value(nb::handle object) {
  constexpr Choices<MapValue, 5> kMapValues{{{"scaled_score", MapValue::scaled_score},
                                             {"capped_score", MapValue::capped_score},
                                             {"score", MapValue::score},
                                             {"probability", MapValue::probability},
                                             {"dropped", MapValue::dropped}}};
  return choice("value", read_word(object, "value"), kMapValues);
}

std::optional<LimitedThreads> read_num_threads(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  return LimitedThreads(static_cast<int>(read_integer(object, "num_threads", 1, kMostThreads)));
}

namespace {

void read(const char* name, nb::handle given, double& number) { number = read_number(given, name); }
void read(const char* name, nb::handle given, nn::Mode& mode) { mode = read_flag(given, name) ? nn::Mode::training : nn::Mode::evaluation; }
void read(const char* name, nb::handle given, std::optional<bool>& choice) {
  if (given.is_none()) return;
  if (!nb::isinstance<nb::bool_>(given)) {
    throw nb::type_error(cat(name, " is ", kind_of(given), "; it must be True, False or None").c_str());
  }
  choice = read_flag(given, name);
}
void read(const char* name, nb::handle given, EmptyRows& mode) { mode = choice(name, read_word(given, name), kEmptyRows); }
void read(const char* name, nb::handle given, Precision& precision) { precision = choice(name, read_word(given, name), kPrecisions); }

void read(const char* name, nb::handle given, std::optional<double>& number) {
  if (!given.is_none()) number = read_number(given, name);
}

void read(const char*, nb::handle given, std::optional<std::uint64_t>& seed) {
  if (!given.is_none()) seed = read_seed(given);
}

void read(const char* name, nb::handle given, const Backend*& backend) {
  if (!given.is_none()) backend = &find_backend(read_word(given, name));
}

// Reads "top_left", "bottom_right" or an offset. TypeError for True and False, because they do not say where the diagonal begins.
void read(const char* name, nb::handle given, std::optional<Diagonal>& diagonal) {
  if (given.is_none()) return;
  if (nb::isinstance<nb::bool_>(given)) {
    throw nb::type_error(cat(name, " is a bool, which does not say where the diagonal begins; give 'top_left', 'bottom_right' or an offset").c_str());
  }
  if (PyIndex_Check(given.ptr())) {
    diagonal = Diagonal::offset(read_integer(given, name, kLeast, kMost));
  } else if (nb::isinstance<nb::str>(given)) {
    diagonal = choice(name, read_word(given, name), kCorners);
  } else {
    refuse_type(given, name, "'top_left', 'bottom_right', an int or None");
  }
}

// Reads (left, right). If one of the two is None, the window is unlimited on that side.
void read(const char* name, nb::handle given, Window& window) {
  if (given.is_none()) return;
  const bool pair = (nb::isinstance<nb::tuple>(given) || nb::isinstance<nb::list>(given)) && nb::len(given) == 2;
  if (!pair) throw nb::type_error("window must be (left, right): how many keys before and after the diagonal to attend to; None means all keys of that side");
  const auto side = [&](nb::handle value) { return value.is_none() ? std::nullopt : std::optional(read_integer(value, name, 0, kMost)); };
  window.left = side(given[0]);
  window.right = side(given[1]);
  if (!window.left && !window.right) throw nb::value_error("window is (None, None), which bounds no side; give a number for one side, or no window");
}

// Reads one int, the size for both queries and keys, or (queries, keys).
void read(const char* name, nb::handle given, BlockSize& size) {
  if (given.is_none()) return;
  const bool pair = (nb::isinstance<nb::tuple>(given) || nb::isinstance<nb::list>(given)) && nb::len(given) == 2;
  if (!pair && (nb::isinstance<nb::bool_>(given) || !PyIndex_Check(given.ptr()))) refuse_type(given, name, "an int, (queries, keys) or None");
  size.queries = read_integer(pair ? nb::object(given[0]) : nb::borrow(given), name, 1, kMost);
  size.keys = pair ? read_integer(nb::object(given[1]), name, 1, kMost) : size.queries;
}

void read(const char*, nb::handle given, std::optional<LimitedThreads>& threads) { threads = read_num_threads(given); }

void read(CallArguments& call, const char* name, nb::handle given, ConstTensorView& view) { view = call.keep(Array::input(given, name)); }

void read(CallArguments& call, const char* name, nb::handle given, RelativeBias& bias) {
  if (given.is_none()) return;
  if (!nb::isinstance(given, nb::module_::import_("polyhead._options").attr("RelativeBias"))) refuse_type(given, name, "a polyhead.RelativeBias");
  read(call, "relative_bias.slopes", given.attr("slopes"), bias.slopes);
  read(call, "relative_bias.table", given.attr("table"), bias.table);
  if (!bias) throw nb::value_error("relative_bias has neither slopes nor a table; one of them must be given");
  bias.bidirectional = read_flag(given.attr("bidirectional"), "relative_bias.bidirectional");
  bias.max_distance = read_integer(given.attr("max_distance"), "relative_bias.max_distance", 1, kMost);
  read("relative_bias.diagonal", given.attr("diagonal"), bias.diagonal);
}

void read(CallArguments& call, const char* name, nb::handle given, nn::Rotary& rotary) {
  if (given.is_none()) return;
  if (!nb::isinstance(given, nb::module_::import_("polyhead._options").attr("Rotary"))) refuse_type(given, name, "a polyhead.Rotary");
  rotary.cos = call.required(given.attr("cos"), "rotary.cos");
  rotary.sin = call.required(given.attr("sin"), "rotary.sin");
  read(call, "rotary.key_cos", given.attr("key_cos"), rotary.key_cos);
  read(call, "rotary.key_sin", given.attr("key_sin"), rotary.key_sin);
  rotary.order = choice("rotary.order", read_word(given.attr("order"), "rotary.order"), kRotaryOrders);
  if (const nb::object width = given.attr("width"); !width.is_none()) rotary.width = read_integer(width, "rotary.width", 2, kMost);
}

void read(CallArguments&, const char* name, nb::handle given, Cache*& cache) {
  if (given.is_none()) return;
  if (!nb::isinstance(given, nb::module_::import_("polyhead._cache").attr("KeyValueCache"))) refuse_type(given, name, "a polyhead.KeyValueCache");
  cache = nb::cast<Cache*>(nb::object(given.attr("_cache")));
}

template <class Field>
void read(CallArguments&, const char* name, nb::handle given, Field& field) {
  read(name, given, field);
}

template <class Call>
void read_keywords(const char* function, nb::handle given, Call& call, Executor*& executor) {
  bool blocks = false, block_size = false;
  for (const auto& item : nb::cast<nb::dict>(given)) {
    const nb::handle key = item.first, value = item.second;  // no structured binding, because Clang before 16 cannot capture one in the lambda
    const std::string name = read_word(key, "a keyword");
    bool known = false;
    blocks = blocks || (name == "blocks" && !value.is_none()), block_size = block_size || (name == "block_size" && !value.is_none());
    visit(call, [&](const Argument& argument, auto& field) {
      if (known || name != argument.name) return;
      known = true;
      read(call, argument.name, value, field);
    });
    if (!known) nb::module_::import_("polyhead._options").attr("refuse")(function, key);
  }
  if (block_size && !blocks) throw nb::value_error("block_size is given without blocks; it is the size of the blocks that the argument blocks lists");
  executor = call.threads ? &*call.threads : nullptr;
}

}  // namespace

SdpaCall::SdpaCall(const char* function, nb::handle given) {
  read_keywords(function, given, *this, sdpa.executor);
  Dropout& dropout = sdpa.dropout;
  if (dropout.p > 0 && !dropout.seed && !dropout.keep) throw nb::value_error("dropout needs a seed; pass the same seed to the backward pass and to maps");
  if (!(dropout.p > 0) && dropout.keep) throw nb::value_error("dropout_keep is given, and dropout is 0: nothing is dropped");
  dropout.seed = dropout.seed.value_or(0);
}

LayerCall::LayerCall(const char* function, nb::handle given) {
  read_keywords(function, given, *this, options.executor);
  if (cache != nullptr) options.cache = &cache->cache;
}

}  // namespace polyhead::python
