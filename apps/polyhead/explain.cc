#include <nlohmann/json.hpp>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "arguments.h"
#include "attention_rules.h"
#include "core/index.h"
#include "core/join.h"
#include "input_tensors.h"
#include "json.h"
#include "parser.h"
#include "placeholder.h"
#include "polyhead/sdpa.h"
#include "polyhead/tensor.h"
#include "terminal.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

// Calls f(argument, view) for each tensor of a mask of which explain() needs only the shape. Lists of numbers, such as offsets, are left out: options give their values.
template <class M, class F>
void visit_shapes(M& mask, const F& f) {
  visit_arguments(mask, TensorArguments{[&](const Argument& argument, auto& view) {
    if (argument.extent != ArgumentExtent::sequences && argument.extent != ArgumentExtent::documents) f(argument, view);
  }});
}

struct ExplainOptions {
  Shape q, k;
  std::optional<Shape> v, bias, keep;
  std::map<std::string, std::optional<Shape>> masks;  // the shapes of the mask's tensors, by name; visit_shapes() lists the names
  DType dtype = DType::f32;
  AttentionRules rules;
  std::string key_starts, key_lengths, backend;
  bool lse = false, json = false;
};

// A tensor with addresses but without memory: explain() reads addresses and shapes, never elements.
Tensor reserve(DType dtype, const Shape& shape) {
  std::size_t bytes = 0;
  const bool fits = !__builtin_mul_overflow(static_cast<std::size_t>(numel(shape)), info(dtype).size, &bytes);
  bytes = std::max<std::size_t>(bytes, 1);
  void* memory = fits ? ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
  if (memory == MAP_FAILED) {
    fail(ErrorCode::invalid_argument, "explain: an output of shape ", shape, " does not fit in the address space",
         fits ? cat(" (", std::generic_category().message(errno), ")") : "");
  }
  return Tensor::share(TensorView(memory, dtype, shape), std::shared_ptr<void>(memory, [bytes](void* p) { ::munmap(p, bytes); }));
}

ConstTensorView placeholder_of(DType dtype, const std::optional<Shape>& shape) { return shape ? placeholder(dtype, *shape) : ConstTensorView(); }

std::string facts_of(const ExplainOptions& o) {
  const Shape v = o.v.value_or(o.k);
  const bool sizes = o.q.size() >= 3 && o.k.size() >= 3 && v.size() >= 1;
  Shape out = o.q, lse = o.q;
  if (sizes) {
    out[-1] = v[-1];
    lse.erase(lse.size() - 1);
  }
  const Shape lead = o.q.first(std::max(o.q.size() - 3, 0));
  Tensor result = reserve(o.dtype, out), sums = o.lse ? reserve(accumulation_dtype(o.dtype), lse) : Tensor();
  SdpaOptions options;
  apply(o.rules, &options);
  options.mask = mask_of(o.rules, lead, sizes ? o.q[-2] : 0, sizes ? o.k[-2] : 0);
  const auto bounds = [&](const std::string& per) {
    return per.empty() ? ConstTensorView() : placeholder(DType::i64, per == "query" && sizes ? appended(lead, {o.q[-2]}) : lead);
  };
  options.mask.key_starts = bounds(o.key_starts), options.mask.key_lengths = bounds(o.key_lengths);
  visit_shapes(options.mask, [&](const Argument& argument, ConstTensorView& view) {
    view = placeholder_of(argument.extent == ArgumentExtent::query_blocks ? DType::i32 : DType::boolean, o.masks.at(argument.name));
  });
  options.bias = placeholder_of(o.dtype, o.bias);
  options.dropout.keep = placeholder_of(DType::boolean, o.keep);
  if (!o.backend.empty()) options.backend = &find_backend(o.backend);
  return explain({.q = placeholder(o.dtype, o.q), .k = placeholder(o.dtype, o.k), .v = placeholder(o.dtype, v), .out = result, .lse = sums},
                 options);
}

