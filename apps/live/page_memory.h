// The model that a live page carries in addition to those of the module. Its files lie in memory.
#pragma once

#include <string>

namespace polyhead::live {

// Takes the packed files in the form that page_files.h writes; they can then be opened in the folder kPageFolder. Error if `packed` is cut off.
void set_page_files(std::string packed);

}  // namespace polyhead::live
