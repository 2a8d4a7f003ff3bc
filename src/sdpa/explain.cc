#include "core/parallel.h"
#include "core/text.h"
#include "polyhead/device.h"
#include "polyhead/sdpa.h"
#include "sdpa/backend.h"
#include "sdpa/normal_form.h"

namespace polyhead {
namespace {

std::string beside_t(std::int64_t offset) { return offset == 0 ? std::string("t") : cat("t", offset < 0 ? "" : "+", offset); }

// These functions return the text for the bounds of the range of keys of query t. A bound that excludes no key of any row is shown as 0 (lower bound) or S
// (upper bound).
std::string lower_end(const Problem& p, std::int64_t lower) { return p.queries - 1 + lower <= 0 ? std::string("0") : beside_t(lower); }
std::string upper_end(const Problem& p, std::int64_t upper) { return upper >= p.keys ? std::string("S") : beside_t(upper); }

std::string mask_facts(const Problem& p, const SdpaOptions& options) {
  std::string text;
  const auto part = [&](const auto&... pieces) {
    append(text, text.empty() ? "" : ", ");
    append(text, cat(pieces...));
  };
  const KeyRules& rules = *p.rules;
  const Document& first = p.documents.front();
  if (p.packed()) part(p.documents.size(), " documents");
  if (rules.banded && p.packed()) part("a causal diagonal or window in each document");
  const bool shared = !p.packed() && rules.bands.empty();
  if (rules.banded && shared) part("keys [", lower_end(p, first.band.lower), ", ", upper_end(p, first.band.upper), ") of each row");
  if (rules.banded && !rules.bands.empty()) part("a causal diagonal or window with a separate offset for each sequence");
  const auto bound = [&](const char* name, const ConstTensorView& view) {
    if (view) part(name, " per ", view.rank() > p.lead.size() ? "query" : "sequence");
  };
  bound("key starts", options.mask.key_starts);
  bound("key lengths", options.mask.key_lengths);
  if (options.mask.attend || options.mask.block) part("dense booleans ", (options.mask.attend ? options.mask.attend : options.mask.block).shape());
  if (options.mask.attend_keys || options.mask.block_keys) part("a key mask");
  if (const BlockLists& blocks = options.mask.blocks; blocks.lists) part("lists of ", blocks.size.queries, " x ", blocks.size.keys, " blocks ", blocks.lists.shape());
  return text.empty() ? "none" : text;
}

// Returns the text of the fact "derivatives": which backend computes which derivatives.
std::string derivative_facts(const Problem& p, const Backend* forced) {
  if (p.key_dtype != p.dtype) return cat("none: k and v are ", p.key_dtype, " and q is ", p.dtype);
  if (p.score_rule && p.score_rule.backward == nullptr) return "none: score_rule has no backward function";
  std::string text;
  const Backend* last = nullptr;
  for (const Operation operation : {Operation::backward, Operation::jvp, Operation::backward_backward}) {
    if (p.score_rule && (operation != Operation::backward || p.score_rule.backward == nullptr)) continue;
    const std::string reason = forced != nullptr ? forced->declines(p, operation) : std::string();
    const Backend* const backend = reason.empty() ? &select_backend(p, operation, forced) : nullptr;
    if (!text.empty()) append(text, backend != nullptr && backend == last ? ", " : "; ");
    if (backend == nullptr) {
      append(text, cat(forced->name, " declines ", name_of(operation), ": ", reason));
    } else {
      append(text, cat(backend == last ? "" : cat(backend->name, ": "), name_of(operation)));
    }
    last = backend;
  }
  if (p.score_rule) return text;
  return cat(text, p.dtype == DType::bf16 ? "; the last two with exact products" : "");
}

// Returns a cache's level and size: "L2 512 KiB".
std::string cache_facts(const Cpu& cpu, int level) {
  std::string text = cat("L", level, level == 1 ? "d " : " ");
  for (const CpuCache& cache : cpu.caches) {
    if (cache.level != level || cache.kind == "instruction") continue;
    return text + size_text(cache.bytes);
  }
  return text + "unknown";
}

// Returns the facts about the machine on which the block sizes and the choice of kernels depend.
std::string machine_facts(const Cpu& cpu) {
  std::string sets, lacking, others;
  for (const InstructionSet& set : cpu.instruction_sets) append(sets, set.available ? cat(" ", set.name) : std::string());
  for (const KernelInstructionSet& set : kernel_instruction_sets()) {
    // Sets are in order of preference. Sets after the one in use are not reported.
    if (set.why_not_used.empty()) break;
    append(set.available ? others : lacking, set.available ? cat("; ", set.name, ": ", set.why_not_used) : cat(" ", set.name));
  }
  if (!lacking.empty()) others = cat("; not in this processor:", lacking, others);
  return cat("processors: ", cpu.usable, " of ", cpu.online, " online\n", "caches: ", cache_facts(cpu, 1), ", ", cache_facts(cpu, 2), ", ", cache_facts(cpu, 3), "\n",
             "instruction sets: ", sets.empty() ? "unknown" : sets.substr(1), "; kernels for ", kernel_instruction_set(), "\n", others.empty() ? "" : cat("kernels not used: ", others.substr(2), "\n"));
}

}  // namespace

std::string explain(const SdpaForward& tensors, const SdpaOptions& options) {
  ProblemMemory memory;
  const ForwardProblem p = normal_form(tensors, options, "explain", memory);
  const Backend& chosen = select_backend(p, Operation::forward, options.backend);
  std::string text = cat("backend: ", chosen.name, options.backend ? " (asked for)" : "", "\n");
  for (const Backend* backend : backends()) {
    if (options.backend || backend == &chosen) break;
    append(text, cat("declined: ", backend->name, ": ", backend->declines(p, Operation::forward), "\n"));
  }
  if (chosen.facts != nullptr) append(text, chosen.facts(p));
  append(text, cat("problem: ", p.dtype, ", B ", p.batch, ", N ", p.heads, ", K ", p.kv_heads, ", T ", p.queries, ", S ", p.keys, ", H ", p.qk_width,
                   ", V ", p.v_width, "\n"));
  if (p.key_dtype != p.dtype)
    append(text, cat("keys and values: ", p.key_dtype, p.k_scale ? " with a scale for each token and head" : "", "\n"));
  append(text, cat("scale: ", p.scale, p.softcap > 0 ? cat(", softcap ", p.softcap) : "", "\n"));
  if (p.score_rule) {
    append(text, cat("score rule: a function of the caller, ", p.score_rule.backward == nullptr ? "without a backward function" : cat("with ", p.score_rule.gradient_count, " gradients for each head"),
                     p.score_rule.masks == nullptr ? "" : "; may mask blocks of pairs", "\n"));
  }
  append(text, cat("mask: ", mask_facts(p, options), "\n"));
  append(text, cat("bias: ", options.bias ? to_string(options.bias.shape()) : "none", "\n"));
  if (const RelativeBias& bias = options.relative_bias) {
    append(text, cat("relative bias: ", bias.slopes ? "slopes " : "a table ", bias.parameter().shape(), ", values of ",
                     p.relative_bias.extent(1), " distances\n"));
  }
  if (options.sink) append(text, cat("sink: ", options.sink.shape(), "\n"));
  append(text, cat("dropout: ", p.dropout.active() ? cat(p.dropout.p, p.dropout.keep ? ", bits given" : ", bits drawn per pair") : "none", "\n"));
  append(text, cat("derivatives: ", derivative_facts(p, options.backend), "\n"));
  append(text, cat("threads: ", threads_of(p.executor), p.executor ? " (the caller's executor)" : "", "\n"));
  append(text, machine_facts(detect_cpu()));
  return text;
}

}  // namespace polyhead
