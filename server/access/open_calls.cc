#include "server/access/open_calls.h"

#include "absl/strings/str_cat.h"

namespace cohort {

absl::Status OpenCalls::Check(const std::string& client) const {
  MutexLock lock(mu_);
  const auto found = calls_.find(client);
  if (found == calls_.end() || found->second < each_max_) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(client, " has ", found->second, " calls open, want at most ",
                   each_max_, "; try again once some have ended"));
}

void OpenCalls::Opened(const std::string& client) {
  MutexLock lock(mu_);
  ++calls_[client];
}

void OpenCalls::Closed(const std::string& client) {
  MutexLock lock(mu_);
  const auto found = calls_.find(client);
  if (found == calls_.end()) return;
  if (--found->second <= 0) calls_.erase(found);
}

}  // namespace cohort
