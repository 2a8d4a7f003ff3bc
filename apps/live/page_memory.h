// The files of the model that `polyhead view --live MODEL_DIR` puts into a live page. They lie in memory. The models that are part of the WebAssembly module
// are not among them.
#pragma once

#include <string>

namespace polyhead::live {

// Keeps files that are packed in the format of page_files.h. They can then be opened in the folder kPageFolder. Throws an Error if `packed` is cut off.
void set_page_files(std::string packed);

}  // namespace polyhead::live
