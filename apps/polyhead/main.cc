#include <algorithm>

#include "program.h"

int main(int argc, char** argv) { return polyhead::app::run_program({argv + std::min(argc, 1), argv + argc}); }
