// The model that a live page carries beside the module: its files are memory of the page.
#pragma once

#include <string>

namespace polyhead::live {

// Takes the files of page_files.h; they are then in the folder kPageFolder. Error if they are cut off.
void set_page_files(std::string packed);

}  // namespace polyhead::live
