#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/push.h"
#include "server/core/events/effects.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/run_settings.h"
#include "server/core/membership/rank_table.h"
#include "server/core/membership/registration_book.h"
#include "server/core/model/model_store.h"

namespace cohort {

// How a run gets its model: keeps registrations until it has one, asks one
// worker for the initial values, and compares later registrations with it.
class Registrar {
 public:
  // Reads the settings and the model, and registers ranks. All must outlive it.
  Registrar(const RunSettings& settings, const ModelStore& model,
            RankTable& ranks)
      : settings_(settings), model_(model), ranks_(ranks) {}

  bool Contains(Rank rank) const { return book_.Contains(rank); }
  // The worker that was asked for the initial values.
  const std::optional<Rank>& asked() const { return book_.asked(); }

  // Whether a worker may register this model.
  // Errors: InvalidArgument, FailedPrecondition naming the difference.
  absl::Status Check(Rank rank, const ModelLayout& layout,
                     const RunPlan& plan) const;
  // Keeps a registration until the run has a model.
  void Await(const Sender& sender, const ModelLayout& layout,
             const RunPlan& plan);
  // Asks the next worker for its values if it is time to. True if anything
  // changed.
  bool Ask(Turn& turn);
  // The client of `rank` has closed its side of the registration: it is not
  // asked for its values.
  void NoteClosed(Rank rank) { book_.NoteClosed(rank); }
  // The worker that was asked makes no progress: since when, in words.
  std::optional<std::string> OverdueText(Instant now) const;

  // The run has a model: all that wait for it are registered. `from`, who has
  // sent it, is answered by its caller.
  void AdmitAll(Rank from, Turn& turn);
  void Admit(Rank rank);
  // Answers a registration that comes to nothing, so that its worker reads
  // that it has nothing to do. No-op if there is none, or if that
  // worker was asked for its values: it is answered once they are in.
  void Dismiss(Rank rank, Turn& turn);
  // The registration of a rank that is gone. If it was asked, the next one is.
  void Remove(Rank rank) { book_.Remove(rank); }

  // The answer to a registration of this layout before the run has a model.
  RegisterAnswer AnswerOf(const ModelLayout& layout, const RunPlan& plan) const;
  RegisterAnswer AnswerOfModel() const;

 private:
  // No worker that waits can send its values.
  void RefuseAll(Turn& turn);

  const RunSettings& settings_;
  const ModelStore& model_;
  RankTable& ranks_;
  RegistrationBook book_;
};

}  // namespace cohort
