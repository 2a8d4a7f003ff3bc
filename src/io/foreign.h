// Recognises files of other formats that users give in place of a file of tensors.
#pragma once

#include <string>
#include <string_view>

namespace polyhead::io {

// Returns the kind of file that begins with `text`, and how to get a file of tensors from it: "compressed by gzip; `gunzip` unpacks it". Empty for
// unknown kinds. Reads only the first bytes.
std::string foreign_kind(std::string_view text);

// Returns the text of foreign_kind() for a file that torch.save wrote.
std::string torch_checkpoint();

}  // namespace polyhead::io
