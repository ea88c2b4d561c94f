#include "server/core/step/old_pushes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/ledger/push_history.h"

namespace cohort {

absl::StatusOr<bool> IsUnderWay(const RunParts& parts, const Worker& worker,
                                const PushKey& key) {
  // Pushes in progress when the run ends change nothing any more.
  const PushKey whole = key.Whole();
  if (!parts.phase.ended() && worker.work.trains() &&
      worker.work.key() == whole) {
    return true;
  }
  const PushHistory& history = parts.ledger.pushes_of(worker.rank);
  if (history.Find(whole) != nullptr || history.Forgotten(whole)) return false;
  return absl::FailedPreconditionError(absl::StrCat(
      "training assignment ", key.sequence.value(), " attempt ",
      key.attempt.value(), " was not given to rank ", worker.rank.value(),
      ", whose next one is ", worker.work.next_sequence().value(),
      "; push with the sequence and attempt of the assignment"));
}

void AnswerOldPush(RunParts& parts, const StepDriver& driver,
                   const Worker& worker, const PushKey& key, Turn& turn) {
  RunLedger& ledger = parts.ledger;
  effect::SendVerdict answer{
      .rank = worker.rank, .incarnation = worker.incarnation, .key = key};
  PushHistory& history = ledger.pushes_of(worker.rank);
  PushHistory::Entry* entry = history.Find(key.Whole());
  if (entry == nullptr) {
    // Only of this repetition is it known that it was not applied.
    ++ledger.counts.pushes_duplicate;
    answer.verdict = {
        .verdict = Verdict::kDropped,
        .duplicate = true,
        .version = parts.model.version(),
        .reason = absl::StrCat("it was decided long ago and its verdict is no "
                               "longer known: the server keeps the last ",
                               PushHistory::kKept, " verdicts of a rank")};
    turn.answers.push_back(std::move(answer));
    return;
  }
  if (!entry->verdict.has_value()) {
    // Answered once it is decided.
    if (!parts.phase.ended() && driver.IsQueued(worker.rank, key)) {
      entry->awaited = true;
      ++ledger.counts.pushes_duplicate;
      return;
    }
    history.Decide(
        entry->key,
        {.verdict = Verdict::kDropped,
         .version = parts.model.version(),
         .reason = parts.phase.ended() ? absl::StrCat("the run is over: ",
                                                      parts.phase.end_reason())
                                       : "its assignment was withdrawn"});
  }
  answer.verdict = *entry->verdict;
  answer.verdict.duplicate = std::exchange(entry->answered, true);
  if (answer.verdict.duplicate) ++ledger.counts.pushes_duplicate;
  turn.answers.push_back(std::move(answer));
}

}  // namespace cohort
