// The custom operator polyhead::Attention for ONNX Runtime. README.md lists its inputs, attributes and outputs, which are those of ONNX's Attention (opsets 23 to 25).
#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/error.h"
#include "polyhead/executor.h"
#include "polyhead/sdpa.h"
#include "polyhead/workspace.h"

namespace {

using polyhead::ConstTensorView;
using polyhead::DType;
using polyhead::Shape;
using polyhead::TensorView;

enum Input : std::size_t { query, key, value, attn_mask, past_key, past_value, nonpad_kv_seqlen, input_count };
enum Output : std::size_t { y, present_key, present_value, output_count };
constexpr const char* kInputs[] = {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"};
constexpr std::int64_t kDouble = 11;  // the number of float64 (TensorProto.DOUBLE) in the attribute softmax_precision

[[noreturn]] void refuse(const std::string& what) { throw polyhead::Error(polyhead::ErrorCode::invalid_argument, "polyhead::Attention: " + what); }

std::string text(std::int64_t number) { return std::to_string(number); }

// Runs tasks on the threads of the session. ONNX Runtime does not reveal how many these are, so num_threads() returns polyhead's own number of threads. A call
// is divided into pieces according to this number. In a session with one thread, that thread runs all pieces.
class SessionThreads final : public polyhead::Executor {
 public:
  explicit SessionThreads(const OrtKernelContext* context) : context_(context) {}
  int num_threads() const override { return polyhead::num_threads(); }
  void run(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    struct Call {
      const std::function<void(std::int64_t)>& task;
      std::mutex mutex{};
      std::exception_ptr failure{};
    } call{task};
    const auto piece = [](void* data, std::size_t index) {  // exceptions may not pass through ONNX Runtime's threads
      Call& of = *static_cast<Call*>(data);
      try {
        of.task(static_cast<std::int64_t>(index));
      } catch (...) {
        const std::lock_guard lock(of.mutex);
        of.failure = std::current_exception();
      }
    };
    Ort::ThrowOnError(Ort::GetApi().KernelContext_ParallelFor(context_, piece, static_cast<std::size_t>(count), 0, &call));
    if (call.failure) std::rethrow_exception(call.failure);
  }

 private:
  const OrtKernelContext* context_;
};

// Calls work(); returns what it throws as a status, because no exception may cross the C interface.
template <class Work>
OrtStatus* status_of(const Work& work) noexcept {
  const OrtApi& api = Ort::GetApi();
  try {
    work();
    return nullptr;
  } catch (const polyhead::Error& error) {
    return api.CreateStatus(error.code() == polyhead::ErrorCode::unsupported ? ORT_NOT_IMPLEMENTED : ORT_INVALID_ARGUMENT, error.what());
  } catch (const Ort::Exception& error) {
    return api.CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, error.what());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, "polyhead::Attention: unknown exception");
  }
}

// Returns the attribute, or nothing if the node does not have it. Throws if it has another type.
template <class T>
std::optional<T> attribute(const Ort::ConstKernelInfo& node, const char* name) {
  try {
    return node.GetAttribute<T>(name);
  } catch (const Ort::Exception& error) {
    if (std::string_view(error.what()).find("No attribute with name") != std::string_view::npos) return std::nullopt;
    refuse(std::string("attribute ") + name + ": " + error.what());
  }
}

DType dtype_of(ONNXTensorElementDataType type, const char* name) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return DType::f32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return DType::f64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return DType::f16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return DType::bf16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: return DType::boolean;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return DType::i64;
    default: refuse(std::string(name) + " has ONNX's element type " + text(type) + "; it must be float32, float64, float16 or bfloat16, or bool for attn_mask, or int64 for nonpad_kv_seqlen");
  }
}

ConstTensorView input(const Ort::KernelContext& context, Input index) {
  if (index >= context.GetInputCount()) return {};
  const Ort::ConstValue tensor = context.GetInput(index);
  if (!tensor) return {};
  const auto type = tensor.GetTensorTypeAndShapeInfo();
  return {tensor.GetTensorRawData(), dtype_of(type.GetElementType(), kInputs[index]), Shape(type.GetShape())};
}

// Returns an absent view if the node does not name the output.
TensorView output(Ort::KernelContext& context, Output index, DType dtype, const Shape& shape) {
  if (index >= context.GetOutputCount()) return {};
  const Ort::UnownedValue tensor = context.GetOutput(index, shape.begin(), static_cast<std::size_t>(shape.size()));
  return tensor ? TensorView(const_cast<void*>(tensor.GetTensorRawData()), dtype, shape) : TensorView();
}

