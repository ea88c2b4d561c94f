#include "common/local/shared_float_files.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"

namespace cohort {

std::optional<FloatStorage::Piece> SharedFloatFiles::Allocate(
    int64_t elements) {
  constexpr int64_t kAlignment = 64;
  const int64_t bytes = std::max(
      kAlignment,
      (elements * static_cast<int64_t>(sizeof(float)) + kAlignment - 1) /
          kAlignment * kAlignment);
  MutexLock lock(mu_);
  if (files_.empty() || files_.back()->size_bytes() - used_bytes_ < bytes) {
    absl::StatusOr<SharedMemory> file =
        SharedMemory::Create("cohort-weights", std::max(bytes, file_bytes_),
                             SharedMemory::Writer::kCreator);
    if (!file.ok()) return std::nullopt;
    files_.push_back(std::make_shared<SharedMemory>(*std::move(file)));
    used_bytes_ = 0;
  }
  const std::shared_ptr<SharedMemory>& file = files_.back();
  Piece piece{.data = reinterpret_cast<float*>(file->writable_bytes().data() +
                                               used_bytes_),
              .place = {.file = static_cast<int32_t>(files_.size()) - 1,
                        .offset = used_bytes_},
              .owner = file};
  used_bytes_ += bytes;
  return piece;
}

std::vector<std::shared_ptr<const SharedMemory>> SharedFloatFiles::FilesFrom(
    int32_t from) const {
  MutexLock lock(mu_);
  return {
      files_.begin() + std::min<std::ptrdiff_t>(
                           from, static_cast<std::ptrdiff_t>(files_.size())),
      files_.end()};
}

}  // namespace cohort
