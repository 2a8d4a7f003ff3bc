// Runs the kernels' GoogleTest tests as WebAssembly under node (tests/live/kernels_test.py). GoogleTest's own main function would be a second library to build.
#include <gtest/gtest.h>

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
