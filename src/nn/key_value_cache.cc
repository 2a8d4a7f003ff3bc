#include "polyhead/nn/key_value_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/index.h"
#include "core/overlap.h"
#include "core/parallel.h"
#include "core/text.h"
#include "nn/sequence_copy.h"
#include "polyhead/quantize.h"

namespace polyhead::nn {
namespace {

constexpr const char* kName = "KeyValueCache";

// Copies [L,W]: at once if both views are contiguous, else row by row. copy() is fast for contiguous memory; for other strides it copies element by element.
void copy_rows(ConstTensorView from, TensorView to) {
  if (from.is_contiguous() && to.is_contiguous()) return copy(from, to);
  for (std::int64_t row = 0; row < from.extent(0); ++row) copy(from.select(0, row), to.select(0, row));
}

// Copies the first `length` tokens of [K,L,W]. Both views have one dtype and do not overlap. Unlike copy(), this function cannot throw: copy() allocates for
// strided tensors that interleave.
void copy_heads(ConstTensorView from, TensorView to, std::int64_t length) noexcept {
  const std::size_t size = info(from.dtype()).size;
  const std::int64_t width = from.extent(2);
  const auto at = [&](const auto& view, std::int64_t head, std::int64_t row) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data())>>, const std::byte, std::byte>;
    return static_cast<Byte*>(view.data()) + (head * view.stride(0) + row * view.stride(1)) * static_cast<std::int64_t>(size);
  };
  const bool whole_rows = width <= 1 || (from.stride(2) == 1 && to.stride(2) == 1);
  const bool whole_heads = whole_rows && from.stride(1) == width && to.stride(1) == width;
  for (std::int64_t head = 0; head < from.extent(0) && length > 0 && width > 0; ++head) {
    if (whole_heads) {
      std::memcpy(at(to, head, 0), at(from, head, 0), static_cast<std::size_t>(length * width) * size);
      continue;
    }
    for (std::int64_t row = 0; row < length; ++row) {
      const std::byte* source = at(from, head, row);
      std::byte* target = at(to, head, row);
      if (whole_rows) {
        std::memcpy(target, source, static_cast<std::size_t>(width) * size);
        continue;
      }
      for (std::int64_t e = 0; e < width; ++e, source += from.stride(2) * static_cast<std::int64_t>(size), target += to.stride(2) * static_cast<std::int64_t>(size))
        std::memcpy(target, source, size);
    }
  }
}

// saved_shape() returns the shape [K,length,.] of the first `length` tokens of one sequence in `part` [B,K,capacity,.], which holds keys, values or scales.
// saved_bytes_of() returns the size of these tokens in bytes, rounded up to a multiple of 8.
Shape saved_shape(const TensorView& part, std::int64_t length) { return {part.extent(1), length, part.extent(3)}; }
std::int64_t saved_bytes_of(const TensorView& part, std::int64_t length) {
  return (numel(saved_shape(part, length)) * static_cast<std::int64_t>(info(part.dtype()).size) + 7) / 8 * 8;
}

void require_storage(const char* name, DType dtype) {
  require(is_floating(dtype) || dtype == DType::i8, kName, ": ", name, " is ", dtype,
          "; it must be float32, float64, bfloat16, float16 or int8");
}

KeyValueCacheConfig completed(KeyValueCacheConfig config) {
  if (config.value_head_width == 0) config.value_head_width = config.head_width;
  const std::pair<const char*, std::int64_t> extents[] = {{"sequences", config.sequences},
                                                          {"kv_heads", config.kv_heads},
                                                          {"capacity", config.capacity},
                                                          {"head_width", config.head_width},
                                                          {"value_head_width", config.value_head_width}};
  for (const auto& [name, extent] : extents) require(extent >= 0, kName, ": ", name, " is ", extent, "; it must not be negative");
  require_storage("dtype", config.dtype);
  return config;
}

KeyValueCacheConfig config_of(const TensorView& keys, const TensorView& values, const TensorView& key_scales,
                              const TensorView& value_scales) {
  require(keys && keys.rank() == 4, kName, ": keys must be [B,K,capacity,H]");
  require(values && values.rank() == 4 && values.shape().first(3) == keys.shape().first(3) && values.dtype() == keys.dtype(), kName,
          ": values must be [B,K,capacity,V] with the extents and the dtype of keys ", keys.dtype(), " ", keys.shape());
  require_storage("keys", keys.dtype());
  const std::pair<const char*, const TensorView*> scales[] = {{"key_scales", &key_scales}, {"value_scales", &value_scales}};
  for (const auto& [name, view] : scales) {
    require(static_cast<bool>(*view) == (keys.dtype() == DType::i8), kName, ": ", name,
            *view ? " is given without int8 keys and values" : " is missing; int8 keys and values have scales");
    require(!*view || (view->dtype() == DType::f32 && view->shape() == keys.shape().first(3)), kName, ": ", name, " is ", view->dtype(),
            " ", view->shape(), "; it must be float32 [B,K,capacity] = ", keys.shape().first(3));
  }
  const Operand outputs[] = {{"keys", keys}, {"values", values}, {"key_scales", key_scales}, {"value_scales", value_scales}};
  require_no_overlap(kName, outputs, {});
  return {keys.extent(0), keys.extent(1), keys.extent(2), keys.extent(3), values.extent(3), keys.dtype()};
}

}  // namespace

