#include "server/core/run_state.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/ledger/data_cursor.h"
#include "server/core/optimizer/slots.h"
#include "server/core/settings/settings.h"

namespace cohort {

DataCursor CursorFor(const RunPlan& plan, const CoordinatorOptions& options) {
  return plan.own_data ? DataCursor::WithoutRanges()
                       : DataCursor(plan.train_samples, options.epochs);
}

RunState CaptureState(const Run& run) {
  RunState state{
      .model = run.model.model(),
      .snapshot = SnapshotOf(run.model.current()),
      .samples = run.ledger.samples,
      .local_steps = run.ledger.local_steps,
      .data_epoch = run.ledger.cursor.epoch(),
      .cursor = run.ledger.cursor.position(),
      .policy_epoch = run.settings.policy_epoch(),
      .settings = SettingsOf(run.settings.options()),
      .slots = SlotsOf(run.settings.options().optimizer, run.settings.policy()),
      .epochs = run.settings.options().epochs,
      .max_steps = run.settings.options().max_steps,
      .policy_history = run.settings.history(),
      .next_sequences = run.ranks.next_sequences(),
      .next_incarnation = run.roster.next_incarnation(),
      .call_order = run.ledger.call_order.state(),
      .score = run.pinned.score()};
  for (const Worker& worker : run.ranks.all()) {
    state.batch_sizes.push_back(worker.batch_size);
    if (!worker.ever_registered) {
      state.never_registered.push_back(worker.rank);
    } else if (worker.state == Worker::State::kVacant) {
      state.lost.push_back(worker.rank);
    }
  }
  const auto reissue = [&state](const DataCursor::Piece& piece) {
    // The data is the workers' own.
    if (piece.range.empty()) return;
    state.reissue.push_back(piece);
  };
  for (const DataCursor::Piece& piece : run.ledger.cursor.reissue()) {
    reissue(piece);
  }
  for (const DataCursor::Piece& piece : run.driver->Undecided()) reissue(piece);
  return state;
}

bool RestoreState(const RunState& restored, RunParts& run) {
  RunSettings& settings = run.settings;
  run.model.Restore(restored.model, *restored.snapshot);
  run.model.AdoptOptimizer(settings.options(), settings.policy());
  const std::string adopted = run.model.AdoptStatistics(
      settings.options().optimizer, settings.policy());
  if (settings.history().size() > restored.policy_history.size()) {
    settings.AppendToHistory(adopted);
  }
  run.ledger.samples += restored.samples;
  run.ledger.local_steps += restored.local_steps;
  run.ledger.call_order = CallOrder(restored.call_order);
  run.pinned.RestoreScore(restored.score);
  DataCursor& cursor = run.ledger.cursor;
  cursor = CursorFor(restored.model->plan, settings.options());
  cursor.Restore(restored.data_epoch, restored.cursor);
  cursor.RestoreOpen(restored.reissue);
  return restored.cursor == 0 && restored.data_epoch > 0 &&
         restored.reissue.empty();
}

RunState FittedToSettings(RunState state) {
  auto fitted = std::make_shared<ModelSnapshot>(*state.snapshot);
  fitted->slots = FitSlots(state.model->partitions, fitted->weights,
                           fitted->slots, state.slots);
  state.snapshot = std::move(fitted);
  return state;
}

bool IsOver(const RunState& restored, const CoordinatorOptions& options) {
  return restored.ended.has_value() && restored.epochs == options.epochs &&
         restored.max_steps == options.max_steps;
}

}  // namespace cohort
