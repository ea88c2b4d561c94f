#include "server/ops/report_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "server/status/status_json.h"
#include "server/status_page/report.h"

namespace cohort {
namespace {

constexpr absl::Duration kReportInterval = absl::Minutes(1);

}  // namespace

ReportWriter::ReportWriter(FileSystem& files, FiguresSource& figures,
                           std::string dir)
    : files_(files), figures_(figures), dir_(std::move(dir)) {
  task_ = std::make_unique<PeriodicTask>("report", kReportInterval, [this] {
    const absl::Status written = Write();
    if (written.ok()) return;
    Log(LogLevel::kWarning,
        absl::StrCat(
            "the report could not be written, next attempt in a minute: ",
            written.message()));
  });
}

absl::Status ReportWriter::Write() {
  MutexLock lock(mu_);
  const SharedFigures figures = figures_.Refreshed();
  COHORT_RETURN_IF_ERROR(WriteFileAtomically(
      files_, absl::StrCat(dir_, "/status.json"), kPublicFileMode,
      StatusJson(*figures, StatusParts::kAll)));
  return WriteFileAtomically(files_, absl::StrCat(dir_, "/report.html"),
                             kPublicFileMode, ReportPage(*figures));
}

}  // namespace cohort
