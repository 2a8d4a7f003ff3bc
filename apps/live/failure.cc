// Exceptions in a module that is compiled without them (-fignore-exceptions): a throw hands its message to who called the module and does not come back, so that nothing of the
// module may be used again but by a new instance. Everything that the library and its dependencies throw derives from std::exception, at its start.
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
