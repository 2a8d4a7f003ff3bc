// The function that XLA calls for polyhead.jax. Operands and results are views of XLA's buffers. A text, which is a parameter of the call, says what each
// buffer is and which options to use.
//
// The text consists of words `name=value`. The words `operands` and `results` list the names of the buffers in order; the names decide which operation is
// computed. Names t_q, t_bias, ... are tangents, or the d_gradients of sdpa_backward_backward. A buffer begins with one dimension for each of the `levels`
// enclosing jax.vmap. The extent of this dimension is 1 if that vmap does not map the buffer. A gradient with this extent 1 is summed over the examples of the
// vmap. `program`, `sums` and `places` are the score program of a score_fn (_score_program.py); the arrays that the score_fn captures are the operands
// captured0, captured1, ... All other words are options.
#include <nanobind/nanobind.h>

#include <charconv>
#include <cmath>
#include <new>
#include <span>

#include "bind.h"
#include "option_fields.h"
#include "polyhead/error.h"
#include "polyhead/score_program.h"
#include "polyhead/sdpa_derivatives.h"
#include "xla_ffi.h"

namespace polyhead::python {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

template <class T>
T number(std::string_view word) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) refuse(cat("polyhead.jax: '", word, "' is no number"));
  return value;
}

std::vector<std::string_view> split(std::string_view all, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t first = 0; first <= all.size() && !all.empty();) {
    const std::size_t end = std::min(all.find(separator, first), all.size());
    parts.push_back(all.substr(first, end - first));
    first = end + 1;
  }
  return parts;
}

Diagonal diagonal(std::string_view word) {
  for (const auto& [name, corner] : kCorners) {
    if (name == word) return corner;
  }
  return Diagonal::offset(number<std::int64_t>(word));
}

void parse(std::string_view word, double& field) { field = number<double>(word); }
void parse(std::string_view word, std::optional<double>& field) { field = number<double>(word); }
void parse(std::string_view word, std::optional<Diagonal>& field) { field = diagonal(word); }
void parse(std::string_view word, std::optional<LimitedThreads>& field) { field.emplace(number<int>(word)); }
void parse(std::string_view word, const Backend*& field) { field = &find_backend(word); }

template <class Value, std::size_t kCount>
void parse_choice(std::string_view option, std::string_view word, const Choices<Value, kCount>& choices, Value& field) {
  for (const auto& [name, value] : choices) {
    if (name != word) continue;
    field = value;
    return;
  }
  refuse(cat("polyhead.jax: this build does not know ", option, " '", word, "'"));
}
void parse(std::string_view word, EmptyRows& field) { parse_choice("empty_rows", word, kEmptyRows, field); }
void parse(std::string_view word, Precision& field) { parse_choice("precision", word, kPrecisions, field); }

// Format "left,right"; a side without a number is unlimited.
void parse(std::string_view word, Window& field) {
  const std::size_t comma = word.find(',');
  const std::string_view left = word.substr(0, comma), right = word.substr(comma + 1);
  if (!left.empty()) field.left = number<std::int64_t>(left);
  if (!right.empty()) field.right = number<std::int64_t>(right);
}

// Format "queries,keys", or one number for both.
void parse(std::string_view word, BlockSize& field) {
  const std::vector<std::string_view> parts = split(word, ',');
  field = {.queries = number<std::int64_t>(parts.front()), .keys = number<std::int64_t>(parts.back())};
}

// Format "bidirectional,max_distance" or "bidirectional,max_distance,diagonal".
void parse(std::string_view word, RelativeBias& field) {
  const std::vector<std::string_view> parts = split(word, ',');
  field.bidirectional = parts.at(0) == "1";
  field.max_distance = number<std::int64_t>(parts.at(1));
  if (parts.size() > 2) field.diagonal = diagonal(parts[2]);
}

// The score program of a score_fn. In the text, rows are separated by ';', and the numbers of a row by ','.
struct Program {
  // Where the gradient of a captured array lies among the sums of a head. first < 0: the array has no gradient.
  struct Place {
    std::int64_t first = -1, count = 0;
    bool per_head = false;
  };

  ScoreProgramCode code;  // without tables
  std::vector<Place> places;

  explicit operator bool() const { return !code.instructions.empty(); }

