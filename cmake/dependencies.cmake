# Finds all dependencies other than the standard library. Nothing is downloaded at configure time.
option(POLYHEAD_NPZ "Read and write npz files, through libzip" ON)
option(POLYHEAD_IMAGES "Read PNG and JPEG images, through libpng and libjpeg-turbo" ON)
option(POLYHEAD_PREFER_ARCHIVES "Link static instead of shared third-party libraries if they are installed, so that the program can be moved to another machine" OFF)

set(missing)
macro(polyhead_need found library package)
  if(NOT ${found})
    list(APPEND missing "${library} (Debian and Ubuntu: ${package})")
    list(REMOVE_DUPLICATES missing)
  endif()
endmacro()

# Checks the C++20 library: a compiler that accepts the flag but lacks parts of the library would fail in the middle of the build with unclear errors.
function(polyhead_check_cxx20)
  include(CheckCXXSourceCompiles)
  set(CMAKE_CXX_STANDARD 20)
  check_cxx_source_compiles("
    #include <bit>
    #include <concepts>
    #include <span>
    #include <version>
    #if __cplusplus < 202002L
    #error
    #endif
    struct Options { int threads = 1; };
    template <std::integral T> constexpr T twice(T x) { return std::has_single_bit(static_cast<unsigned>(x)) ? 2 * x : x + x; }
    int main() { const int numbers[] = {1, 2}; return twice(Options{.threads = std::span(numbers)[0]}.threads) - 2; }" POLYHEAD_CXX20)
endfunction()
polyhead_check_cxx20()
if(NOT POLYHEAD_CXX20)
  unset(POLYHEAD_CXX20 CACHE)  # so that the next run checks again: the library may be installed by then
  message(FATAL_ERROR "polyhead is built from source, which takes a C++20 compiler with its library (GCC 11, Clang 14 or newer): ${CMAKE_CXX_COMPILER}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, cannot compile a small C++20 program.\n${polyhead_install_compiler}\n"
          "To use another compiler, empty the build folder and set CXX: CXX=g++-12 cmake ...")
endif()

if(POLYHEAD_THREADS)
  find_package(Threads REQUIRED)
else()
  add_compile_definitions(POLYHEAD_NO_THREADS)  # src/core/threads.h
endif()

# polyhead_need_module(<prefix> <pkg-config module> <package>) finds a library by pkg-config. The C library is linked before it: Oniguruma defines functions
# regcomp and regexec with other rules than POSIX, and would otherwise replace the C library's in the whole program. -lc is given as an option, because CMake
# reorders libraries.
macro(polyhead_need_module prefix module package)
  find_package(PkgConfig QUIET)
  polyhead_need(PkgConfig_FOUND pkg-config pkg-config)
  if(PkgConfig_FOUND)
    pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${module})
    if(${prefix}_FOUND)
      set_property(TARGET PkgConfig::${prefix} PROPERTY INTERFACE_LINK_OPTIONS "$<$<PLATFORM_ID:Linux>:LINKER:--push-state,--no-as-needed,-lc,--pop-state>")
    endif()
  endif()
  polyhead_need(${prefix}_FOUND ${prefix} ${package})
endmacro()

set(suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
if(POLYHEAD_PREFER_ARCHIVES)
  list(PREPEND CMAKE_FIND_LIBRARY_SUFFIXES .a)
endif()
if(POLYHEAD_BUILD_IO OR POLYHEAD_BUILD_VIEWER)
  find_package(nlohmann_json 3.10 QUIET)                           # JSON: safetensors headers, model configurations, pages
  polyhead_need(nlohmann_json_FOUND "nlohmann_json 3.10 or newer" nlohmann-json3-dev)
endif()
if(POLYHEAD_BUILD_IO AND POLYHEAD_NPZ)
  polyhead_need_module(libzip libzip libzip-dev)                   # zip containers: npz
endif()
if(POLYHEAD_BUILD_IO AND POLYHEAD_IMAGES)
  polyhead_need_module(libpng libpng libpng-dev)                   # images
  polyhead_need_module(libjpeg libjpeg libjpeg-dev)
endif()
if(POLYHEAD_BUILD_MODELS OR POLYHEAD_BUILD_FUZZ)
  polyhead_need_module(utf8proc libutf8proc libutf8proc-dev)       # Unicode tables: the tokenizer
  polyhead_need_module(oniguruma oniguruma libonig-dev)            # patterns of tokenizer.json
endif()
set(CMAKE_FIND_LIBRARY_SUFFIXES ${suffixes})
if(POLYHEAD_BUILD_MPI)
  # Use the C++ component although only the C interface is needed: a project that links polyhead::mpi need not enable the language C.
  find_package(MPI QUIET COMPONENTS CXX)
  polyhead_need(MPI_CXX_FOUND "an MPI, as Open MPI or MPICH" "libopenmpi-dev openmpi-bin")
endif()
if(POLYHEAD_BUILD_ONNXRUNTIME)
  # Only headers: ONNX Runtime hands its functions to the library. Debian has the headers in version 13 and newer (docs/decisions/0027-onnxruntime.md).
  find_path(POLYHEAD_ONNXRUNTIME_HEADERS onnxruntime_cxx_api.h PATH_SUFFIXES onnxruntime onnxruntime/core/session DOC "Folder of onnxruntime_cxx_api.h")
  polyhead_need(POLYHEAD_ONNXRUNTIME_HEADERS "the headers of ONNX Runtime 1.21 or newer" libonnxruntime-dev)
endif()
if(POLYHEAD_BUILD_PYTHON)
  find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
  polyhead_need(Python_FOUND "the headers of CPython 3.10 or newer" python3-dev)
endif()
if(POLYHEAD_BUILD_APP OR (POLYHEAD_BUILD_TESTS AND POLYHEAD_BUILD_IO))
  find_package(CLI11 2.1 QUIET)
  polyhead_need(CLI11_FOUND "CLI11 2.1 or newer" libcli11-dev)
endif()
if(POLYHEAD_BUILD_TESTS)
  find_package(GTest QUIET)
  polyhead_need(GTest_FOUND GoogleTest "libgtest-dev libgmock-dev")
endif()
if(POLYHEAD_BUILD_BENCH)
  find_package(benchmark QUIET)
  polyhead_need(benchmark_FOUND google-benchmark libbenchmark-dev)
endif()
if(missing)
  list(JOIN missing "\n  " missing)
  message(FATAL_ERROR "polyhead needs these, which were not found:\n  ${missing}\n"
          "The core needs none of them: `cmake --preset core` builds it alone, and the options POLYHEAD_BUILD_* leave out one part each.")
endif()

if(POLYHEAD_BUILD_TESTS)
  include(GoogleTest)
  enable_testing()
endif()