KeyValueCache::KeyValueCache(const KeyValueCacheConfig& config)
    : config_(completed(config)), lengths_(static_cast<std::size_t>(config_.sequences)), previous_(lengths_) {
  const Shape rows{config_.sequences, config_.kv_heads, config_.capacity};
  keys_ = own_[0] = Tensor(config_.dtype, appended(rows, {config_.head_width}));
  values_ = own_[1] = Tensor(config_.dtype, appended(rows, {config_.value_head_width}));
  if (config_.dtype != DType::i8) return;
  key_scales_ = own_[2] = Tensor(DType::f32, rows);
  value_scales_ = own_[3] = Tensor(DType::f32, rows);
}

KeyValueCache::KeyValueCache(TensorView keys, TensorView values, std::span<const std::int64_t> lengths, TensorView key_scales,
                             TensorView value_scales)
    : config_(config_of(keys, values, key_scales, value_scales)),
      keys_(keys),
      values_(values),
      key_scales_(key_scales),
      value_scales_(value_scales),
      lengths_(lengths.begin(), lengths.end()) {
  if (lengths_.empty()) lengths_.resize(static_cast<std::size_t>(config_.sequences));
  require(std::ssize(lengths_) == config_.sequences, kName, ": there are ", lengths_.size(), " lengths for ", config_.sequences,
          " sequences");
  for (const std::int64_t length : lengths_) {
    require(0 <= length && length <= config_.capacity, kName, ": one of lengths is ", length, "; it must lie in [0,capacity] = [0,",
            config_.capacity, "]");
  }
  previous_ = lengths_;
}

void KeyValueCache::require_sequence(const char* operation, std::int64_t sequence) const {
  require(0 <= sequence && sequence < config_.sequences, kName, ".", operation, ": there is no sequence ", sequence, "; sequences lie in [0,",
          config_.sequences, ")");
}

std::int64_t KeyValueCache::length(std::int64_t sequence) const {
  require_sequence("length", sequence);
  return lengths_[static_cast<std::size_t>(sequence)];
}

std::int64_t KeyValueCache::longest() const { return lengths_.empty() ? 0 : *std::ranges::max_element(lengths_); }

ConstTensorView KeyValueCache::keys() const { return keys_ ? keys_.slice(-2, 0, longest()) : keys_; }
ConstTensorView KeyValueCache::values() const { return values_ ? values_.slice(-2, 0, longest()) : values_; }
ConstTensorView KeyValueCache::key_scales() const { return key_scales_ ? key_scales_.slice(-1, 0, longest()) : key_scales_; }
ConstTensorView KeyValueCache::value_scales() const { return value_scales_ ? value_scales_.slice(-1, 0, longest()) : value_scales_; }

KeyValueCache::Parts KeyValueCache::parts() const {
  if (!key_scales_) return {{keys_, values_}};
  return {{keys_, values_, key_scales_.unsqueeze(-1), value_scales_.unsqueeze(-1)}};
}

std::vector<std::int64_t> KeyValueCache::lengths_after(std::int64_t tokens, ConstTensorView new_tokens) const {
  std::vector<std::int64_t> counts(lengths_.size(), tokens);
  if (new_tokens) {
    require(is_integer(new_tokens.dtype()) && new_tokens.shape() == Shape{config_.sequences}, kName, ".append: new_tokens is ",
            new_tokens.dtype(), " ", new_tokens.shape(), "; it must be integers [B] = [", config_.sequences, "]");
    copy(new_tokens, TensorView(counts.data(), {config_.sequences}));
  }
  for (std::size_t b = 0; b < counts.size(); ++b) {
    require(0 <= counts[b] && counts[b] <= tokens, kName, ".append: new_tokens[", b, "] is ", counts[b], "; it must lie in [0,T] = [0,",
            tokens, "]");
    require(counts[b] <= config_.capacity - lengths_[b], kName, ".append: sequence ", b, " has ", lengths_[b], " tokens and gets ",
            counts[b], "; the capacity is ", config_.capacity);
    counts[b] += lengths_[b];
  }
  return counts;
}

