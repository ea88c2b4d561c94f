#include "common/check.h"

#include <cstdio>
#include <cstdlib>

namespace cohort {

void CheckFailed(const char* file, int line, absl::string_view condition,
                 absl::string_view message) {
  std::fprintf(stderr, "%s:%d: invariant broken: %.*s: %.*s\n", file, line,
               static_cast<int>(condition.size()), condition.data(),
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace cohort
