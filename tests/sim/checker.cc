#include "tests/sim/checker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort::sim {
namespace {

std::string Text(const std::tuple<Rank, Sequence, Attempt>& key) {
  return absl::StrCat("push of rank ", std::get<0>(key).value(), " sequence ",
                      std::get<1>(key).value(), " attempt ",
                      std::get<2>(key).value());
}

size_t CountTrainable(const RunSpec& run) {
  const std::vector<Partition> partitions =
      MakePartitions(run.layout, run.coordinator.partition_bytes);
  return static_cast<size_t>(
      std::count_if(partitions.begin(), partitions.end(),
                    [](const Partition& p) { return p.trainable; }));
}

}  // namespace

Checker::Checker(const Scenario& scenario)
    : scenario_(scenario),
      run_(scenario.run),
      trainable_(CountTrainable(scenario.run)),
      settings_(SettingsOf(scenario.run.coordinator)) {
  NotePolicy();
}

void Checker::Fail(const std::string& what) {
  if (!failure_.has_value()) failure_ = what;
}

void Checker::OnEffects(const Effects& effects, const Coordinator& core) {
  const size_t bound = 64 + 24 * static_cast<size_t>(std::max(
                                     run_.coordinator.workers, Size().workers));
  if (effects.size() > bound) {
    Fail(absl::StrCat(effects.size(), " effects of one event, want at most ",
                      bound));
  }
  for (const Effect& effect : effects) {
    std::visit([this](const auto& e) { On(e); }, effect);
  }
  // The lowest rank's values are requested, whatever order the ranks came in;
  // an elastic cohort has that of the first.
  if (run_.coordinator.workers_min == 0 && asked_.has_value() &&
      *asked_ != Rank(0) && core.model() == nullptr &&
      core.Status(Instant()).counts.workers_lost == 0) {
    Fail(absl::StrCat("rank ", asked_->value(), " is asked for its values"));
  }
  AfterEvent(core);
}

void Checker::AfterEvent(const Coordinator& core) {
  CheckRoom(core);
  const absl::StatusOr<SharedVersion> newest = core.Read(std::nullopt);
  if (!newest.ok()) return;
  if ((*newest)->version != now_.version) {
    Fail(absl::StrCat("the server is at version ", (*newest)->version.value(),
                      ", its commits made ", now_.version.value()));
  }
  CheckState("the server", **newest);
}

void Checker::CheckState(const std::string& where,
                         const ModelVersion& snapshot) {
  const auto wanted = now_.states.find(snapshot.version);
  if (wanted == now_.states.end()) {
    Fail(absl::StrCat(where, " has version ", snapshot.version.value(),
                      ", which was never made"));
    return;
  }
  std::optional<std::string> seen;
  if (snapshot.front_end_state != nullptr) seen = *snapshot.front_end_state;
  if (seen == wanted->second) return;
  Fail(absl::StrCat(where, " has the state ", seen.value_or("(none)"),
                    " with version ", snapshot.version.value(), ", want ",
                    wanted->second.value_or("(none)")));
}

void Checker::OnRead(const ModelVersion& snapshot) {
  CheckState("a reader", snapshot);
}

void Checker::OnCounted(Rank rank, int32_t server_incarnation,
                        const IndexRange& batch) {
  // A restart took the version back before a frozen worker read the verdict.
  if (server_incarnation != server_incarnation_) return;
  for (int64_t i = batch.begin; i < batch.end; ++i) {
    if (now_.own_samples.contains(i)) continue;
    Fail(absl::StrCat("rank ", rank.value(), " was answered that sample ", i,
                      " counts, but no version contains it"));
  }
}

bool Checker::StepsAreVersions() const {
  return run_.extras.states == FrontEndStates::kAlways &&
         run_.coordinator.policy.aggregation == AggregationKind::kSync &&
         scenario_.changes.empty();
}

