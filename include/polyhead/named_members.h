// Keeps a value from being taken for a struct of options. GCC reads `.dropout = 0.1` as `.dropout = {0.1}`, which sets the first member of
// Dropout; Clang refuses it. If NamedMembers is the first member, both compilers refuse it, and `.dropout = {.p = 0.1}` means the same everywhere.
#pragma once

#pragma GCC visibility push(default)
namespace polyhead {

// No value converts to it. It takes no memory, or the padding of one member.
struct NamedMembers {
  explicit constexpr NamedMembers() = default;
};

}  // namespace polyhead
#pragma GCC visibility pop
