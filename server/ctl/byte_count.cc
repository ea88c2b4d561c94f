#include "server/ctl/byte_count.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace cohort {

std::string ByteCountText(int64_t bytes) {
  constexpr int64_t kStep = 1024;
  int64_t unit = 1;
  const char* const names[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  size_t name = 0;
  while (bytes / unit >= kStep && name + 1 < std::size(names)) {
    unit *= kStep;
    ++name;
  }
  if (name == 0) return absl::StrCat(bytes, names[name]);
  return absl::StrCat(bytes / unit, ".", bytes % unit * 10 / unit, names[name]);
}

}  // namespace cohort
