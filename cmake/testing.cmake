set(POLYHEAD_TEST_FLAGS "" CACHE STRING "Compiler flags for tests only; they follow the flags of the preset")
separate_arguments(test_flags NATIVE_COMMAND "${POLYHEAD_TEST_FLAGS}")
if(POLYHEAD_BUILD_TESTS)
  # GoogleTest's headers take more than half of the time that a test takes to compile.
  set(POLYHEAD_TEST_HEADERS <gmock/gmock.h> <gtest/gtest.h> ${POLYHEAD_STANDARD_HEADERS} <fstream> <random> <thread> <tuple> <variant>)
  polyhead_precompiled(polyhead_test_headers FLAGS ${test_flags} LINK GTest::gmock GTest::gtest
                       HEADERS ${POLYHEAD_TEST_HEADERS})
  if(TARGET nlohmann_json::nlohmann_json)
    polyhead_precompiled(polyhead_json_test_headers FLAGS ${test_flags} LINK GTest::gmock GTest::gtest nlohmann_json::nlohmann_json
                         HEADERS ${POLYHEAD_TEST_HEADERS} <nlohmann/json.hpp>)
  endif()
endif()

# polyhead_test(<name> SOURCES ... LINK ...) makes a GoogleTest program test_<name>; each of its tests is one ctest test. No effect when tests
# are off, so that a folder can list its tests beside its sources.
function(polyhead_test name)
  if(NOT POLYHEAD_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(test_${name} ${arg_SOURCES})
  polyhead_own_code(test_${name})
  target_compile_options(test_${name} PRIVATE ${test_flags})
  if("nlohmann_json::nlohmann_json" IN_LIST arg_LINK)
    polyhead_precompile(test_${name} polyhead_json_test_headers)
  else()
    polyhead_precompile(test_${name} polyhead_test_headers)
  endif()
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(test_${name} PRIVATE ${arg_LINK} GTest::gmock GTest::gtest_main)
  # testing::TempDir() inside the build folder: tests of two builds may run at once.
  gtest_discover_tests(test_${name} DISCOVERY_TIMEOUT 600 PROPERTIES TIMEOUT 3000 ENVIRONMENT "TEST_TMPDIR=${CMAKE_CURRENT_BINARY_DIR}/")
endfunction()

# polyhead_mpi_test(<name> <ranks> <program> <argument>...) runs the program as <ranks> processes on this machine, which may have fewer
# processors. The variables are for Open MPI: it may start as root in a container without ssh, a process that waits lets other processes run, and messages
# are copied through shared memory, because a container may forbid a process to read the memory of another process.
function(polyhead_mpi_test name ranks program)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${program}> ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 PROCESSORS ${ranks} ENVIRONMENT
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_mpi_yield_when_idle=1;OMPI_MCA_plm=isolated;OMPI_MCA_btl_vader_single_copy_mechanism=none")
endfunction()
