#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace cohort {

// Event files, as TensorBoard reads them.
//
// A file is a sequence of records:
//
//   uint64  length of data, little endian
//   uint32  masked CRC-32C of the 8 bytes of length
//   bytes   data
//   uint32  masked CRC-32C of data
//
// where masked(crc) = rotate_right(crc, 15) + 0xa282ead8. Each data is a
// protobuf message Event:
//
//   Event      1 double wall_time (seconds since 1970), 2 int64 step, and one
//              of 3 string file_version, 5 Summary summary,
//              7 SessionLog session_log
//   Summary    1 repeated Value { 1 string tag, 2 float simple_value }
//   SessionLog 1 enum status { 1 START }
//
// The first event of a file has the file_version "brain.Event:2". An event
// START at step s makes readers forget what earlier files of the directory say
// of step s and later ones.
//
// Source: TensorFlow, core/lib/io/record_writer.h and
// core/util/event.proto, whose field numbers these are.

// One number at one step.
struct EventScalar {
  std::string tag;
  double value = 0;
};

// CRC-32C (Castagnoli) of `data`, masked as above.
uint32_t MaskedCrc32c(absl::string_view data);

// One new event file in a directory.
// Thread safety: none.
class EventFile {
 public:
  // Creates the directory if needed, and in it a file that readers take for the
  // newest. Readers discard data of earlier files for step `restart_at` and
  // later; pass 0 for a new run.
  // Errors: FailedPrecondition naming the path and why it cannot be written.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(
      const std::string& directory, absl::Time now, int64_t restart_at);

  // Appends one event, and hands it to the system.
  // Errors: Internal naming the path, once. Later calls do nothing, so a
  //   truncated record is the file's last.
  absl::Status Add(int64_t step, absl::Time at,
                   absl::Span<const EventScalar> scalars);

  const std::string& path() const { return path_; }

 private:
  EventFile() = default;
  absl::Status Write(absl::string_view event);

  std::string path_;
  std::ofstream file_;
};

}  // namespace cohort