  bool parse(std::string_view name, std::string_view value) {
    if (name == "program") {
      for (const std::string_view row : split(value, ';')) {
        const std::vector<std::string_view> words = split(row, ',');
        const auto integer = [&](std::size_t i) { return number<std::int32_t>(words.at(i)); };
        if (words.size() == 3) {  // the first row
          code.result = integer(0), code.slope = integer(1), code.gradient_count = number<std::int64_t>(words[2]);
          continue;
        }
        code.instructions.push_back({.op = static_cast<ScoreOp>(integer(0)), .table = integer(1), .a = integer(2), .b = integer(3), .c = integer(4), .d = integer(5),
                                     .value = number<double>(words.at(6))});
      }
    } else if (name == "sums") {
      for (const std::string_view row : split(value, ';')) {
        const std::vector<std::string_view> words = split(row, ',');
        ScoreGradient gradient{.load = number<std::int32_t>(words.at(0)), .derivative = number<std::int32_t>(words.at(1)), .first = number<std::int64_t>(words.at(2))};
        for (std::size_t axis = 0; axis + 3 < words.size(); ++axis) gradient.strides[axis] = number<std::int64_t>(words[axis + 3]);
        code.gradients.push_back(gradient);
      }
    } else if (name == "places") {
      for (const std::string_view row : split(value, ';')) {
        const std::vector<std::string_view> words = split(row, ',');
        places.push_back({.first = number<std::int64_t>(words.at(0)), .count = number<std::int64_t>(words.at(1)), .per_head = words.at(2) == "1"});
      }
    } else {
      return false;
    }
    return true;
  }
};

// Arrays and the seed are operands, so the text does not contain them and there is nothing to parse.
void parse(std::string_view, ConstTensorView&) {}
void parse(std::string_view, std::optional<std::uint64_t>&) {}

struct Plan {
  explicit Plan(std::string_view given) {
    for (const std::string_view word : split(given, ' ')) {
      const std::size_t equals = word.find('=');
      const std::string_view name = word.substr(0, equals), value = word.substr(equals + 1);
      if (name == "operands") {
        operands = split(value, ',');
      } else if (name == "results") {
        results = split(value, ',');
      } else if (name == "levels") {
        levels = number<int>(value);
      } else if (name == "layout") {
        heads_inside = value == "TNH";
      } else if (!program.parse(name, value)) {
        bool known = false;
        visit(options, [&](const Argument& argument, auto& field) {
          if (known || argument.name != name) return;
          known = true;
          parse(value, field);
        });
        if (!known) refuse(cat("polyhead.jax: this build does not know the option ", name));
      }
    }
    if (options.threads) options.sdpa.executor = &*options.threads;
  }

  SdpaCall options;
  Program program;
  std::vector<std::string_view> operands, results;
  int levels = 0;
  bool heads_inside = false;  // [*,T,N,H] instead of [*,N,T,H]
};

// The extent of an argument. `name` is the name of the argument, of its gradient (d_...) or of its tangent (t_...).
ArgumentExtent extent_of(std::string_view name) {
  static const std::vector<Argument> table = [] {
    std::vector<Argument> rows;
    const TensorArguments add{[&](const Argument& argument, const ConstTensorView&) { rows.push_back(argument); }};
    const SdpaForward inputs{};
    const SdpaOptions options;
    visit_arguments(inputs, add), visit_arguments(options, add);
    return rows;
  }();
  while (name.starts_with("d_") || name.starts_with("t_")) name.remove_prefix(2);
  if (name == "out") return ArgumentExtent::query_heads;
  for (const Argument& argument : table) {
    if (argument.name == name) return argument.extent;
  }
  return ArgumentExtent::none;
}

bool has_heads(std::string_view name) {
  const ArgumentExtent extent = extent_of(name);
  return extent == ArgumentExtent::query_heads || extent == ArgumentExtent::key_heads;
}
// True for arrays that all sequences of a call share.
bool is_shared(std::string_view name) {
  const ArgumentExtent extent = extent_of(name);
  return extent == ArgumentExtent::documents || extent == ArgumentExtent::heads;
}
bool is_sink(std::string_view name) { return extent_of(name) == ArgumentExtent::rows; }