void KeyValueCache::append(ConstTensorView k, ConstTensorView v, ConstTensorView new_tokens, Executor* executor) {
  require(static_cast<bool>(keys_), kName, ".append: the cache has no memory; construct it with a configuration");
  const auto check = [&](const char* name, const ConstTensorView& x, char letter, std::int64_t width) {
    require(static_cast<bool>(x), kName, ".append: ", name, " is missing");
    const Shape wanted{config_.sequences, config_.kv_heads, k.rank() == 4 ? k.extent(2) : -1, width};
    require(is_floating(x.dtype()) && x.shape() == wanted, kName, ".append: ", name, " is ", x.dtype(), " ", x.shape(),
            "; it must be floating [B,K,T,", letter, "] with B = ", config_.sequences, ", K = ", config_.kv_heads, ", ", letter, " = ",
            width, " and one T for both");
  };
  check("k", k, 'H', config_.head_width), check("v", v, 'V', config_.value_head_width);
  const Operand outputs[] = {{"the cache's keys", keys_},
                             {"the cache's values", values_},
                             {"the cache's key scales", key_scales_},
                             {"the cache's value scales", value_scales_}};
  const Operand inputs[] = {{"k", k}, {"v", v}};
  require_no_overlap("KeyValueCache.append", outputs, inputs);
  std::vector<std::int64_t> after = lengths_after(k.extent(2), new_tokens);

  // The new tokens of sequence b lie at the positions begin_of(b) to end_of(b) - 1.
  const auto begin_of = [&](std::int64_t b) { return lengths_[static_cast<std::size_t>(b)]; };
  const auto end_of = [&](std::int64_t b) { return after[static_cast<std::size_t>(b)]; };
  if (config_.dtype == DType::i8) {
    for (std::int64_t b = 0; b < config_.sequences; ++b) {
      const std::int64_t begin = begin_of(b), end = end_of(b);
      const auto store = [&](const ConstTensorView& from, const TensorView& to, const TensorView& scales) {
        quantize_rows(from.select(0, b).slice(1, 0, end - begin), to.select(0, b).slice(1, begin, end),
                      scales.select(0, b).slice(1, begin, end), executor);
      };
      store(k, keys_, key_scales_), store(v, values_, value_scales_);
    }
    set_lengths(after);
    return;
  }
  const std::int64_t bytes =
      k.extent(2) * (config_.head_width + config_.value_head_width) * static_cast<std::int64_t>(info(config_.dtype).size);
  const std::int64_t grain = 1 + 200'000 / (1 + bytes);  // a piece for one thread: copying fewer than 200 KB takes less time than waking a thread
  parallel_for(config_.sequences * config_.kv_heads, grain, executor, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t b = i / config_.kv_heads, head = i % config_.kv_heads;
      const std::int64_t begin = begin_of(b), end = end_of(b);
      const auto store = [&](const ConstTensorView& from, const TensorView& to) {
        copy_rows(from.select(0, b).select(0, head).slice(0, 0, end - begin), to.select(0, b).select(0, head).slice(0, begin, end));
      };
      store(k, keys_), store(v, values_);
    }
  });
  set_lengths(after);
}

Mask KeyValueCache::causal_mask() const {
  return {.causal = Causal::top_left(), .key_lengths = key_lengths(), .diagonal_offsets = previous_lengths()};
}

// Writes the lengths in place, so that views of them stay valid.
void KeyValueCache::set_lengths(std::span<const std::int64_t> after) noexcept {
  std::ranges::copy(lengths_, previous_.begin());
  std::ranges::copy(after, lengths_.begin());
}

void KeyValueCache::copy_tokens(std::int64_t from, std::int64_t to) noexcept {
  const std::int64_t length = lengths_[static_cast<std::size_t>(to)] = lengths_[static_cast<std::size_t>(from)];
  const Parts all = parts();
  for (const TensorView& view : all.all()) copy_heads(view.select(0, from), view.select(0, to), length);
}

