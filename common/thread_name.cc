#include "common/thread_name.h"

#include <pthread.h>

#include <string>

namespace cohort {

void SetThreadName(absl::string_view name) {
  // Longer names are refused by the system, not cut.
  constexpr size_t kLengthMax = 15;
  pthread_setname_np(pthread_self(),
                     std::string(name.substr(0, kLengthMax)).c_str());
}

}  // namespace cohort
