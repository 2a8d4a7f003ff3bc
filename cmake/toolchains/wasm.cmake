# Cross build for WebAssembly with Clang 19 and its libc++ for wasm32 (docs/decisions/0023-webassembly.md has the packages). There are no threads and no
# files. There are no exceptions either: a throw passes its message to the page and ends the call (apps/live/failure.cc).
set(CMAKE_SYSTEM_NAME WASI)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
set(POLYHEAD_WASM_CLANG 19 CACHE STRING "Version of the Clang that compiles to WebAssembly")
set(CMAKE_CXX_COMPILER clang++-${POLYHEAD_WASM_CLANG})
set(CMAKE_CXX_COMPILER_TARGET wasm32-wasi)
set(CMAKE_CXX_FLAGS_INIT "-msimd128 -fignore-exceptions -ffunction-sections -fdata-sections -D_WASI_EMULATED_MMAN -D_WASI_EMULATED_SIGNAL -D_WASI_EMULATED_PROCESS_CLOCKS -D_WASI_EMULATED_GETPID")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-lwasi-emulated-mman -lwasi-emulated-process-clocks -lwasi-emulated-getpid -Wl,--gc-sections")
set(CMAKE_EXECUTABLE_SUFFIX .wasm)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)  # a test program would not link without the functions for throwing in apps/live/failure.cc
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# Libraries of the building machine do not fit wasm32; header-only libraries are looked for by name (apps/live/CMakeLists.txt).
set(CMAKE_FIND_ROOT_PATH /usr/lib/wasm32-wasi)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
