// Files that lie where a file of tensors is expected and are something else.
#pragma once

#include <string>
#include <string_view>

namespace polyhead::io {

// What kind of file begins with `text`, and how to get a file of tensors from it: "compressed by gzip; `gunzip` unpacks it". Empty for every other
// file. Looks at the first bytes alone.
std::string foreign_kind(std::string_view text);

// The answer for a file that torch.save wrote.
std::string torch_checkpoint();

}  // namespace polyhead::io
