#include "cache.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "bind.h"
#include "gil.h"
#include "options.h"
#include "polyhead/nn/rotary_embedding.h"

namespace polyhead::python {
namespace {

constexpr std::int64_t kMostExtent = std::int64_t{1} << 40;

nn::KeyValueCacheConfig read_config(nb::handle sequences, nb::handle kv_heads, nb::handle capacity, nb::handle head_width, nb::handle value_head_width,
                                    nb::handle dtype) {
  nn::KeyValueCacheConfig config;
  config.sequences = read_integer(sequences, "sequences", 0, kMostExtent);
  config.kv_heads = read_integer(kv_heads, "kv_heads", 1, kMostExtent);
  config.capacity = read_integer(capacity, "capacity", 0, kMostExtent);
  config.head_width = read_integer(head_width, "head_width", 1, kMostExtent);
  if (!value_head_width.is_none()) config.value_head_width = read_integer(value_head_width, "value_head_width", 1, kMostExtent);
  config.dtype = dtype_named(read_word(dtype, "dtype"));
  return config;
}

std::unique_ptr<Cache> make_cache(nb::handle sequences, nb::handle kv_heads, nb::handle capacity, nb::handle head_width, nb::handle value_head_width,
                                  nb::handle dtype) {
  auto cache = std::make_unique<Cache>();
  cache->cache = nn::KeyValueCache(read_config(sequences, kv_heads, capacity, head_width, value_head_width, dtype));
  return cache;
}

// The state of a cache, which restored_cache() reads: (lengths, previous lengths, list of bytes). The bytes hold the keys, the values and, for int8, the two
// scales, each up to the longest length.
Tuple<nb::any, nb::any, nb::any> cache_state(Cache& self) {
  const CacheInUse in_use(&self);
  nb::list parts;
  for (const ConstTensorView& view : {self.cache.keys(), self.cache.values(), self.cache.key_scales(), self.cache.value_scales()}) {
    if (!view) continue;
    const Tensor packed = Tensor::copy_of(view);
    parts.append(nb::bytes(packed.view().data(), static_cast<std::size_t>(numel(packed.shape())) * info(packed.dtype()).size));
  }
  const auto list = [&](ConstTensorView lengths) {
    nb::list result;
    for (std::int64_t b = 0; b < lengths.extent(0); ++b) result.append(lengths.data<std::int64_t>()[b]);
    return result;
  };
  return nb::make_tuple(list(self.cache.key_lengths()), list(self.cache.previous_lengths()), parts);
}

std::unique_ptr<Cache> restored_cache(nb::handle sequences, nb::handle kv_heads, nb::handle capacity, nb::handle head_width, nb::handle value_head_width,
                                      nb::handle dtype, nb::handle lengths_given, nb::handle previous_given, const nb::typed<nb::list, nb::bytes>& parts_given) {
  const nb::list& parts = parts_given;
  const nn::KeyValueCacheConfig config = read_config(sequences, kv_heads, capacity, head_width, value_head_width, dtype);
  const std::vector<std::int64_t> lengths = read_integers(lengths_given, "lengths"), previous = read_integers(previous_given, "previous");
  const std::int64_t longest = lengths.empty() ? 0 : *std::ranges::max_element(lengths), value_width = config.value_head_width == 0 ? config.head_width : config.value_head_width;
  const bool scaled = config.dtype == DType::i8;
  const auto damaged = [](auto... why) { return nb::value_error(cat("the state of the KeyValueCache is damaged: ", why...).c_str()); };
  if (nb::len(parts) != (scaled ? 4 : 2)) throw damaged("it has ", nb::len(parts), " tensors");
  if (longest < 0 || longest > config.capacity) throw damaged("a length is ", longest, ", and the capacity ", config.capacity);
  if (previous.size() != lengths.size()) throw damaged("it has ", previous.size(), " previous lengths for ", lengths.size(), " sequences");
  auto cache = std::make_unique<Cache>();
  TensorView views[4];
  std::vector<std::pair<TensorView, nb::bytes>> contents;
  for (std::size_t i = 0; i < nb::len(parts); ++i) {
    Shape shape{config.sequences, config.kv_heads, config.capacity};
    if (i < 2) shape.push_back(i == 0 ? config.head_width : value_width);
    cache->own[i] = Tensor(i < 2 ? config.dtype : DType::f32, shape);
    views[i] = cache->own[i].view();
    const TensorView used = views[i].slice(2, 0, longest);
    const nb::bytes bytes = nb::cast<nb::bytes>(parts[i]);
    const std::size_t size = static_cast<std::size_t>(numel(used.shape())) * info(used.dtype()).size;
    if (bytes.size() != size) throw damaged("a tensor has ", bytes.size(), " bytes instead of ", size);
    contents.emplace_back(used, bytes);
  }
  cache->cache = nn::KeyValueCache(views[0], views[1], previous, views[2], views[3]);
  // Appending zeros restores the lengths and the previous lengths. The saved contents then overwrite the zeros.
  std::vector<std::int64_t> added(lengths.size());
  for (std::size_t b = 0; b < added.size(); ++b) added[b] = lengths[b] - previous[b];
  const std::int64_t most = added.empty() ? 0 : *std::ranges::max_element(added);
  const float zero[1] = {};
  const auto zeros = [&](std::int64_t width) { return ConstTensorView(zero, DType::f32, {1, 1, 1, 1}).expand({config.sequences, config.kv_heads, std::max<std::int64_t>(most, 0), width}); };
  cache->cache.append(zeros(config.head_width), zeros(value_width), ConstTensorView(added.data(), {config.sequences}));
  for (const auto& [to, bytes] : contents) copy(ConstTensorView(bytes.c_str(), to.dtype(), to.shape()), to);
  return cache;
}

std::unique_ptr<Cache> cache_on(nb::handle keys, nb::handle values, nb::handle lengths, nb::handle key_scales, nb::handle value_scales) {
  if (keys.is_none()) throw nb::type_error("keys is None; it must be an array");
  if (values.is_none()) throw nb::type_error("values is None; it must be an array");
  auto cache = std::make_unique<Cache>();
  cache->keys = Array::output(keys, "keys"), cache->values = Array::output(values, "values");
  cache->key_scales = Array::output(key_scales, "key_scales"), cache->value_scales = Array::output(value_scales, "value_scales");
  const std::vector<std::int64_t> used = lengths.is_none() ? std::vector<std::int64_t>() : read_integers(lengths, "lengths");
  // KeyValueCache reads an empty list as no list, so check the number of lengths here.
  const std::int64_t sequences = cache->keys.view().rank() > 0 ? cache->keys.view().extent(0) : 0;
  if (!lengths.is_none() && used.empty() && sequences > 0) throw nb::value_error(cat("lengths has 0 numbers; there must be one for each of ", sequences, " sequences, or None").c_str());
  cache->cache = nn::KeyValueCache(cache->keys.view(), cache->values.view(), used, cache->key_scales.view(), cache->value_scales.view());
  return cache;
}

// A copy of integers, because the library's array changes with the next call.
nb::object copy_of(ConstTensorView integers) { return copied("lengths", integers); }

void append(Cache& self, nb::handle k_given, nb::handle v_given, nb::handle new_tokens_given, nb::handle num_threads) {
  const CacheInUse in_use(&self);
  const Array k = Array::required(k_given, "k"), v = Array::required(v_given, "v"), new_tokens = Array::input(new_tokens_given, "new_tokens");
  std::optional<LimitedThreads> threads = read_num_threads(num_threads);
  without_gil([&] { self.cache.append(k.view(), v.view(), new_tokens.view(), threads ? &*threads : nullptr); });
}

void reorder(Cache& self, nb::handle source) {
  const CacheInUse in_use(&self);
  const std::vector<std::int64_t> sources = read_integers(source, "source");
  const ReleasedGil released;  // Do not handle signals here, because a reorder that stops halfway would lose tokens.
  self.cache.reorder(sources);
}

void copy_sequence(Cache& self, nb::handle from, nb::handle to) {
  const CacheInUse in_use(&self);
  const std::int64_t last = self.cache.sequences() - 1;
  self.cache.copy_sequence(read_integer(from, "source", 0, last), read_integer(to, "target", 0, last));
}

void truncate(Cache& self, nb::handle lengths) {
  const CacheInUse in_use(&self);
  self.cache.truncate(read_integers(lengths, "lengths"));
}

ByName config_dict(const Cache& self) {
  const nn::KeyValueCacheConfig& config = self.cache.config();
  nb::dict result;
  result["sequences"] = config.sequences, result["kv_heads"] = config.kv_heads, result["capacity"] = config.capacity;
  result["head_width"] = config.head_width, result["value_head_width"] = config.value_head_width;
  result["dtype"] = std::string(info(config.dtype).name);
  return result;
}

nb::object view_of(nb::handle self, ConstTensorView (nn::KeyValueCache::*view)() const, nb::object (*make)(ConstTensorView, nb::handle) = &numpy_view) {
  Cache& cache = nb::cast<Cache&>(self);
  const CacheInUse in_use(&cache);
  const ConstTensorView memory = (cache.cache.*view)();
  return memory ? make(memory, self) : nb::none();
}

// Returns (keys, values, key scales or None, value scales or None) as PyTorch tensors on the cache's memory.
Tuple<nb::any, nb::any, nb::any, nb::any> tensors(nb::handle self) {
  return nb::make_tuple(view_of(self, &nn::KeyValueCache::keys, &torch_view), view_of(self, &nn::KeyValueCache::values, &torch_view),
                        view_of(self, &nn::KeyValueCache::key_scales, &torch_view), view_of(self, &nn::KeyValueCache::value_scales, &torch_view));
}

nn::RotaryEmbeddingConfig read_rotary_config(const nb::dict& given) {
  constexpr Choices<nn::RotaryScaling, 6> kScalings{{{"linear", nn::RotaryScaling::linear},
                                                     {"ntk", nn::RotaryScaling::ntk},
                                                     {"llama3", nn::RotaryScaling::llama3},
                                                     {"yarn", nn::RotaryScaling::yarn},
                                                     {"longrope", nn::RotaryScaling::longrope},
                                                     {"proportional", nn::RotaryScaling::proportional}}};
  nn::RotaryEmbeddingConfig config;
  config.width = read_integer(given["width"], "width", 2, kMostExtent);
  config.order = choice("order", read_word(given["order"], "order"), kRotaryOrders);
  if (nb::handle scaling = given["scaling"]; !scaling.is_none()) config.scaling = choice("scaling", read_word(scaling, "scaling"), kScalings);
  if (nb::handle factor = given["attention_factor"]; !factor.is_none()) config.attention_factor = read_number(factor, "attention_factor");
  const std::pair<const char*, double*> numbers[] = {{"base", &config.base},
                                                     {"factor", &config.factor},
                                                     {"original_max_position_embeddings", &config.original_max_position_embeddings},
                                                     {"low_freq_factor", &config.low_freq_factor},
                                                     {"high_freq_factor", &config.high_freq_factor},
                                                     {"beta_fast", &config.beta_fast},
                                                     {"beta_slow", &config.beta_slow},
                                                     {"mscale", &config.mscale},
                                                     {"mscale_all_dim", &config.mscale_all_dim},
                                                     {"proportion", &config.proportion}};
  for (const auto& [name, number] : numbers) *number = read_number(given[name], name);
  config.truncate = read_flag(given["truncate"], "truncate");
  if (nb::handle factors = given["factors"]; !factors.is_none()) config.factors = read_numbers(factors, "factors");
  return config;
}

// Returns (cos, sin).
Tuple<nb::any, nb::any> tables(const nn::RotaryEmbedding& self, nb::handle positions_given, nb::handle dtype_given) {
  const Array positions = Array::required(positions_given, "positions");
  const DType dtype = dtype_named(read_word(dtype_given, "dtype"));
  if (dtype != DType::f32 && dtype != DType::f64) throw nb::value_error("dtype must be 'float32' or 'float64'");
  const nn::RotaryTables made = self.tables(positions.view(), dtype);
  return nb::make_tuple(copied("cos", made.cos, positions_given), copied("sin", made.sin, positions_given));
}

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<Cache>(m, "KeyValueCache")
      .def_prop_ro("config", &config_dict)
      .def_prop_ro("lengths", [](const Cache& self) { return copy_of(self.cache.key_lengths()); })
      .def_prop_ro("previous_lengths", [](const Cache& self) { return copy_of(self.cache.previous_lengths()); })
      .def_prop_ro("keys", [](nb::handle self) { return view_of(self, &nn::KeyValueCache::keys); })
      .def_prop_ro("values", [](nb::handle self) { return view_of(self, &nn::KeyValueCache::values); })
      .def_prop_ro("key_scales", [](nb::handle self) { return view_of(self, &nn::KeyValueCache::key_scales); })
      .def_prop_ro("value_scales", [](nb::handle self) { return view_of(self, &nn::KeyValueCache::value_scales); })
      .def("tensors", &tensors)
      .def("state", &cache_state)
      .def("append", &append, any("k"), any("v"), any("new_tokens"), any("num_threads"))
      .def("reorder", &reorder, any("source"))
      .def("copy_sequence", &copy_sequence, any("source"), any("target"))
      .def("truncate", &truncate, any("lengths"))
      .def("clear", [](Cache& self) {
        const CacheInUse in_use(&self);
        self.cache.clear();
      });
  m.def("key_value_cache", &make_cache, any("sequences"), any("kv_heads"), any("capacity"), any("head_width"), any("value_head_width"), any("dtype"));
  m.def("restored_cache", &restored_cache, any("sequences"), any("kv_heads"), any("capacity"), any("head_width"), any("value_head_width"), any("dtype"),
        any("lengths"), any("previous"), nb::arg("parts"));
  m.def("key_value_cache_on", &cache_on, any("keys"), any("values"), any("lengths"), any("key_scales"), any("value_scales"));

  nb::class_<nn::RotaryEmbedding>(m, "RotaryEmbedding")
      .def(
          "__init__", [](nn::RotaryEmbedding* self, const ByName& config) { new (self) nn::RotaryEmbedding(read_rotary_config(config)); },
          nb::arg("config"))
      .def("tables", &tables, any("positions"), any("dtype"))
      .def_prop_ro("frequencies", [](const nn::RotaryEmbedding& self) { return std::vector<double>(self.frequencies().begin(), self.frequencies().end()); })
      .def_prop_ro("attention_factor", &nn::RotaryEmbedding::attention_factor);
}

}  // namespace polyhead::python
