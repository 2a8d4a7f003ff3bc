#include "program.h"

#include "bind.h"
#include "gil.h"

namespace polyhead::python {
namespace {

namespace nb = nanobind;

// Arguments are bytes, because a file name need not be UTF-8.
int run_program(const nb::list& arguments) {
  std::vector<std::string> words;
  for (const nb::handle word : arguments) {
    const nb::bytes bytes(word);
    words.emplace_back(bytes.c_str(), bytes.size());
  }
  int status = 0;
  without_gil([&] { status = app::run_program(words); });
  return status;
}

}  // namespace

void bind_program(nb::module_& m) {
  m.def("run_program", &run_program, nb::sig("def run_program(arguments: list[bytes]) -> int"));
}

}  // namespace polyhead::python