// The number i in the name captured<i>, or in the name of its gradient, d_captured<i>; -1 for other names.
int captured_number(std::string_view name) {
  if (name.starts_with("d_")) name.remove_prefix(2);
  constexpr std::string_view kPrefix = "captured";
  return name.starts_with(kPrefix) ? number<int>(name.substr(kPrefix.size())) : -1;
}
const RelativeBias kNoBias{};

bool is_gradient(std::string_view name) { return name.starts_with("d_") && name != "d_out"; }

// The rank to which leading dimensions of extent 1 pad the view of one example, given the rank of q; 0 for a buffer that is not padded.
int broadcast_rank(std::string_view name, int rank) {
  switch (extent_of(name)) {
    case ArgumentExtent::pairs:
    case ArgumentExtent::query_blocks: return rank;
    case ArgumentExtent::rows: return rank - 1;
    case ArgumentExtent::keys: return rank - 2;
    default: return 0;
  }
}

class Run {
 public:
  Run(std::string_view given, std::span<const TensorView> operands, std::span<const TensorView> results)
      : plan_(given), operands_(operands), results_(results) {
    if (operands.size() != plan_.operands.size() || results.size() != plan_.results.size()) refuse("polyhead.jax: wrong number of buffers");
    find_levels();
  }

  void operator()() {
    std::vector<std::int64_t> index(loops_.size(), 0);
    for (;;) {
      for (std::size_t level = 0; level < loops_.size(); ++level) {
        if (loops_[level] && extents_[level] == 0) return;
      }
      one(index);
      std::size_t level = index.size();
      for (; level-- > 0;) {
        if (loops_[level] && ++index[level] < extents_[level]) break;
        index[level] = 0;
      }
      if (level == std::size_t(-1)) return;
    }
  }

 private:
  // Calls f(name, view) for all buffers.
  template <class F>
  void each(const F& f) const {
    for (std::size_t i = 0; i < operands_.size(); ++i) f(plan_.operands[i], operands_[i]);
    for (std::size_t i = 0; i < results_.size(); ++i) f(plan_.results[i], results_[i]);
  }

  // A level of vmap becomes either a leading dimension of one call, or a loop of calls. The level is a loop if there is a seed (dropout bits depend on
  // positions within an example), if there is a score program (which may read the number of the sequence), or if an array that all sequences of a call share
  // differs between examples.
  void find_levels() {
    const auto levels = static_cast<std::size_t>(plan_.levels);
    extents_.assign(levels, 1), loops_.assign(levels, false);
    rank_ = operands_.front().rank() - plan_.levels;
    each([&](std::string_view, const TensorView& view) {
      for (std::size_t level = 0; level < levels; ++level) {
        if (const std::int64_t extent = view.extent(static_cast<int>(level)); extent != 1) extents_[level] = extent;
      }
    });
    each([&](std::string_view name, const TensorView& view) {
      for (std::size_t level = 0; level < levels; ++level) {
        if (plan_.program || (extents_[level] != 1 && (name == "seed" || (is_shared(name) && view.extent(static_cast<int>(level)) != 1)))) loops_[level] = true;
      }
    });
  }

  TensorView arranged(std::string_view name, TensorView view, std::span<const std::int64_t> index) const {
    if (plan_.heads_inside && has_heads(name)) view = view.transpose(-3, -2);
    int axis = 0;
    for (std::size_t level = 0; level < loops_.size(); ++level) {
      const bool once = view.extent(axis) == 1;
      if (loops_[level] && once && extents_[level] != 1 && is_gradient(name)) refuse("polyhead.jax: a gradient is to be summed over a loop");
      if (loops_[level] || is_shared(name)) {
        view = view.select(axis, once ? 0 : index[level]);
        continue;
      }
      if (once && broadcast_rank(name, rank_) == 0) view = expanded(view, axis, extents_[level]);
      ++axis;
    }
    if (axis == 0) return view;
    // The dimensions of the vmap levels stay first: dimensions that broadcasting adds are inserted after them.
    if (is_sink(name) && view.rank() == axis + 1) view = view.unsqueeze(-1);
    while (view.rank() < axis + broadcast_rank(name, rank_)) view = view.unsqueeze(axis);
    return view;
  }

  static TensorView expanded(const TensorView& view, int axis, std::int64_t extent) {
    Shape shape = view.shape();
    shape[axis] = extent;
    return view.expand(shape);
  }

