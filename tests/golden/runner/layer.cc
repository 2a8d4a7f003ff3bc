#include "golden/runner/operation.h"

namespace polyhead::golden {

Tensors compute_layer(Reader&, const Setting&) { fail(ErrorCode::unsupported, "layers are not connected"); }

}  // namespace polyhead::golden
