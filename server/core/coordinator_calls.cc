// What becomes of a step whose members disagree about their batch-norm calls.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/coordinator.h"

namespace cohort {

bool Coordinator::AllClosedOrWaiting() const {
  // A quick test first: it is almost always false. A member may be counted
  // twice, so it does not replace the loop.
  const size_t members = round_->pushes.size();
  if (round_->closed_count + round_->rendezvous.waiting_count() < members) {
    return false;
  }
  return std::all_of(
      round_->pushes.begin(), round_->pushes.end(), [this](const auto& member) {
        return member.second.closed() || round_->rendezvous.Waits(member.first);
      });
}

MemberCalls Coordinator::CallsOf(Rank rank) const {
  const Push& push = round_->pushes.at(rank);
  MemberCalls calls{.rank = rank, .group = round_->rendezvous.GroupOf(rank)};
  if (push.closed()) {
    calls.closed = &push.closing().batch_norm_calls;
    calls.lacks = round_->rendezvous.LackedBy(rank);
  } else {
    calls.waits = round_->rendezvous.WaitsOf(rank);
  }
  return calls;
}

std::optional<CallDissent> Coordinator::ClosedDissent() const {
  const bool all_closed = round_->closed_count == round_->pushes.size();
  const bool open = round_->rendezvous.open_count() > 0;
  if (all_closed && !open) {
    const std::vector<int32_t>& wanted =
        round_->pushes.begin()->second.closing().batch_norm_calls;
    const bool equal =
        std::all_of(round_->pushes.begin(), round_->pushes.end(),
                    [&wanted](const auto& member) {
                      return member.second.closing().batch_norm_calls == wanted;
                    });
    if (equal) return MiscountedDissent(wanted);
  }
  if (round_->closed_count == 0) return std::nullopt;
  std::vector<MemberCalls> members;
  for (const auto& [rank, push] : round_->pushes) {
    members.push_back(CallsOf(rank));
  }
  const std::vector<BatchNormSpec>& layers = model_.batch_norms();
  std::optional<CallDissent> dissent =
      FindCallDissent(members, layers, round_->step, /*crossed=*/false);
  if (dissent.has_value() || !all_closed) return dissent;
  // They agree, but an earlier incarnation of a rank made a call that its
  // replacement did not make. That call would be folded without a member.
  for (const MemberCalls& member : members) {
    if (member.lacks.empty()) continue;
    const CallPlace& place = member.lacks.front();
    return CallDissent{
        .text = absl::StrCat(
            layers[static_cast<size_t>(place.layer)].name, ": call ",
            place.call, " of step ", round_->step.value(), " lacks rank ",
            member.rank.value(), ", which has closed its push without it")};
  }
  return std::nullopt;
}

std::optional<CallDissent> Coordinator::MiscountedDissent(
    const std::vector<int32_t>& counts) const {
  if (!settings_.global()) return std::nullopt;
  const auto miscounted = round_->rendezvous.FindMiscounted(counts);
  if (!miscounted.has_value()) return std::nullopt;
  const auto& [place, at_fault] = *miscounted;
  const auto layer = static_cast<size_t>(place.layer);
  CallDissent dissent{
      .text = absl::StrCat(
          model_.batch_norms()[layer].name, ": rank ", at_fault.front().value(),
          " counts ", counts[layer], " calls in step ", round_->step.value(),
          place.call < counts[layer] ? ", but made no rendezvous of call "
                                     : ", but made a rendezvous of call ",
          place.call)};
  // Of members that met, or did not, together none can be blamed alone.
  if (at_fault.size() == 1) dissent.alone = at_fault.front();
  return dissent;
}

bool Coordinator::SettleCalls(Instant now, Effects& out) {
  if (round_->calls_agree || round_->pushes.empty() || !AllClosedOrWaiting()) {
    return true;
  }
  const std::optional<CallDissent> dissent = ClosedDissent();
  if (dissent.has_value()) {
    EndDissent(*dissent, now, out);
    return false;
  }
  // A closed push does not change any more.
  round_->calls_agree = round_->closed_count == round_->pushes.size();
  if (round_->calls_agree) ClaimClosed(now, out);
  return true;
}

void Coordinator::ClaimClosed(Instant now, Effects& out) {
  std::vector<Rank> candidates;
  for (const auto& [rank, push] : round_->pushes) candidates.push_back(rank);
  for (Rank rank : candidates) {
    if (round_->fixed) return;
    Claim(rank, now, out);
  }
}

std::optional<CallDissent> Coordinator::CrossedDissent(Instant now) const {
  if (!round_.has_value()) return std::nullopt;
  const auto stuck = [&](Rank rank) {
    return round_->rendezvous.Waits(rank) &&
           now - ranks_[rank].last_progress > settings_.options().step_deadline;
  };
  // Another group may have finished the step long since.
  const std::vector<std::vector<Rank>> groups = round_->rendezvous.Groups();
  const auto crossed =
      std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
        return std::all_of(group.begin(), group.end(), stuck);
      });
  if (crossed == groups.end()) return std::nullopt;
  std::vector<MemberCalls> members;
  for (Rank rank : *crossed) members.push_back(CallsOf(rank));
  return FindCallDissent(members, model_.batch_norms(), round_->step,
                         /*crossed=*/true);
}

void Coordinator::EndDissent(const CallDissent& dissent, Instant now,
                             Effects& out) {
  const bool fenced_before =
      dissent.alone.has_value() && fenced_.contains(*dissent.alone);
  if (fenced_before || dissent_step_ == round_->step) {
    End(RunOutcome::kModelMismatch,
        absl::StrCat(
            dissent.text, "; ",
            fenced_before
                ? absl::StrCat("rank ", dissent.alone->value(),
                               " was replaced for such a difference before")
                : absl::StrCat("step ", round_->step.value(),
                               " was repeated for such a difference before"),
            ": start all workers with one program and one model"),
        out);
    return;
  }
  dissent_step_ = round_->step;
  if (dissent.alone.has_value()) {
    fenced_.insert(*dissent.alone);
    Fence(*dissent.alone,
          absl::StrCat(dissent.text, "; the other members agree"), now, out);
  } else {
    AbortAttempt(
        absl::StrCat(dissent.text, "; the step is repeated, this once"), now,
        out);
  }
  Advance(now, out);
}

void Coordinator::Fence(Rank rank, const std::string& reason, Instant now,
                        Effects& out) {
  const Version step = round_->step;
  const Attempt attempt = round_->attempt;
  const Worker& worker = ranks_[rank];
  if (worker.state == Worker::State::kLive) {
    out.push_back(effect::EndSession{.session = worker.session,
                                     .status = absl::AbortedError(reason)});
  }
  if (worker.state != Worker::State::kVacant) {
    Vacate(rank, VacancyReason::kMismatch, reason, now, out);
  }
  // The loss alone may leave the attempt as it is: a complete push counts
  // without its sender, and under `wait` its contributions stay.
  if (ledger_.ended() || !IsMember(rank) || round_->step != step ||
      round_->attempt != attempt) {
    return;
  }
  AbortAttempt(reason, now, out);
}

}  // namespace cohort
