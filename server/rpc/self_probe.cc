#include "server/rpc/self_probe.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/listen_address.h"
#include "common/wire/channel.h"

namespace cohort {
namespace {

constexpr absl::Duration kDialInterval = absl::Seconds(2);
constexpr absl::Duration kDialTimeout = absl::Seconds(3);

std::string TargetOf(const std::string& address) {
  const std::string url = UrlHere(address);
  return std::string(absl::StripSuffix(absl::StripPrefix(url, "http://"), "/"));
}

}  // namespace

SelfProbe::SelfProbe(const std::string& address, SharedSecurity security)
    : target_(TargetOf(address)),
      security_(std::move(security)),
      task_(std::make_unique<PeriodicTask>("self-probe", kDialInterval,
                                           [this] { Dial(); })) {}

void SelfProbe::Stop() { task_.reset(); }

absl::Status SelfProbe::status() const {
  MutexLock lock(mu_);
  return status_;
}

void SelfProbe::Dial() {
  const std::shared_ptr<grpc::Channel> channel =
      MakeChannel(target_, ChannelPurpose::kControl, security_);
  const bool connected =
      channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kDialTimeout));
  absl::Status status;
  if (!connected) {
    status = absl::UnavailableError(absl::StrCat(
        "no connection to this server's own port ", target_, " within ",
        absl::FormatDuration(kDialTimeout), "; workers cannot connect either"));
  }
  MutexLock lock(mu_);
  status_ = std::move(status);
}

}  // namespace cohort