// Returns [B,T,N*H] as a view [B,N,T,H]. A tensor of four dimensions stays as it is.
template <class View>
View heads(const View& x, std::optional<std::int64_t> count, const char* name, const char* attribute_name) {
  if (x.rank() == 4) {
    if (count && *count > 0 && *count != x.extent(1)) refuse(std::string(name) + " is " + to_string(x.shape()) + ", which has " + text(x.extent(1)) + " heads; " + attribute_name + " is " + text(*count));
    return x;
  }
  if (x.rank() != 3) refuse(std::string(name) + " is " + to_string(x.shape()) + "; it must be [B,heads,length,width] or [B,length,heads*width]");
  if (!count) refuse(std::string(name) + " is " + to_string(x.shape()) + "; three dimensions need the attribute " + attribute_name);
  if (*count < 1 || x.extent(2) % *count != 0) refuse(std::string(name) + " is " + to_string(x.shape()) + "; its last extent must be a multiple of " + attribute_name + " = " + text(*count));
  return x.unflatten(2, {*count, x.extent(2) / *count}).transpose(1, 2);
}

struct Kernel {
  explicit Kernel(const Ort::ConstKernelInfo& node)
      : q_heads(attribute<std::int64_t>(node, "q_num_heads")),
        kv_heads(attribute<std::int64_t>(node, "kv_num_heads")),
        scale(attribute<float>(node, "scale")),
        softcap(attribute<float>(node, "softcap").value_or(0)),
        left(size(node, "left_window_size")),
        right(size(node, "right_window_size")),
        is_causal(flag(node, "is_causal")),
        in_double(attribute<std::int64_t>(node, "softmax_precision").value_or(0) == kDouble) {}

  OrtStatus* ComputeV2(OrtKernelContext* context) {
    return status_of([&] {
      Ort::KernelContext of(context);
      SessionThreads threads(context);
      compute(of, threads);
    });
  }

 private:
  static std::optional<std::int64_t> size(const Ort::ConstKernelInfo& node, const char* name) {
    const auto given = attribute<std::int64_t>(node, name);
    if (given && *given < -1) refuse(std::string(name) + " is " + text(*given) + "; it must be -1 (no bound) or at least 0");
    return given && *given >= 0 ? given : std::nullopt;
  }
  static bool flag(const Ort::ConstKernelInfo& node, const char* name) {
    const std::int64_t given = attribute<std::int64_t>(node, name).value_or(0);
    if (given != 0 && given != 1) refuse(std::string(name) + " is " + text(given) + "; it must be 0 or 1");
    return given == 1;
  }

  void compute(Ort::KernelContext& context, SessionThreads& threads) const {
    const ConstTensorView q_given = input(context, query), mask = input(context, attn_mask), lengths = input(context, nonpad_kv_seqlen);
    const ConstTensorView q = heads(q_given, q_heads, "Q", "q_num_heads");
    if (in_double && q.dtype() != DType::f64) refuse("softmax_precision is DOUBLE; for Q in " + std::string(info(q.dtype()).name) + " polyhead sums in float32");
    const ConstTensorView past_k = input(context, past_key), past_v = input(context, past_value);
    if (static_cast<bool>(past_k) != static_cast<bool>(past_v)) refuse("past_key and past_value must be given together");
    if (past_k && lengths) refuse("past_key and nonpad_kv_seqlen are given; only one of them may be");
    polyhead::Tensor k_memory, v_memory;
    const ConstTensorView k = with_past(context, present_key, past_k, heads(input(context, key), kv_heads, "K", "kv_num_heads"), k_memory);
    const ConstTensorView v = with_past(context, present_value, past_v, heads(input(context, value), kv_heads, "V", "kv_num_heads"), v_memory);
    const std::int64_t batch = q.extent(0), queries = q.extent(2), keys = k.extent(2), width = v.extent(3);

    polyhead::SdpaOptions options{.softcap = softcap, .executor = &threads, .workspace = &workspace};
    if (scale) options.scale = *scale;
    options.mask.window.left = left;
    options.mask.window.right = right;
    std::vector<std::int64_t> offsets;
    const bool has_diagonal = is_causal || left || right;
    if (lengths) {
      if (lengths.shape() != Shape{batch} || lengths.dtype() != DType::i64) refuse("nonpad_kv_seqlen is " + to_string(lengths.shape()) + "; it must be int64 [B] = [" + text(batch) + "]");
      options.mask.key_lengths = lengths;
      if (has_diagonal) {
        for (std::int64_t b = 0; b < batch; ++b) offsets.push_back(lengths.data<std::int64_t>()[b] - queries);
        options.mask.diagonal_offsets = ConstTensorView(offsets.data(), Shape{batch});
        if (is_causal) options.mask.causal = polyhead::Causal::top_left();
      }
    } else if (has_diagonal) {
      const auto diagonal = polyhead::Diagonal::offset(past_k ? past_k.extent(2) : 0);
      is_causal ? void(options.mask.causal = diagonal) : void(options.mask.window.diagonal = diagonal);
    }
    polyhead::Tensor mask_memory;
    if (mask) {
      const ConstTensorView whole = whole_mask(mask, keys, mask_memory);
      (mask.dtype() == DType::boolean ? options.mask.attend : options.bias) = whole;
    }

    const bool three = q_given.rank() == 3;
    const std::int64_t count = q.extent(1);
    const TensorView out = output(context, y, q.dtype(), three ? Shape{batch, queries, count * width} : Shape{batch, count, queries, width});
    sdpa_forward({.q = q, .k = k, .v = v, .out = three ? out.unflatten(2, {count, width}).transpose(1, 2) : out}, options);
  }

