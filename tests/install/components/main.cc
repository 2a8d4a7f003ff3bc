// Every component links: each call reaches a library that the archive needs inside.
#include <polyhead/io.h>
#include <polyhead/models.h>
#include <polyhead/viewer.h>

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

int main() {
  using namespace polyhead;
  const bool io_refuses = refuses([] { io::open_tensors("no such file.npz"); });
  const bool models_refuse = refuses([] { models::load_tokenizer("no such folder"); });
  const Tensor weights = Tensor::of<float>({1, 1, 1, 1}, {1.0f});
  const std::string page = viewer::render({.title = "one", .texts = {{.text = "a", .queries = {.pieces = {"a"}}, .attentions = weights}}});
  const bool right = io_refuses && models_refuse && page.find("<title>") != std::string::npos;
  std::printf("io, models and viewer %s\n", right ? "work" : "do not work");
  return right ? 0 : 1;
}
