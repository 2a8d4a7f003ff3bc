// Exceptions in a module that is compiled without them (-fignore-exceptions). A throw passes its message to the caller of the module and does not return, so
// the caller may not use this instance of the module again. The message is read through a pointer to std::exception: the library and its dependencies throw only
// classes that have this base at their start.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <typeinfo>

extern "C" {

[[clang::import_module("polyhead"), clang::import_name("failed")]] void live_failed(const char* message, std::size_t bytes);

void* __cxa_allocate_exception(std::size_t bytes) noexcept { return std::malloc(bytes); }
void __cxa_free_exception(void* memory) noexcept { std::free(memory); }

[[noreturn]] void __cxa_throw(void* thrown, std::type_info*, void (*)(void*)) {
  const char* const message = static_cast<std::exception*>(thrown)->what();
  live_failed(message, std::strlen(message));
  __builtin_trap();
}

}  // extern "C"
