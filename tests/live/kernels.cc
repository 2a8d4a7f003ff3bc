// Runs the kernels' GoogleTest tests as WebAssembly under node (tests/live/kernels_test.py). This file has a main function, because GoogleTest's own is in a second library.
#include <gtest/gtest.h>

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
