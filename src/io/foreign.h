// Files that lie where a file of tensors is expected and are something else.
#pragma once

#include <string>
#include <string_view>

namespace polyhead::io {

// What a file that begins so is, and what makes a file of tensors of it: "a pointer of Git LFS; `git lfs pull` fetches the file". Empty if it is
// nothing known. `text` may be only the first 64 bytes; a zip archive is known by its first member.
std::string foreign_kind(std::string_view text);

// The same of what torch.save writes.
std::string torch_checkpoint();

}  // namespace polyhead::io