void print_facts(const std::string& facts, bool as_json) {
  const std::size_t width = terminal_width(Stream::out);
  std::string text;
  Json list = Json::array();
  for (std::size_t first = 0; first < facts.size();) {
    const std::size_t last = std::min(facts.find('\n', first), facts.size());
    const std::string line = facts.substr(first, last - first);
    const std::size_t colon = std::min(line.find(": "), line.size());
    list.push_back({{"fact", line.substr(0, colon)}, {"value", line.substr(std::min(colon + 2, line.size()))}});
    append(text, wrap(line, width, 2).substr(2));  // remove the indent of the first line: only continuation lines are indented
    first = last + 1;
  }
  as_json ? print_json({{"facts", list}}) : print(text);
}

}  // namespace

Subcommand declare_explain(Parser& parser) {
  const auto o = std::make_shared<ExplainOptions>();
  std::vector<std::string> backend_names;
  for (const Backend* backend : backends()) backend_names.emplace_back(backend_name(*backend));
  add_value(parser, "--q", &o->q, read_shape, "SHAPE", "shape of the queries, [*,N,T,H], such as 1,8,512,64")->required();
  add_value(parser, "--k", &o->k, read_shape, "SHAPE", "shape of the keys, [*,K,S,H]")->required();
  add_value(parser, "--v", &o->v, read_shape, "SHAPE", "shape of the values, [*,K,S,V] (default: that of the keys)");
  add_value(parser, "--dtype", &o->dtype, read_floating, "DTYPE", "f32, f64, bf16 or f16 (default: f32)");
  Option* dropout = add_attention_rules(parser, &o->rules);
  add_precision(parser, &o->rules);
  const auto read_kind = [](const std::string& word) { return read_choice(word, "kind", std::array<std::string, 2>{"sequence", "query"}); };
  add_value(parser, "--key-starts", &o->key_starts, read_kind, "PER", "key starts are given, one for each 'sequence' or one for each 'query'");
  add_value(parser, "--key-lengths", &o->key_lengths, read_kind, "PER", "key lengths are given, one for each 'sequence' or one for each 'query'");
  const Mask mask;
  visit_shapes(mask, [&](const Argument& argument, const ConstTensorView&) {
    std::string name = cat("--", argument.name);
    std::ranges::replace(name, '_', '-');
    add_value(parser, name, &o->masks[argument.name], read_shape, "SHAPE", cat("a tensor ", argument.name, " of this shape is given, ", mask_tensor(argument.extent)));
  });
  add_value(parser, "--bias", &o->bias, read_shape, "SHAPE", "a tensor of this shape is added to the scores; it broadcasts to [*,N,T,S]");
  add_value(parser, "--dropout-keep", &o->keep, read_shape, "SHAPE", "a boolean tensor of this shape tells which attention weights dropout keeps")->needs(dropout);
  add_value(
      parser, "--backend", &o->backend, [=](const std::string& word) { return read_choice(word, "backend", backend_names); }, "NAME",
      cat("use this backend, or fail: ", join(backend_names)));
  parser.add_flag("--lse", o->lse, "compute the log-sum-exp of each row too");
  parser.add_flag("--json", o->json, "machine-readable: {\"facts\": [{\"fact\", \"value\"}, ...]}");
  return {
      .examples = {{"polyhead explain --q 1,8,512,64 --k 1,8,512,64", "self attention of 8 heads over 512 positions"},
                   {"polyhead explain --q 1,32,1,128 --k 1,8,4096,128 --causal bottom_right",
                    "one query of 32 heads against 8 shared key/value heads"},
                   {"polyhead explain --q 2,8,512,64 --k 2,8,512,64 --dtype bf16 --window 128,0", "bfloat16 with a sliding window"}},
      .notes =
          "Letters: * any leading dimensions, N query heads, K key/value heads (N is a multiple of K), T queries, S keys, H width of a "
          "query/key head, V width of a value head. No tensor is allocated, so shapes may be of any size.\n",
      .run = [o] { print_facts(facts_of(*o), o->json); },
  };
}

}  // namespace polyhead::app