  // Returns the past keys (or values) followed by the new ones: in the output `index` if the node names it, else in `memory`. Without a past it returns the new
  // ones: copied to the output, or as they are if the node names no output.
  ConstTensorView with_past(Ort::KernelContext& context, Output index, const ConstTensorView& past, const ConstTensorView& fresh, polyhead::Tensor& memory) const {
    Shape shape = fresh.shape();
    if (past) {
      if (past.dtype() != fresh.dtype()) refuse("the past is " + std::string(info(past.dtype()).name) + "; it must have the dtype of K and V, " + std::string(info(fresh.dtype()).name));
      if (past.rank() != 4 || past.extent(0) != shape[0] || past.extent(1) != shape[1] || past.extent(3) != shape[3]) {
        refuse("the past is " + to_string(past.shape()) + "; it must be [B,heads,past length,width] and fit " + to_string(shape));
      }
      shape[2] += past.extent(2);
    }
    TensorView all = output(context, index, fresh.dtype(), shape);
    if (!all && !past) return fresh;
    if (!all) {
      memory = workspace.tensor(fresh.dtype(), shape);
      all = memory.view();
    }
    const std::int64_t before = shape[2] - fresh.extent(2);
    if (past) copy(past, all.slice(2, 0, before));
    copy(fresh, all.slice(2, before, shape[2]));
    return all;
  }

  // A mask may cover only the first keys; the keys after its end are then masked (opset 24).
  ConstTensorView whole_mask(const ConstTensorView& mask, std::int64_t keys, polyhead::Tensor& memory) const {
    if (mask.rank() < 1 || mask.rank() > 4) refuse("attn_mask is " + to_string(mask.shape()) + "; it must broadcast to [B,heads,T,S]");
    const std::int64_t covered = mask.extent(-1);
    if (mask.dtype() != DType::boolean && !is_floating(mask.dtype())) refuse(std::string("attn_mask is ") + std::string(info(mask.dtype()).name) + "; it must be bool or have the dtype of Q");
    if (covered >= keys) return mask;  // sdpa_forward refuses a mask that is too long
    if (covered == 1) refuse("attn_mask is " + to_string(mask.shape()) + "; a last extent of 1 could mean one key or all " + text(keys) + " keys: write the mask for all keys");
    Shape shape = mask.shape();
    shape[-1] = keys;
    memory = workspace.tensor(mask.dtype(), shape);
    const TensorView all = memory.view();
    if (mask.dtype() == DType::boolean) {
      std::fill_n(all.data<bool>(), all.numel(), false);
      const std::int64_t rows = covered == 0 ? 0 : mask.numel() / covered;
      for (std::int64_t row = 0; row < rows; ++row) std::copy_n(mask.data<bool>() + row * covered, covered, all.data<bool>() + row * keys);
    } else {
      fill(all, -std::numeric_limits<double>::infinity());
      copy(mask, all.slice(-1, 0, covered));
    }
    return all;
  }

  std::optional<std::int64_t> q_heads, kv_heads;
  std::optional<float> scale;
  double softcap;
  std::optional<std::int64_t> left, right;
  bool is_causal, in_double;
  polyhead::Workspace workspace;
};

// One operator for each dtype; ONNX Runtime merges operators of one name and chooses by the types of the inputs.
struct Attention : Ort::CustomOpBase<Attention, Kernel, true> {
  explicit Attention(ONNXTensorElementDataType of) : type(of) {}
  const char* GetName() const { return "Attention"; }
  std::size_t GetInputTypeCount() const { return input_count; }
  ONNXTensorElementDataType GetInputType(std::size_t index) const {
    return index == attn_mask ? ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED : index == nonpad_kv_seqlen ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 : type;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t index) const { return index <= value ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL; }
  std::size_t GetOutputTypeCount() const { return output_count; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return type; }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(std::size_t index) const { return index == y ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL; }
  OrtStatus* CreateKernelV2(const OrtApi&, const OrtKernelInfo* node, void** kernel) const {
    return status_of([&] { *kernel = new Kernel(Ort::ConstKernelInfo(node)); });
  }
  ONNXTensorElementDataType type;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {  // this ONNX Runtime is older than the headers of this build; every version has CreateStatus
    const std::string message = "libpolyhead_onnxruntime needs ONNX Runtime 1." + std::to_string(ORT_API_VERSION) + " or later; this is " + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ORT_NOT_IMPLEMENTED, message.c_str());
  }
  Ort::InitApi(api);
  return status_of([&] {
    static const Attention operators[] = {Attention(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT), Attention(ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE), Attention(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16),
                                          Attention(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16)};
    // The session reads the domain after this call, so the domain must exist until the process ends.
    static const Ort::CustomOpDomain domain = [] {
      Ort::CustomOpDomain made("polyhead");
      for (const Attention& op : operators) made.Add(&op);
      return made;
    }();
    Ort::ThrowOnError(api->AddCustomOpDomain(options, domain));
  });
}
