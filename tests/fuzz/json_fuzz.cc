#include "io/json.h"

#include <cstddef>
#include <cstdint>

#include "polyhead/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    (void)polyhead::io::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const polyhead::Error&) {
  }
  return 0;
}
