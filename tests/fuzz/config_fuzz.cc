// The input is a config.json, a NUL byte, a generation_config.json, a NUL byte and a preprocessor_config.json. The readers of all families read a folder with these files.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "polyhead/error.h"
#include "polyhead/models/bert.h"
#include "polyhead/models/image_processor.h"
#include "polyhead/models/language_model.h"
#include "polyhead/models/model_config.h"
#include "polyhead/models/sequence_to_sequence_model.h"
#include "polyhead/models/vision_encoder.h"

namespace {

// The folder, in memory if the system has /dev/shm. It is removed at the end of the process.
struct Folder {
  std::filesystem::path path = std::filesystem::path(std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp") / ("polyhead_config_fuzz_" + std::to_string(::getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

template <class F>
void may_refuse(const F& read) {
  try {
    (void)read();
  } catch (const polyhead::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace polyhead::models;
  static const Folder folder;
  std::string_view left(reinterpret_cast<const char*>(data), size);
  for (const char* const name : {"config.json", "generation_config.json", "preprocessor_config.json"}) {
    const std::string_view text = left.substr(0, left.find('\0'));
    if (text.empty()) std::filesystem::remove(folder.path / name);
    else std::ofstream(folder.path / name, std::ios::binary) << text;
    left.remove_prefix(text.size() < left.size() ? text.size() + 1 : left.size());
  }
  may_refuse([] { return read_config(folder.path); });
  may_refuse([] { return read_bert_config(folder.path / "config.json"); });
  may_refuse([] { return read_language_config(folder.path); });
  may_refuse([] { return read_sequence_to_sequence_config(folder.path); });
  may_refuse([] { return read_vision_config(folder.path); });
  may_refuse([] { return image_model_kind(folder.path); });
  may_refuse([] { return read_image_processor(folder.path); });
  return 0;
}