  // sdpa_backward and sdpa_jvp require that a gradient or tangent has the shape of its input. Under vmap, the input, the gradient or the tangent may be one
  // array for all examples, so the three are broadcast to one shape.
  static void alike(ConstTensorView& input, TensorView& gradient, ConstTensorView& tangent) {
    if (!gradient && !tangent) return;
    Shape shape = input.shape();
    if (gradient) shape = broadcast_shapes(shape, gradient.shape());
    if (tangent) shape = broadcast_shapes(shape, tangent.shape());
    input = input.expand(shape);
    if (gradient) gradient = gradient.expand(shape);
    if (tangent) tangent = tangent.expand(shape);
  }

  // The tensors of one call. It depends on the operation which of them are present.
  struct Tensors {
    ConstTensorView q, k, v, k_scale, v_scale, out, lse, d_out;
    TensorView new_out, new_lse, attention_weights, out_tangent, lse_tangent, d_d_out;
    SdpaBackward gradients{.q = {}, .k = {}, .v = {}, .out = {}, .lse = {}, .d_out = {}, .d_q = {}, .d_k = {}, .d_v = {}};  // only the members for results (d_q, ...) are used
    std::vector<ConstTensorView> captured;
    std::vector<TensorView> d_captured;  // one for each captured array; absent if its gradient is not wanted
    SdpaTangents tangents{};
    bool is_backward = false, has_tangents = false;
  };

  // `name` is a prefix ("d_" for gradients, "t_" for tangents) and the name of an argument. Sets the member of `gradients` for this argument. Does nothing for
  // a name without the prefix.
  template <class Gradients>
  static void set_gradient(std::string_view prefix, std::string_view name, Gradients& gradients, const TensorView& view) {
    if (!name.starts_with(prefix)) return;
    const std::string_view of = name.substr(prefix.size());
    std::string_view option = of;
    visit_arguments(kNoBias, [&](const Argument& argument, const auto&) {
      if (argument.name == of) option = argument.option();  // relative_bias for its slopes and table
    });
    visit_gradients(gradients, [&](std::string_view own, auto& member) {
      if (own == option) member = view;
    });
  }

  static void read_result(std::string_view name, const TensorView& view, Tensors& x) {
    x.is_backward = x.is_backward || is_gradient(name);
    if (name == "out") x.new_out = view;
    if (name == "lse") x.new_lse = view;
    if (name == "attention_weights") x.attention_weights = view;
    if (name == "t_out") x.out_tangent = view;
    if (name == "t_lse") x.lse_tangent = view;
    if (name == "d_d_out") x.d_d_out = view;
    set_gradient("d_", name, x.gradients, view);
    if (const int captured = captured_number(name); captured >= 0) set_captured(x.d_captured, captured, view);
  }

  void read_operand(std::string_view name, const TensorView& view, Tensors& x) {
    SdpaOptions& sdpa = plan_.options.sdpa;
    x.has_tangents = x.has_tangents || name.starts_with("t_");
    if (name == "q") x.q = view;
    if (name == "k") x.k = view;
    if (name == "v") x.v = view;
    if (name == "k_scale") x.k_scale = view;
    if (name == "v_scale") x.v_scale = view;
    if (name == "out") x.out = view;
    if (name == "lse") x.lse = view;
    if (name == "d_out") x.d_out = view;
    set_gradient("t_", name, x.tangents, view);
    if (const int captured = captured_number(name); captured >= 0) set_captured(x.captured, captured, view);
    if (name == "seed") {
      const auto* words = view.data<std::uint32_t>();
      sdpa.dropout.seed = std::uint64_t{words[0]} << 32 | words[1];
    }
    visit_arguments(sdpa, TensorArguments{[&](const Argument& argument, ConstTensorView& field) {
      if (argument.name == name) field = view;
    }});
  }

  template <class View>
  static void set_captured(std::vector<View>& views, int captured, const TensorView& view) {
    views.resize(std::max(views.size(), static_cast<std::size_t>(captured) + 1));
    views[static_cast<std::size_t>(captured)] = view;
  }

