#include "common/local/release_counts.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

ReleaseCounts::ReleaseCounts(SharedMemory memory, int32_t count)
    : memory_(std::move(memory)), count_(count) {
  COHORT_CHECK(memory_.size_bytes() >= SizeBytes(count),
               absl::StrCat("got ", memory_.size_bytes(), " bytes, want ",
                            SizeBytes(count)));
}

uint32_t* ReleaseCounts::Word(int32_t index) const {
  COHORT_CHECK(index >= 0 && index < count_,
               absl::StrCat("got ", index, ", want below ", count_));
  auto* bytes = const_cast<std::byte*>(memory_.bytes().data());
  return reinterpret_cast<uint32_t*>(bytes) + index;
}

void ReleaseCounts::Raise(int32_t index) {
  uint32_t* const word = Word(index);
  std::atomic_ref<uint32_t>(*word).fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint32_t ReleaseCounts::Get(int32_t index) const {
  // Reads only, so that the page need not be writable.
  return std::atomic_ref<uint32_t>(*Word(index))
      .load(std::memory_order_acquire);
}

void ReleaseCounts::WaitWhile(int32_t index, uint32_t seen,
                              absl::Duration timeout) const {
  const timespec limit = absl::ToTimespec(timeout);
  // Returns at once if the word differs from `seen` by then: the kernel
  // compares it before it waits.
  syscall(SYS_futex, Word(index), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

}  // namespace cohort
