// golden BACKEND f64|f32 < FILES: runs the golden vectors as WebAssembly under node. FILES: all files of tests/golden/vectors, packed as apps/polyhead/page_files.h
// says, because the module cannot open files. BACKEND: the name of a backend, or "" for the backend that polyhead chooses.
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "golden/runner/run.h"
#include "io/file_bytes.h"
#include "page_files.h"   // apps/polyhead
#include "page_memory.h"  // apps/live

int main(int count, char** arguments) {
  using namespace polyhead;
  if (count != 3) return std::fputs("usage: golden BACKEND f64|f32 < FILES\n", stderr), 2;
  std::string packed;
  for (char part[1 << 14]; const std::size_t got = std::fread(part, 1, sizeof part, stdin);) packed.append(part, got);
  live::set_page_files(std::move(packed));
  golden::RunOptions options;
  options.dtypes = {std::string_view(arguments[2]) == "f32" ? DType::f32 : DType::f64};
  if (*arguments[1] != '\0') options.setting.backend = &find_backend(arguments[1]);
  std::vector<std::filesystem::path> paths;
  for (const std::string& name : io::files_in(live::kPageFolder)) paths.push_back(std::filesystem::path(live::kPageFolder) / name);
  const golden::RunResult result = golden::run_files(paths, options, [](const std::string& line) { std::puts(line.c_str()); });
  std::printf("%d passed, %d failed\n", result.passed, result.failed);
  return result.failed == 0 ? 0 : 1;
}
