#include "common/security/small_file.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(absl::string_view flag,
                                          const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  const int error = errno;
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty() && error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": ", path, " cannot be read: ", std::strerror(error)));
  }
  if (text.size() <= kFileBytesMax) return text;
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": ", path, " is larger than ", kFileBytesMax, " bytes"));
}

}  // namespace cohort
