// Prevents a number from being read as a whole struct of options. GCC reads `.dropout = 0.1` as `.dropout = {0.1}`, which sets the first member of
// Dropout; Clang refuses `.dropout = 0.1`. If NamedMembers is the first member of Dropout, GCC refuses that line too. `.dropout = {.p = 0.1}` compiles with both.
#pragma once

#pragma GCC visibility push(default)
namespace polyhead {

// No value converts to NamedMembers. A member of this type needs no memory in most structs, and at most the size of one aligned member.
struct NamedMembers {
  explicit constexpr NamedMembers() = default;
};

}  // namespace polyhead
#pragma GCC visibility pop
