#include "server/checkpoint/boot_number.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/byte_rope.h"
#include "common/checksum.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr int kBootFileMode = 0600;
constexpr int64_t kBootFileBytesMax = 256;
// The largest number for which first_incarnation fits into an int64.
constexpr int64_t kNumberMax = (int64_t{1} << 31) - 1;
constexpr uint32_t kLeapMax = uint32_t{1} << 16;

std::string PathIn(const std::string& dir) {
  return absl::StrCat(dir, "/boot");
}

std::string LineOf(int64_t number) {
  const std::string text = absl::StrCat("cohort-boot 1 ", number);
  return absl::StrCat(text, " ",
                      ChecksumText(ByteRope::CopyText(text).Checksum()), "\n");
}

// The number in the file; nullopt if the line is not valid. The whole line is
// compared, so any other byte is damage.
std::optional<int64_t> NumberIn(const std::string& line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  int64_t number = 0;
  if (words.size() != 4 || !absl::SimpleAtoi(words[2], &number) ||
      number < BootNumber::kFirst || number > kNumberMax ||
      line != LineOf(number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

absl::StatusOr<BootNumber> TakeBootNumber(FileSystem& files,
                                          const std::string& dir,
                                          std::optional<Incarnation> next,
                                          uint32_t chance) {
  const std::string path = PathIn(dir);
  BootNumber boot;
  // Starts up to number `next` >> 32 have certainly happened.
  if (next.has_value()) {
    boot.number = std::max(boot.number, (next->value() >> 32) + 1);
  }
  const absl::StatusOr<ByteRope> read = files.ReadFile(path, kBootFileBytesMax);
  const bool missing = absl::IsNotFound(read.status());
  if (!read.ok() && !missing && !absl::IsDataLoss(read.status())) {
    return read.status();
  }
  std::optional<int64_t> last;
  if (read.ok()) last = NumberIn(read->ToString());
  if (last.has_value()) {
    boot.number = std::max(boot.number, *last + 1);
  } else if (!missing || next.has_value()) {
    boot.number += 1 + static_cast<int64_t>(chance % kLeapMax);
    boot.problem =
        absl::StrCat(path, missing ? ": it is missing" : ": it is damaged",
                     ", so the number of earlier starts is unknown; starts are "
                     "counted from ",
                     boot.number, " on");
  }
  if (boot.number > kNumberMax) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": got start ", boot.number, ", want at most ",
                     kNumberMax, "; start a new run"));
  }
  COHORT_RETURN_IF_ERROR(
      WriteFileAtomically(files, path, kBootFileMode, LineOf(boot.number)));
  return boot;
}

}  // namespace cohort
