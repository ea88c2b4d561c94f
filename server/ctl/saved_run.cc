#include "server/ctl/saved_run.h"

#include <google/protobuf/util/json_util.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/byte_rope.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Curves have a bounded number of points; this is far above their size.
constexpr int64_t kBytesMax = int64_t{64} << 20;

}  // namespace

const std::string& SavedRun::name() const {
  return status.run_name().empty() ? status.run_id() : status.run_name();
}

std::string SavedRun::state() const {
  if (!status.ended()) return "unfinished";
  return status.samples() >= status.samples_total() ? "done" : "stopped";
}

double SavedRun::seconds() const {
  // The time of the last training point continues over restarts.
  const auto& train = status.curves().train();
  return train.empty() ? 0 : train[train.size() - 1].elapsed_seconds();
}

double SavedRun::images_per_second() const {
  return seconds() > 0 ? static_cast<double>(status.samples()) / seconds() : 0;
}

std::optional<double> SavedRun::test() const {
  if (status.has_test_miou()) return status.test_miou();
  if (status.has_test_accuracy()) return status.test_accuracy();
  return std::nullopt;
}

absl::StatusOr<SavedRun> ReadSavedRun(FileSystem& files,
                                      const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/", kSavedStatus);
  COHORT_ASSIGN_OR_RETURN(const ByteRope bytes,
                          files.ReadFile(path, kBytesMax));
  const auto refuse = [&path](absl::string_view why) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", why, ", want the file that a server writes"));
  };
  SavedRun run{.dir = dir};
  // Another release may have written it.
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      bytes.ToString(), &run.status, options);
  if (!parsed.ok()) {
    const auto why = parsed.message();
    return refuse(absl::string_view(why.data(), why.size()));
  }
  if (run.status.run_id().empty()) return refuse("names no run");
  return run;
}

}  // namespace cohort