void Checker::OnHeld(Rank rank, Version version, const FrontEndState& state) {
  if (!StepsAreVersions() || state.steps == version.value()) return;
  Fail(absl::StrCat("rank ", rank.value(), " holds the state after ",
                    state.steps, " steps with version ", version.value()));
}

// If workers send in one order, each may be let in over the limit with one
// partition at most.
void Checker::CheckRoom(const Coordinator& core) {
  const bool all_alike = std::none_of(
      scenario_.faults.begin(), scenario_.faults.end(),
      [](const Fault& fault) { return fault.kind == FaultKind::kMiscount; });
  // Those to different shards are not ordered, and the calls that a rank makes
  // decide which gradients are ready.
  if (!scenario_.in_order || !all_alike || IsShared() || run_.extras.skips) {
    return;
  }
  const CoordinatorOptions& o = run_.coordinator;
  const int64_t limit =
      o.inflight_bytes_max + std::max(kRanksMax, o.workers) * o.partition_bytes;
  if (core.inflight_bytes() > limit) {
    Fail(absl::StrCat("holds ", core.inflight_bytes(), " bytes of gradients, ",
                      "want at most ", limit));
  }
}

void Checker::OnServerGone() {
  ++server_incarnation_;
  now_ = at_checkpoint_;
  settings_ = checkpoint_.has_value() ? checkpoint_->settings
                                      : SettingsOf(run_.coordinator);
  finished_.clear();
  lead_unknown_ = false;
  resized_ = checkpoint_.has_value() && !checkpoint_->never_registered.empty();
  // Without a checkpoint the run registers its model again.
  if (!checkpoint_.has_value()) asked_.reset();
  applied_ = 0;
  transaction_ = 0;
  newest_fold_.clear();
  folds_.clear();
  asked_checkpoints_.clear();
  begun_checkpoint_.reset();
  if (!concluded_ && ended_.has_value()) {
    ended_before_ = true;
    ended_.reset();
  }
  ends_again_ = ended_.has_value();
  answered_.clear();
  aborted_.clear();
}

void Checker::On(const effect::RegisterAnswered& answered) {
  if (answered.answer.ok() && answered.answer->send_values) {
    asked_ = answered.rank;
  }
}

void Checker::OnFold(const Folder& folder, const FoldJob& fold) {
  // What a data shard does before it knows that shard 0 is gone comes to
  // nothing.
  if (folder.generation < server_incarnation_) return;
  // A later pass over gradients that were folded.
  if (fold.pass == FoldPass::kNorms || fold.pass == FoldPass::kUpdate) return;
  const bool remote = folder.shard > 0;
  if (ended_.has_value() && !remote) Fail("a fold after the end of the run");
  int64_t& newest = newest_fold_[folder.shard];
  if (fold.transaction < newest) {
    Fail("a fold of an older transaction than the newest");
  }
  newest = fold.transaction;
  // A data shard may begin one that was given up.
  if (fold.transaction < transaction_ && remote) return;
  std::vector<Contribution> contributions;
  for (const FoldContribution& c : fold.contributions) {
    const auto* block = static_cast<const GradientBlock*>(
        c.gradient.pieces().front().owner.get());
    if (block->rank != c.rank) Fail("a gradient under another rank's name");
    if (block->incarnation < FirstIncarnation(folder.generation)) {
      Fail(
          absl::StrCat("a gradient of an earlier server process is folded, of "
                       "incarnation ",
                       block->incarnation.value()));
    }
    contributions.push_back(
        {.key = {block->rank, block->key.sequence, block->key.attempt},
         .epoch = block->epoch,
         .ranges = block->ranges,
         .front_end_state = block->front_end_state});
  }
  if (!folds_[fold.transaction]
           .emplace(fold.partition, std::move(contributions))
           .second) {
    Fail(absl::StrCat("partition ", fold.partition, " is folded twice"));
  }
}

