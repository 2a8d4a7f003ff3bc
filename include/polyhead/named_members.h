// Prevents the compiler from reading a number as a whole struct of options. GCC reads `.dropout = 0.1` as `.dropout = {0.1}`, which sets the first member of
// Dropout; Clang refuses `.dropout = 0.1`. With NamedMembers as the first member of Dropout, GCC refuses it too. `.dropout = {.p = 0.1}` compiles with both
// compilers.
#pragma once

#pragma GCC visibility push(default)
namespace polyhead {

// The first member of a struct of options. No value converts to NamedMembers. In most structs it needs no memory; at most, it needs the size of one aligned
// member.
struct NamedMembers {
  explicit constexpr NamedMembers() = default;
};

}  // namespace polyhead
#pragma GCC visibility pop