// Finds an order in which the sequences can be copied. First come the sequences that no other sequence still has to copy. The rest are cycles, in which each
// sequence is copied by one other sequence. For a cycle, plan_reorder() saves the first sequence, copies along the cycle, and writes the saved sequence to the
// last place.
std::vector<SequenceCopy> KeyValueCache::plan_reorder(std::span<const std::int64_t> source) const {
  require(std::ssize(source) == config_.sequences, kName, ".reorder: there are ", source.size(), " sources for ", config_.sequences,
          " sequences");
  for (const std::int64_t from : source) require_sequence("reorder", from);
  const auto at = [](std::int64_t b) { return static_cast<std::size_t>(b); };
  std::vector<std::int64_t> readers(source.size());  // for each sequence, how many other sequences still have to copy it
  std::vector<std::int64_t> ready;                   // sequences that copy another sequence, and that no other sequence still has to copy
  for (std::int64_t b = 0; b < config_.sequences; ++b) readers[at(source[at(b)])] += source[at(b)] != b ? 1 : 0;
  std::vector<std::uint8_t> waits(source.size());
  for (std::int64_t b = 0; b < config_.sequences; ++b) {
    waits[at(b)] = source[at(b)] != b ? 1 : 0;
    if (waits[at(b)] != 0 && readers[at(b)] == 0) ready.push_back(b);
  }
  std::vector<SequenceCopy> copies;
  while (!ready.empty()) {
    const std::int64_t b = ready.back(), from = source[at(b)];
    ready.pop_back();
    copies.push_back({from, b});
    waits[at(b)] = 0;
    if (--readers[at(from)] == 0 && waits[at(from)] != 0) ready.push_back(from);
  }
  for (std::int64_t first = 0; first < config_.sequences; ++first) {
    if (waits[at(first)] == 0) continue;
    copies.push_back({first, kSavedSequence});
    std::int64_t b = first;
    for (; source[at(b)] != first; b = source[at(b)]) {
      copies.push_back({source[at(b)], b});
      waits[at(b)] = 0;
    }
    copies.push_back({kSavedSequence, b});
    waits[at(b)] = 0;
  }
  return copies;
}

std::int64_t KeyValueCache::saved_bytes(std::span<const SequenceCopy> copies) const {
  std::int64_t tokens = 0, bytes = 0;
  for (const SequenceCopy& copy : copies)
    if (copy.to == kSavedSequence) tokens = std::max(tokens, lengths_[static_cast<std::size_t>(copy.from)]);
  if (tokens == 0) return 0;  // a cache without sequences has no tensors
  const Parts all = parts();
  for (const TensorView& view : all.all()) bytes += saved_bytes_of(view, tokens);
  return bytes;
}

void KeyValueCache::apply(std::span<const SequenceCopy> copies, void* saved) noexcept {
  const Parts all = parts();
  std::int64_t saved_length = 0;
  const auto copy_saved = [&](std::int64_t sequence, bool restore) {
    auto* memory = static_cast<std::byte*>(saved);
    for (const TensorView& view : all.all()) {
      const TensorView kept(memory, view.dtype(), saved_shape(view, saved_length));
      const TensorView own = view.select(0, sequence);
      restore ? copy_heads(kept, own, saved_length) : copy_heads(own, kept, saved_length);
      memory += saved_bytes_of(view, saved_length);
    }
  };
  for (const auto& [from, to] : copies) {
    if (to == kSavedSequence) {
      saved_length = lengths_[static_cast<std::size_t>(from)];
      copy_saved(from, false);
    } else if (from == kSavedSequence) {
      lengths_[static_cast<std::size_t>(to)] = saved_length;
      copy_saved(to, true);
    } else {
      copy_tokens(from, to);
    }
  }
  std::ranges::copy(lengths_, previous_.begin());
}

void KeyValueCache::reorder(std::span<const std::int64_t> source) {
  const std::vector<SequenceCopy> copies = plan_reorder(source);
  const Tensor saved = Tensor::uninitialised(DType::u8, {saved_bytes(copies)});
  apply(copies, saved.owner().get());
}

void KeyValueCache::copy_sequence(std::int64_t from, std::int64_t to) {
  require_sequence("copy_sequence", from), require_sequence("copy_sequence", to);
  if (from != to) copy_tokens(from, to);
  previous_ = lengths_;
}

void KeyValueCache::truncate(std::int64_t sequence, std::int64_t length) {
  require_sequence("truncate", sequence);
  std::vector<std::int64_t> lengths = lengths_;
  lengths[static_cast<std::size_t>(sequence)] = length;
  truncate(lengths);
}

void KeyValueCache::truncate(std::span<const std::int64_t> lengths) {
  require(std::ssize(lengths) == config_.sequences, kName, ".truncate: there are ", lengths.size(), " lengths for ", config_.sequences,
          " sequences");
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    require(0 <= lengths[b] && lengths[b] <= lengths_[b], kName, ".truncate: sequence ", b, " has ", lengths_[b],
            " tokens and cannot be cut to ", lengths[b]);
  }
  for (std::size_t b = 0; b < lengths.size(); ++b) lengths_[b] = previous_[b] = lengths[b];
}

void KeyValueCache::clear() {
  std::ranges::fill(lengths_, 0);
  previous_ = lengths_;
}

}  // namespace polyhead::nn