void Checker::On(const effect::Committed& committed) {
  const CommitRecord& record = committed.record;
  if (ended_.has_value()) Fail("a commit after the end of the run");
  ++commits_;
  if (record.staleness_versions < 0) Fail("negative staleness");
  if (!Is("aggregation", "sync")) CheckLead(record.members.front());
  const auto members = static_cast<int32_t>(record.members.size());
  const int32_t least = Size().workers_min;
  // The last step of an epoch may have fewer samples than workers, and so may
  // what another policy left over.
  if (Is("aggregation", "sync") && Is("min_pushes", "0") &&
      scenario_.changes.empty() && !record.epoch_ended && members < least) {
    Fail(
        absl::StrCat("a step of ", members, " workers, want at least ", least));
  }
  if (record.skipped) {
    // Only a stale push may be skipped without leaving a trace.
    if (!Is("staleness", "drop")) Fail("a finite step was skipped");
    if (record.version != now_.version) Fail("a drop made a version");
    return;
  }
  if (record.version != now_.version.Next()) {
    Fail(absl::StrCat("commit of version ", record.version.value(), " after ",
                      now_.version.value()));
  }
  now_.version = record.version;
  const int64_t steps_max = run_.coordinator.max_steps;
  if (steps_max > 0 && now_.version.value() > steps_max) {
    Fail(absl::StrCat("version ", now_.version.value(), ", want at most ",
                      steps_max));
  }
  if (Is("staleness", "drop") && !Is("aggregation", "sync") &&
      record.staleness_versions > Number("max_staleness")) {
    Fail("a push that is too stale was applied");
  }
  const Folds folds = std::exchange(folds_[transaction_], {});
  folds_.erase(folds_.begin(), folds_.upper_bound(transaction_));
  CheckFolds(record, folds);
}

// What the gradients themselves say of a commit.
void Checker::CheckFolds(const CommitRecord& record, const Folds& folds) {
  if (folds.size() != trainable_) {
    Fail(absl::StrCat("a commit of ", folds.size(), " partitions, want ",
                      trainable_));
    return;
  }
  const std::vector<Contribution>& contributions = folds.begin()->second;
  for (const auto& [partition, others] : folds) {
    if (others != contributions) {
      Fail(absl::StrCat("partition ", partition,
                        " is made of other pushes than partition 0"));
    }
  }
  std::vector<Rank> ranks;
  int64_t samples = 0;
  for (const Contribution& c : contributions) {
    ranks.push_back(std::get<Rank>(c.key));
    for (const IndexRange& range : c.ranges) samples += range.size();
    ++applied_;
    if (!now_.applied.insert(c.key).second) {
      Fail(absl::StrCat(Text(c.key), " is applied twice"));
    }
    if (now_.dropped.contains(c.key)) {
      Fail(absl::StrCat(Text(c.key), " is applied after it was dropped"));
    }
    if (c.epoch != record.data_epoch) Fail("a commit over two epochs");
    Cover(c);
  }
  if (ranks != record.members || !std::is_sorted(ranks.begin(), ranks.end())) {
    Fail("the members are not the ranks that were folded, ascending");
  }
  if (samples != record.commit_samples) Fail("wrong count of samples");
  CheckStepSamples(record);
  NoteState(contributions.front());
}

// With a given number of samples every step has as many, but the last of an
// epoch, and what another policy left over.
void Checker::CheckStepSamples(const CommitRecord& record) {
  if (Is("global_batch", "sum") || !Is("aggregation", "sync") ||
      !Is("min_pushes", "0") || !scenario_.changes.empty() ||
      record.epoch_ended || record.commit_samples == Number("global_batch")) {
    return;
  }
  Fail(absl::StrCat("a step of ", record.commit_samples, " samples, want ",
                    settings_.at("global_batch")));
}

void Checker::NoteState(const Contribution& lowest) {
  const std::optional<std::string>& sent = lowest.front_end_state;
  now_.states[now_.version] =
      sent.has_value() ? sent : now_.states[Version(now_.version.value() - 1)];
  if (!StepsAreVersions()) return;
  OnHeld(std::get<Rank>(lowest.key), now_.version, Decode(&*sent));
}

