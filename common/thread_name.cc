#include "common/thread_name.h"

#include <pthread.h>

namespace cohort {

void SetThreadName(absl::string_view name) {
  // The system refuses longer names; it does not cut them.
  constexpr size_t kLengthMax = 15;
  pthread_setname_np(pthread_self(),
                     std::string(name.substr(0, kLengthMax)).c_str());
}

std::string ThreadName() {
  char name[16] = "";
  if (pthread_getname_np(pthread_self(), name, sizeof name) != 0) return "";
  return name;
}

}  // namespace cohort
