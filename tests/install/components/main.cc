// Uses each component with a call that needs a third-party library inside of the component's archive, so a missing library is a link error.
#include <polyhead/io.h>
#include <polyhead/models.h>
#include <polyhead/viewer.h>
#include <regex.h>

#include <cstdio>
#include <string>

template <class Call>
bool refuses(Call call) {
  try {
    call();
  } catch (const polyhead::Error& error) {
    std::printf("%s\n", error.what());
    return true;
  }
  return false;
}

// Oniguruma, which polyhead links, has functions of these names, too, with Ruby's rules. The program must get the functions of the C library.
bool has_the_c_librarys_regcomp() {
  regex_t pattern;
  if (regcomp(&pattern, "([a-z][aeiou]){2,3}", REG_EXTENDED) != 0) return false;
  const bool matches = regexec(&pattern, "bicu", 0, nullptr, 0) == 0;
  regfree(&pattern);
  return matches;
}

int main() {
  using namespace polyhead;
  const bool io_refuses = refuses([] { io::open_tensors("no such file.npz"); });
  const bool models_refuse = refuses([] { models::load_tokenizer("no such folder"); });
  const Tensor weights = Tensor::of<float>({1, 1, 1, 1}, {1.0f});
  const std::string page = viewer::render({.title = "one", .texts = {{.text = "a", .queries = {.pieces = {"a"}}, .attentions = weights}}});
  const bool right = io_refuses && models_refuse && page.find("<title>") != std::string::npos;
  std::printf("io, models and viewer %s\n", right ? "work" : "do not work");
  const bool posix = has_the_c_librarys_regcomp();
  std::printf("regcomp %s\n", posix ? "is the C library's" : "is not the C library's");
  return right && posix ? 0 : 1;
}