void Checker::CoverOwn(const Contribution& contribution, int64_t sample) {
  if (now_.own_samples.insert(sample).second) return;
  Fail(absl::StrCat(Text(contribution.key), " has sample ", sample,
                    " of own data, which was used before"));
}

void Checker::CoverRange(const Contribution& contribution,
                         const IndexRange& range) {
  std::vector<bool>& samples = now_.samples[contribution.epoch];
  samples.resize(static_cast<size_t>(run_.plan.train_samples));
  for (int64_t i = range.begin; i < range.end; ++i) {
    if (run_.extras.own_data) {
      CoverOwn(contribution, i);
      continue;
    }
    if (samples.at(static_cast<size_t>(i))) {
      Fail(absl::StrCat("sample ", i, " of epoch ", contribution.epoch,
                        " is used twice"));
    }
    samples[static_cast<size_t>(i)] = true;
  }
}

void Checker::Cover(const Contribution& contribution) {
  for (const IndexRange& range : contribution.ranges) {
    CoverRange(contribution, range);
  }
}

CoordinatorOptions Checker::Size() const {
  CoordinatorOptions options;
  const absl::Status read =
      SetSetting("workers", settings_.at("workers"), options);
  COHORT_CHECK(read.ok(), read.message());
  return options;
}

int64_t Checker::Number(const std::string& setting) const {
  int64_t value = 0;
  COHORT_CHECK(absl::SimpleAtoi(settings_.at(setting), &value), setting);
  return value;
}

// Under `wait` every rank counts, even lost ones.
void Checker::CheckLead(Rank rank) {
  ++finished_[rank];
  if (!Is("aggregation", "bounded") || !Is("on_worker_loss", "wait") ||
      lead_unknown_ || resized_) {
    return;
  }
  int64_t least = finished_[rank];
  for (int32_t r = 0; r < Size().workers; ++r) {
    least = std::min(least, finished_[Rank(r)]);
  }
  if (finished_[rank] - least > Number("max_lead")) {
    Fail(absl::StrCat("rank ", rank.value(), " is ", finished_[rank] - least,
                      " assignments ahead"));
  }
}

void Checker::On(const effect::PolicyChanged& changed) {
  for (const auto& [name, value] : changed.record.changed) {
    settings_[name] = value;
    // Settings that take effect at once do not restart the count.
    if (!ActsAtOnce(name)) {
      finished_.clear();
      lead_unknown_ = false;
    }
  }
  // Under `continue` a new rank starts beside the slowest.
  if (changed.record.changed.contains("on_worker_loss")) lead_unknown_ = true;
  if (changed.record.changed.contains("workers")) {
    resized_ = true;
    ++resizes_;
  }
  NotePolicy();
  if (changed.record.version != now_.version) {
    Fail("a change at another version than the newest");
  }
}

void Checker::NotePolicy() {
  may_drop_ = may_drop_ || !Is("min_pushes", "0") || Is("staleness", "drop");
}

void Checker::CheckCounts(const StatusView& status) {
  if (status.counts.pushes_applied != applied_) {
    Fail(absl::StrCat("pushes_applied is ", status.counts.pushes_applied,
                      ", want ", applied_));
  }
}

void Checker::CheckClock(const StatusView& status) {
  // Own data has no end, and a limit of steps may come before it.
  if (run_.extras.own_data || run_.coordinator.max_steps > 0) return;
  if (status.ended && status.samples != status.samples_total) {
    Fail(absl::StrCat("the run ended after ", status.samples, " samples of ",
                      status.samples_total));
  }
}

// The attempt ended early or, under asynchronous policies, was given again.
bool Checker::IsOver(const effect::SendVerdict& sent) const {
  return aborted_.contains({sent.verdict.version, sent.key.attempt}) ||
         absl::StrContains(sent.verdict.reason,
                           "was issued again as attempt") ||
         // With own data a process asks under its next incarnation, too. With
         // several shards a step takes longer, and can end while all of its
         // members are away, so that none is notified; so it may where a change
         // ends a step of local ones.
         ((run_.extras.own_data || run_.extras.local_steps ||
           scenario_.strangers || IsShared()) &&
          (absl::StrContains(sent.verdict.reason, " ended early: ") ||
           absl::StrContains(sent.verdict.reason, "decided long ago") ||
           absl::StrContains(sent.verdict.reason, "was withdrawn")));
}

