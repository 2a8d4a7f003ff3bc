// Runs code in a forked child process and waits for its end.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace polyhead::test {

inline constexpr auto kChildPatience = std::chrono::seconds(300);

// Returns the exit status of a forked child that runs `body`; -1 if the child did not end within the limit.
template <class Body>
int status_of_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(kChildPatience.count()));
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace polyhead::test
