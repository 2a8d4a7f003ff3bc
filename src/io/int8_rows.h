// Parameters as int8 rows with float32 scales, as quantize_parameters() of polyhead/io/parameters.h stores them: NAME int8 and NAME.scale.
#pragma once

#include <span>
#include <vector>

#include "polyhead/io/tensor_file.h"

#pragma GCC visibility push(default)  // exported: the library of models calls these
namespace polyhead::io::inline internal {

// Converts floating tensors of two or more dimensions to int8 rows and scales; other tensors are returned unchanged. A tensor with a NaN or an infinity is an
// Error that names the tensor and its file, `owner`.
std::vector<NamedTensor> int8_rows_of(std::span<const NamedTensor> tensors, const std::string& owner);
// Replaces int8 rows by float32 values, scale times row. An int8 tensor without scales is unchanged. Error if scales do not fit their rows.
void expand_int8_rows(TensorFile& file);

}  // namespace polyhead::io::inline internal
#pragma GCC visibility pop