void Checker::On(const effect::SendVerdict& sent) {
  const Key key{sent.rank, sent.key.sequence, sent.key.attempt};
  const bool first = !sent.verdict.duplicate;
  if (first && !answered_.insert(key).second) {
    Fail(absl::StrCat(Text(key), " is answered twice"));
  }
  if (sent.verdict.verdict == Verdict::kDropped) {
    if (!may_drop_ && !IsOver(sent)) {
      Fail(absl::StrCat(Text(key), " is dropped: ", sent.verdict.reason));
    }
    // After many later pushes the server no longer knows what became of one,
    // and says so to a stranger that repeats it.
    const bool forgotten =
        scenario_.strangers && sent.verdict.duplicate &&
        absl::StrContains(sent.verdict.reason, "decided long ago");
    const bool applied = now_.applied.contains(key);
    if (applied && !forgotten) {
      Fail(absl::StrCat(Text(key), " is applied and answered as dropped: ",
                        sent.verdict.reason));
    }
    if (!applied) now_.dropped.insert(key);
  } else if (!IsApplied(sent.verdict.verdict)) {
    Fail(absl::StrCat(Text(key), " is not applied"));
  } else if (!now_.applied.contains(key)) {
    Fail(absl::StrCat(Text(key), " is answered but was never applied"));
  }
  if (!(sent.verdict.weight > 0 && sent.verdict.weight <= 1)) {
    Fail(absl::StrCat(Text(key), " has weight ", sent.verdict.weight));
  }
  if (sent.verdict.staleness_versions < 0) Fail("negative staleness");
}

void Checker::On(const effect::WriteCheckpoint& write) {
  if (ended_.has_value()) Fail("a checkpoint after the end of the run");
  CheckState("a checkpoint", *write.state.snapshot);
  asked_checkpoints_.push_back(now_);
}

void Checker::OnCheckpointBegun(bool begun) {
  if (!begun) return asked_checkpoints_.pop_back();
  begun_checkpoint_ = asked_checkpoints_.front();
  asked_checkpoints_.pop_front();
}

void Checker::OnCheckpointWritten(RunState state) {
  checkpoint_ = std::move(state);
  at_checkpoint_ = *std::exchange(begun_checkpoint_, std::nullopt);
}

void Checker::OnResults(SharedSnapshot snapshot) {
  results_ = std::move(snapshot);
  concluded_ = true;
}

void Checker::On(const effect::RunEnded& ended) {
  // A server that continues from the last checkpoint tells of the end again.
  if (std::exchange(ends_again_, false)) return;
  if (ended_.has_value()) Fail("the run ends twice");
  ended_ = ended;
  if (ended.outcome != RunOutcome::kFinished) {
    Fail(absl::StrCat("the run ended early: ", ended.reason));
    return;
  }
  CheckState("the end", *ended.version);
  if (now_.version.value() != run_.coordinator.max_steps) CheckAllCovered();
}

void Checker::CheckAllCovered() {
  if (run_.extras.own_data) {
    Fail(absl::StrCat("the run ended at version ", now_.version.value(),
                      ", want ", run_.coordinator.max_steps));
    return;
  }
  for (int64_t epoch = 0; epoch < run_.coordinator.epochs; ++epoch) {
    const std::vector<bool>& samples = now_.samples[epoch];
    const auto used = std::count(samples.begin(), samples.end(), true);
    if (used != run_.plan.train_samples && !may_drop_) {
      Fail(absl::StrCat("epoch ", epoch, " used ", used, " samples, want ",
                        run_.plan.train_samples));
    }
  }
}

}  // namespace cohort::sim
