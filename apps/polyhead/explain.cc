#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "arguments.h"
#include "attention_rules.h"
#include "json.h"
#include "polyhead/sdpa.h"
#include "polyhead/tensor.h"
#include "stand_in.h"
#include "terminal.h"
#include "words.h"

namespace polyhead::app {
namespace {

struct Options {
  Shape q, k;
  std::optional<Shape> v, bias, attend, block, attend_keys, block_keys, keep;
  DType dtype = DType::f32;
  AttentionRules rules;
  std::string key_lengths, backend;
  bool lse = false, json = false;
};

// Address space without memory behind it: explain() looks at where tensors lie and never at what they hold.
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

ConstTensorView stand_in_of(DType dtype, const std::optional<Shape>& shape) { return shape ? stand_in(dtype, *shape) : ConstTensorView(); }

std::string facts_of(const Options& o) {
  const Shape v = o.v.value_or(o.k);
  const bool sizes = o.q.size() >= 3 && o.k.size() >= 3 && v.size() >= 1;
  Shape out = o.q, lse = o.q;
  if (sizes) {
    out[-1] = v[-1];
    lse.erase(lse.size() - 1);
  }
  Shape lengths = o.q.first(std::max(o.q.size() - 3, 0));
  Tensor result = reserve(o.dtype, out), sums = o.lse ? reserve(accumulation_dtype(o.dtype), lse) : Tensor();
  SdpaOptions options;
  apply(o.rules, &options);
  Tensor none;
  options.mask = mask_of(o.rules, lengths, sizes ? o.q[-2] : 0, sizes ? o.k[-2] : 0, &none);
  if (o.key_lengths == "query" && sizes) lengths.push_back(o.q[-2]);
  if (!o.key_lengths.empty()) options.mask.key_lengths = stand_in(DType::i64, lengths);
  options.mask.attend = stand_in_of(DType::boolean, o.attend);
  options.mask.block = stand_in_of(DType::boolean, o.block);
  options.mask.attend_keys = stand_in_of(DType::boolean, o.attend_keys);
  options.mask.block_keys = stand_in_of(DType::boolean, o.block_keys);
  options.bias = stand_in_of(o.dtype, o.bias);
  options.dropout.keep = stand_in_of(DType::boolean, o.keep);
  if (!o.backend.empty()) options.backend = &find_backend(o.backend);
  return explain({.q = stand_in(o.dtype, o.q), .k = stand_in(o.dtype, o.k), .v = stand_in(o.dtype, v), .out = result, .lse = sums},
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
    // What a fact needs more than a line for stands under its value.
    std::string wrapped = wrap(line, width - std::min<std::size_t>(width, 2));
    for (std::size_t end = wrapped.find('\n'); end + 1 < wrapped.size(); end = wrapped.find('\n', end + 1)) wrapped.insert(end + 1, "  ");
    append(text, wrapped);
    first = last + 1;
  }
  as_json ? print_json({{"facts", list}}) : print(text);
}

}  // namespace

Subcommand declare_explain(CLI::App& parser) {
  const auto o = std::make_shared<Options>();
  std::vector<std::string> backend_names;
  for (const Backend* backend : backends()) backend_names.emplace_back(backend_name(*backend));
  std::string backend_list;
  for (const std::string& name : backend_names) append(backend_list, cat(backend_list.empty() ? "" : ", ", name));
  add_value(parser, "--q", &o->q, read_shape, "SHAPE", "shape of the queries, [*,N,T,H]: extents with commas between")->required();
  add_value(parser, "--k", &o->k, read_shape, "SHAPE", "shape of the keys, [*,K,S,H]")->required();
  add_value(parser, "--v", &o->v, read_shape, "SHAPE", "shape of the values, [*,K,S,V] (default: as the keys)");
  add_value(parser, "--dtype", &o->dtype, read_dtype, "DTYPE", "f32, f64, bf16 or f16 (default: f32)");
  add_attention_rules(parser, &o->rules);
  add_value(
      parser, "--key-lengths", &o->key_lengths,
      [](const std::string& word) {
        return read_choice(word, "kind of lengths", std::array<std::string, 2>{"sequence", "query"});
      },
      "PER", "the number of keys is given per 'sequence' or per 'query'");
  add_value(parser, "--attend", &o->attend, read_shape, "SHAPE", "a boolean tensor over pairs, true = may attend");
  add_value(parser, "--block", &o->block, read_shape, "SHAPE", "a boolean tensor over pairs, true = may not attend");
  add_value(parser, "--attend-keys", &o->attend_keys, read_shape, "SHAPE", "a boolean tensor over keys, true = may be attended to");
  add_value(parser, "--block-keys", &o->block_keys, read_shape, "SHAPE", "a boolean tensor over keys, true = may not be attended to");
  add_value(parser, "--bias", &o->bias, read_shape, "SHAPE", "a tensor that is added to the scores; it broadcasts to [*,N,T,S]");
  add_value(parser, "--dropout-keep", &o->keep, read_shape, "SHAPE", "a boolean tensor of the weights that dropout keeps");
  add_value(
      parser, "--backend", &o->backend, [=](const std::string& word) { return read_choice(word, "backend", backend_names); }, "NAME",
      cat("this backend or an error; there is: ", backend_list));
  parser.add_flag("--lse", o->lse, "the log-sum-exp of each row is wanted too");
  parser.add_flag("--json", o->json, "machine-readable: {\"facts\": [{\"fact\", \"value\"}, ...]}");
  return {
      .examples = {{"polyhead explain --q 1,8,512,64 --k 1,8,512,64", "self attention of 8 heads over 512 positions"},
                   {"polyhead explain --q 1,32,1,128 --k 1,8,4096,128 --causal bottom_right",
                    "one query of 32 heads against 8 shared key/value heads"},
                   {"polyhead explain --q 2,8,512,64 --k 2,8,512,64 --dtype bf16 --window 128,0", "half precision in a sliding window"}},
      .notes =
          "Letters: * any leading dimensions, N query heads, K key/value heads (N is a multiple of K), T queries, S keys, H width of a "
          "query/key head, V width of a value head. No tensor is allocated: a problem of any size can be asked about.\n",
      .run = [o] { print_facts(facts_of(*o), o->json); },
  };
}

}  // namespace polyhead::app