  // Converts a captured array to a table, which a score program reads. Integers and booleans are converted to float64 in `memory`. XLA's buffers are
  // contiguous.
  static ConstTensorView as_table(const ConstTensorView& captured, DType of_q, std::vector<std::vector<double>>& memory) {
    const auto wide = [&](const auto* values) {
      std::vector<double>& numbers = memory.emplace_back(values, values + captured.numel());
      const int bits = of_q == DType::f64 ? 53 : 24;
      for (const double value : numbers) {
        if (std::abs(value) > static_cast<double>(std::int64_t{1} << bits))
          refuse(cat("attention: score_fn captures an integer array with ", static_cast<std::int64_t>(value), "; integers up to 2^", bits, " are exact in the dtype of q"));
      }
      return ConstTensorView(numbers.data(), DType::f64, captured.shape());
    };
    switch (captured.dtype()) {
      case DType::boolean: return wide(captured.data<bool>());
      case DType::i32: return wide(captured.data<std::int32_t>());
      case DType::i64: return wide(captured.data<std::int64_t>());
      default: return captured;
    }
  }

  // Adds up the sums of all heads in the order of the heads, so that the result has the same bits in every run.
  void write_captured_gradients(const Tensors& x, const std::vector<double>& sums, std::int64_t heads) const {
    const std::int64_t stride = plan_.program.code.gradient_count;
    for (std::size_t i = 0; i < x.d_captured.size(); ++i) {
      if (!x.d_captured[i]) continue;
      const Program::Place& place = plan_.program.places.at(i);
      const auto write = [&](auto* to) {
        for (std::int64_t j = 0; j < x.d_captured[i].numel(); ++j) {
          double sum = 0;
          const double* from = sums.data() + place.first + (place.per_head ? j / place.count * stride + j % place.count : j);
          for (std::int64_t head = 0; head < (place.per_head ? 1 : heads); ++head) sum += from[head * stride];
          to[j] = static_cast<std::remove_reference_t<decltype(*to)>>(sum);
        }
      };
      x.d_captured[i].dtype() == DType::f64 ? write(x.d_captured[i].data<double>()) : write(x.d_captured[i].data<float>());
    }
  }

  void one(std::span<const std::int64_t> index) {
    Tensors x;
    SdpaOptions& sdpa = plan_.options.sdpa;
    for (std::size_t i = 0; i < results_.size(); ++i) read_result(plan_.results[i], arranged(plan_.results[i], results_[i], index), x);
    for (std::size_t i = 0; i < operands_.size(); ++i) read_operand(plan_.operands[i], arranged(plan_.operands[i], operands_[i], index), x);
    alike(sdpa.bias, x.gradients.d_bias, x.tangents.bias), alike(sdpa.sink, x.gradients.d_sink, x.tangents.sink);
    std::optional<ScoreProgram> program;
    std::vector<std::vector<double>> tables;
    std::vector<double> sums;
    TensorView d_score_rule;
    if (plan_.program) {
      ScoreProgramCode code = plan_.program.code;
      for (const ConstTensorView& captured : x.captured) code.tables.push_back({as_table(captured, x.q.dtype(), tables)});
      sdpa.score_rule = program.emplace(std::move(code)).rule();
      const std::int64_t heads = x.q.rank() > 2 ? x.q.extent(-3) : 0, count = plan_.program.code.gradient_count;
      if (x.is_backward && count > 0) {
        sums.resize(static_cast<std::size_t>(heads * count));
        d_score_rule = TensorView(sums.data(), DType::f64, Shape{heads, count});
      }
    }
    if (x.out_tangent) {
      sdpa_jvp({.q = x.q, .k = x.k, .v = x.v, .out = x.out, .lse = x.lse, .tangents = x.tangents, .out_tangent = x.out_tangent,
                .lse_tangent = x.lse_tangent},
               sdpa);
    } else if (x.has_tangents) {
      SdpaBackwardBackward tensors{.q = x.q, .k = x.k, .v = x.v, .out = x.out, .lse = x.lse, .d_out = x.d_out, .d_gradients = x.tangents,
                                   .d_q = {}, .d_k = {}, .d_v = {}, .d_d_out = x.d_d_out};
      std::vector<TensorView> gradients;
      visit_gradients(x.gradients, [&](const char*, const TensorView& view) { gradients.push_back(view); });
      auto next = gradients.begin();
      visit_gradients(tensors, [&](const char*, TensorView& view) { view = *next++; });
      sdpa_backward_backward(tensors, sdpa);
    } else if (x.is_backward) {
      SdpaBackward tensors = x.gradients;
      tensors.q = x.q, tensors.k = x.k, tensors.v = x.v, tensors.out = x.out, tensors.lse = x.lse, tensors.d_out = x.d_out, tensors.d_score_rule = d_score_rule;
      sdpa_backward(tensors, sdpa);
      if (plan_.program) write_captured_gradients(x, sums, x.q.rank() > 2 ? x.q.extent(-3) : 0);
    } else {
      sdpa_forward({.q = x.q, .k = x.k, .v = x.v, .out = x.new_out, .lse = x.new_lse, .attention_weights = x.attention_weights,
                    .k_scale = x.k_scale, .v_scale = x.v_scale},
                   sdpa);
    }
  }

