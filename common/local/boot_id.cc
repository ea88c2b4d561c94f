#include "common/local/boot_id.h"

#include <fstream>

namespace cohort {

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace cohort
