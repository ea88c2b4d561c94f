#include "common/security/tls_watcher.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace cohort {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);
// A certificate that lives for a day is renewed hours before its end.
constexpr absl::Duration kShortBefore = absl::Hours(1);

}  // namespace

TlsWatcher::TlsWatcher(TlsFiles files, TlsContent content, OnChange on_change,
                       OnMessage on_message)
    : files_(std::move(files)),
      on_change_(std::move(on_change)),
      on_message_(std::move(on_message)),
      content_(std::move(content)) {
  if (!files_.encrypted()) return;
  task_ = std::make_unique<PeriodicTask>("tls-files", kInterval,
                                         [this] { Read(); });
}

TlsContent TlsWatcher::content() const {
  MutexLock lock(mu_);
  return content_;
}

absl::Time TlsWatcher::not_after() const {
  MutexLock lock(mu_);
  return content_.not_after;
}

void TlsWatcher::Report(bool fault, const std::string& text) const {
  if (on_message_ != nullptr) on_message_(fault, text);
}

// A fault that is found only once comes from files that are just being written.
void TlsWatcher::ReportFault(const std::string& fault) {
  if (fault.empty() && !reported_fault_.empty()) {
    reported_fault_.clear();
    Report(false, absl::StrCat("the TLS files can be used again; the "
                               "certificate is valid until ",
                               absl::FormatTime(not_after())));
  } else if (fault == fault_ && fault != reported_fault_) {
    reported_fault_ = fault;
    Report(true, fault);
  }
  fault_ = fault;
}

void TlsWatcher::Read() {
  const absl::Time now = absl::Now();
  const absl::StatusOr<TlsContent> found = ReadTlsFiles(files_, now);
  const TlsContent before = content();
  std::string fault;
  if (!found.ok()) {
    fault = absl::StrCat(
        "the TLS files cannot be used; the last good content stays in use: ",
        found.status().message());
  } else if (found->identity != before.identity) {
    fault =
        absl::StrCat("--tls_cert: got a certificate of another identity, ",
                     found->identity->Uri(), ", want ", before.identity->Uri(),
                     "; the last good content stays in use");
  }
  if (before.not_after - now < kShortBefore && !announced_end_) {
    announced_end_ = true;
    Report(true, absl::StrCat("--tls_cert: the certificate in use expires at ",
                              absl::FormatTime(before.not_after),
                              "; renew the file"));
  }
  if (fault.empty() && *found != before && on_change_ != nullptr) {
    fault = std::string(on_change_(*found).message());
  }
  if (!fault.empty() || *found == before) return ReportFault(fault);
  {
    MutexLock lock(mu_);
    content_ = *found;
  }
  announced_end_ = false;
  fault_.clear();
  reported_fault_.clear();
  Report(false, absl::StrCat("new TLS files are in use; the certificate is "
                             "valid until ",
                             absl::FormatTime(found->not_after)));
}

}  // namespace cohort