  Plan plan_;
  std::span<const TensorView> operands_, results_;
  std::vector<std::int64_t> extents_;  // for each level of vmap, the number of its examples
  std::vector<bool> loops_;            // for each level of vmap, true if it is a loop of calls
  int rank_ = 0;                       // rank of q without the dimensions of vmap
};

DType dtype_of(int number) {
  switch (number) {
    case 1: return DType::boolean;
    case 2: return DType::i8;
    case 3: return DType::i16;
    case 4: return DType::i32;
    case 5: return DType::i64;
    case 6: return DType::u8;
    case 7: return DType::u16;
    case 8: return DType::u32;
    case 9: return DType::u64;
    case 10: return DType::f16;
    case 11: return DType::f32;
    case 12: return DType::f64;
    case 16: return DType::bf16;
    default: refuse(cat("polyhead.jax: a buffer has XLA's type ", number, ", which polyhead does not read"));
  }
}

std::vector<TensorView> views(const xla::Buffers& buffers) {
  std::vector<TensorView> result;
  result.reserve(static_cast<std::size_t>(buffers.size));
  for (std::int64_t i = 0; i < buffers.size; ++i) {
    if (buffers.types[i] != xla::kBuffer) refuse("polyhead.jax: an operand or a result is no buffer");
    const xla::Buffer& buffer = *buffers.buffers[i];
    const auto rank = static_cast<std::size_t>(buffer.rank);
    result.emplace_back(buffer.data, dtype_of(buffer.dtype), Shape(std::span<const std::int64_t>(buffer.extents, rank)));
  }
  return result;
}

xla::Error* error(const xla::CallFrame& frame, int code, const char* message) {
  xla::ErrorArguments arguments{{sizeof arguments, nullptr}, message, code};
  return frame.api->make_error(&arguments);
}

// The function whose address XLA gets. XLA's threads call it concurrently, and without the GIL.
xla::Error* handle(xla::CallFrame* frame) {
  // XLA asks for the version of the interface that this function supports. All versions 0.x have the layout of xla_ffi.h. XLA refuses a version that it does
  // not support.
  if (frame->header.extension != nullptr && frame->header.extension->type == xla::kMetadataExtension) {
    xla::Version& version = reinterpret_cast<xla::MetadataExtension*>(frame->header.extension)->metadata->version;
    version.major = 0, version.minor = 1;
    return nullptr;
  }
  if (frame->stage != xla::kExecute) return nullptr;
  try {
    if (frame->attributes.size != 1 || frame->attributes.types[0] != xla::kString) refuse("polyhead.jax: the call has no text");
    const auto& words = *static_cast<const xla::Bytes*>(frame->attributes.values[0]);
    const std::vector<TensorView> operands = views(frame->operands), results = views(frame->results);
    Run({words.data, words.size}, operands, results)();
    return nullptr;
  } catch (const Error& failure) {
    return error(*frame, xla::kInvalidArgument, failure.what());
  } catch (const std::bad_alloc&) {
    return error(*frame, xla::kResourceExhausted, "polyhead.jax: not enough memory");
  } catch (const std::exception& failure) {
    return error(*frame, xla::kInternal, failure.what());
  }
}

}  // namespace

void bind_jax(nb::module_& m) {
  m.def("jax_handler", [] { return nb::capsule(reinterpret_cast<void*>(&handle)); });
}

}  // namespace polyhead::python
