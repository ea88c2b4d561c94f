#include "server/core/membership/registration_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// The error with what it is about and what to do; OK stays OK.
absl::Status Explained(const absl::Status& status, absl::string_view what,
                       absl::string_view hint) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(what, ": ", status.message(), "; ", hint));
}

}  // namespace

absl::Status CheckSameModel(const ModelLayout& layout, const RunPlan& plan,
                            const ModelLayout& wanted_layout,
                            const RunPlan& wanted_plan,
                            const std::string& whose) {
  COHORT_RETURN_IF_ERROR(
      Explained(CheckSameLayout(layout, wanted_layout),
                absl::StrCat("the model differs from ", whose),
                "start all workers with the same program and flags "
                "(cohort-worker: --model, --width, --dataset and --classes), "
                "or start another server for its model"));
  return Explained(CheckSamePlan(plan, wanted_plan),
                   absl::StrCat("the data or the loss differs from ", whose),
                   "give all workers the same data and optimizer "
                   "(cohort-worker: data files, and flags such as --image_size "
                   "and --augment)");
}

void RegistrationBook::Add(Rank rank, Entry entry) {
  Remove(rank);
  entries_.emplace(rank, std::move(entry));
}

void RegistrationBook::Remove(Rank rank) {
  entries_.erase(rank);
  if (asked_ == rank) asked_.reset();
  // The rank that comes next must not be asked because it comes first.
  if (entries_.empty()) complete_ = false;
}

void RegistrationBook::NoteClosed(Rank rank) {
  const auto at = entries_.find(rank);
  if (at == entries_.end()) return;
  at->second.closed = true;
  if (asked_ == rank) Remove(rank);
}

bool RegistrationBook::Due(int32_t needed) const {
  if (asked_.has_value() || entries_.empty()) return false;
  return complete_ || static_cast<int32_t>(entries_.size()) >= needed;
}

std::map<Rank, absl::Status> RegistrationBook::TakeDifferent() {
  std::map<Rank, absl::Status> different;
  const Entries::value_type* ruling = Ruling();
  if (ruling == nullptr) return different;
  const std::string whose = absl::StrCat(
      "that of worker ", ruling->first.value(), ", which defines the run");
  for (const auto& [rank, entry] : entries_) {
    absl::Status same =
        CheckSameModel(entry.layout, entry.plan, ruling->second.layout,
                       ruling->second.plan, whose);
    if (!same.ok()) different.emplace(rank, std::move(same));
  }
  for (const auto& [rank, status] : different) entries_.erase(rank);
  return different;
}

std::optional<Rank> RegistrationBook::AskLowest() {
  COHORT_CHECK(!entries_.empty() && !asked_.has_value(),
               "no registration is left to request values from");
  complete_ = true;
  const auto at =
      std::find_if(entries_.begin(), entries_.end(),
                   [](const auto& entry) { return !entry.second.closed; });
  if (at != entries_.end()) asked_ = at->first;
  return asked_;
}

const RegistrationBook::Entries::value_type* RegistrationBook::Ruling() const {
  if (entries_.empty()) return nullptr;
  const auto at =
      asked_.has_value() ? entries_.find(*asked_) : entries_.begin();
  return &*at;
}

}  // namespace cohort
