#include "file_fuzz.h"
#include "io/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return polyhead::io::read_any_bytes(&polyhead::io::read_safetensors, data, size);
}
