#include "common/security/tls_watcher.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace cohort {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(2);
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
                                         [this] { Look(); });
}

TlsContent TlsWatcher::content() const {
  MutexLock lock(mu_);
  return content_;
}

absl::Time TlsWatcher::not_after() const {
  MutexLock lock(mu_);
  return content_.not_after;
}

// A fault that is there only once comes from files that are just being written.
void TlsWatcher::ReportFault(const std::string& fault) {
  if (fault != fault_) {
    fault_ = fault;
    reported_ = false;
    return;
  }
  if (fault.empty() || std::exchange(reported_, true)) return;
  if (on_message_ != nullptr) on_message_(true, fault);
}

void TlsWatcher::Look() {
  const absl::Time now = absl::Now();
  const absl::StatusOr<TlsContent> found = ReadTlsFiles(files_, now);
  const TlsContent before = content();
  std::string fault;
  if (!found.ok()) {
    fault = absl::StrCat(
        "the TLS files cannot be used, and new connections fail until they "
        "are replaced: ",
        found.status().message());
  } else if (found->identity != before.identity) {
    fault =
        absl::StrCat("--tls_cert: got a certificate of another identity, ",
                     found->identity->Uri(), ", want ", before.identity->Uri(),
                     "; put back the files of this identity");
  }
  ReportFault(fault);
  if (before.not_after - now < kShortBefore && !announced_end_ &&
      on_message_ != nullptr) {
    announced_end_ = true;
    on_message_(true, absl::StrCat("--tls_cert: the certificate in use expires "
                                   "at ",
                                   absl::FormatTime(before.not_after),
                                   "; renew the file"));
  }
  if (!fault.empty() || *found == before) return;
  {
    MutexLock lock(mu_);
    content_ = *found;
  }
  announced_end_ = false;
  if (on_message_ != nullptr) {
    on_message_(false, absl::StrCat("new TLS files are in use; the certificate "
                                    "is valid until ",
                                    absl::FormatTime(found->not_after)));
  }
  if (on_change_ != nullptr) on_change_(*found);
}

}  // namespace cohort
