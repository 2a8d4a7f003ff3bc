#include "nn/ids.h"

#include "core/index.h"
#include "core/text.h"

namespace polyhead::nn {

std::vector<std::int64_t> checked_ids(std::string_view operation, const Operand& given, std::int64_t count,
                                      std::optional<std::int64_t> ignored) {
  const ConstTensorView ids = given.view;
  require(static_cast<bool>(ids), operation, ": ", given.name, " is missing");
  require(ids.dtype() == DType::i64 || ids.dtype() == DType::i32, operation, ": ", given.name, " is ", ids.dtype(),
          "; it must be int64 or int32");
  std::vector<std::int64_t> values;
  values.reserve(static_cast<std::size_t>(ids.numel()));
  const auto read = [&](const auto* data) {
    for_each_offset<1>(ids.shape(), {ids.strides()}, [&](const auto& at) { values.push_back(data[at[0]]); });
  };
  ids.dtype() == DType::i64 ? read(ids.data<std::int64_t>()) : read(ids.data<std::int32_t>());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if ((0 <= values[i] && values[i] < count) || values[i] == ignored) continue;
    fail(ErrorCode::invalid_argument, operation, ": ", given.name, position_at(ids.shape(), static_cast<std::int64_t>(i)), " is ",
         values[i], "; ", given.name, " must be in [0,", count, ")", ignored ? cat(" or ", *ignored) : "");
  }
  return values;
}

}  // namespace polyhead::nn
