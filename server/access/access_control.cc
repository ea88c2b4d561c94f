#include "server/access/access_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/access/roles.h"

namespace cohort {
namespace {

constexpr absl::Duration kReportInterval = absl::Minutes(1);
// Clients and targets that one report distinguishes.
constexpr size_t kRecentMax = 256;
constexpr size_t kTextLengthMax = 300;

std::string Shortened(absl::string_view text) {
  const absl::string_view part = text.substr(0, kTextLengthMax);
  return std::string(part.data(), part.size());
}

}  // namespace

AccessControl::AccessControl(Identity own, const Tokens* tokens,
                             OnDenied on_denied)
    : authenticator_(std::move(own), tokens),
      on_denied_(std::move(on_denied)),
      reporter_(std::make_unique<PeriodicTask>("denied-calls", kReportInterval,
                                               [this] { Report(); })) {}

AccessControl::~AccessControl() {
  reporter_.reset();
  Report();
}

absl::StatusOr<Caller> AccessControl::CheckCall(absl::string_view path,
                                                const Presented& presented) {
  const MethodRights* rights = RightsOf(path);
  if (rights == nullptr) return Check(path, presented, {});
  if (rights->roles.empty()) return Caller{};
  absl::StatusOr<Caller> caller = Check(path, presented, rights->roles);
  if (!caller.ok() || !rights->server.has_value() ||
      presented.identity->number == rights->server) {
    return caller;
  }
  Note(caller->name, path, Refusal::kRole);
  return absl::PermissionDeniedError(
      absl::StrCat(caller->name, " may not call ", path,
                   ", want the certificate of server/", *rights->server));
}

absl::StatusOr<Caller> AccessControl::CheckPage(absl::string_view page,
                                                const Presented& presented) {
  return Check(page, presented, kPageReaders);
}

absl::StatusOr<Caller> AccessControl::Check(absl::string_view target,
                                            const Presented& presented,
                                            absl::Span<const PeerRole> roles) {
  Authenticator::Admission admission =
      authenticator_.Admit(target, presented, roles);
  if (!admission.caller.ok()) {
    Note(admission.presented, target, admission.refusal);
  }
  return std::move(admission.caller);
}

void AccessControl::NoteRank(const std::string& client) {
  Note(client, "a message in the name of another rank", Refusal::kRank);
}

int64_t AccessControl::denied(Refusal refusal) const {
  return denied_[static_cast<size_t>(refusal)].load(std::memory_order_relaxed);
}

void AccessControl::Note(const std::string& client, absl::string_view target,
                         Refusal refusal) {
  denied_[static_cast<size_t>(refusal)].fetch_add(1, std::memory_order_relaxed);
  const std::pair<std::string, std::string> key(
      absl::StrCat(client, " ", RefusalName(refusal)), Shortened(target));
  bool first = false;
  {
    MutexLock lock(mu_);
    // The metric still counts the calls that are not distinguished.
    if (recent_.size() >= kRecentMax && !recent_.contains(key)) return;
    // The first of a while is reported at once.
    first = !std::exchange(reporting_, true);
    DeniedCalls& denied = recent_[key];
    denied.client = client;
    denied.target = key.second;
    denied.refusal = refusal;
    ++denied.count;
  }
  if (first) reporter_->Wake();
}

void AccessControl::Report() {
  std::vector<DeniedCalls> denied;
  {
    MutexLock lock(mu_);
    for (auto& [key, calls] : recent_) denied.push_back(std::move(calls));
    recent_.clear();
    reporting_ = !denied.empty();
  }
  if (!denied.empty() && on_denied_ != nullptr) on_denied_(denied);
}

}  // namespace cohort
