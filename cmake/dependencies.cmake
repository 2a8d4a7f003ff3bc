# Everything that is not the standard library, found in one place. Nothing is downloaded at configure time.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)                          # JSON: safetensors headers, model configurations, results
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)   # Unicode tables: the tokenizer
pkg_check_modules(libzip REQUIRED IMPORTED_TARGET libzip)          # zip containers: npz
if(POLYHEAD_BUILD_APP OR POLYHEAD_BUILD_TESTS)
  find_package(CLI11 2.1 REQUIRED)
endif()
if(POLYHEAD_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  enable_testing()
endif()
if(POLYHEAD_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()
