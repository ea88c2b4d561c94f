#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/assignment.h"
#include "common/clock.h"
#include "common/departure.h"
#include "common/element_type.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "server/core/coordinator.h"
#include "server/core/events/effects.h"
#include "server/partitions/partitions.h"

namespace cohort {

inline constexpr Rank kRank0{0};
inline constexpr Rank kRank1{1};
inline constexpr Rank kRank2{2};

struct FakeSetup {
  CoordinatorOptions options;
  ModelLayout layout;
  RunPlan plan;
  std::vector<int64_t> batch_sizes;
  // By rank, or none.
  std::vector<int64_t> batch_sizes_max = {};
};

// Two workers with batches of 3 and 1; 8 training samples, so that an epoch
// is two steps; 4 test samples. Parameter "w" {1, 2} is partition 0, "b" {3}
// partition 1; batch norm "bn" has one channel. Plain SGD with rate 0.5, loss
// reference 4, sync, local normalisation, one epoch.
FakeSetup SmallSetup();
// SmallSetup with global normalisation.
FakeSetup GlobalSetup();
// SmallSetup with async aggregation, batches of 2.
FakeSetup AsyncSetup();

// With an epoch of so many samples.
FakeSetup Long(FakeSetup setup, int64_t train_samples = 40);
// With so many workers of equal batches.
FakeSetup WithWorkers(FakeSetup setup, int32_t workers, int64_t batch_size = 1);
// With three workers, two of which make a step, and three steps an epoch.
FakeSetup FirstTwo(FakeSetup setup);
// With --on_worker_loss=continue.
FakeSetup Continuing(FakeSetup setup);
// With a checkpoint at every commit.
FakeSetup Checkpointing(FakeSetup setup);

// The content of a worker's push.
struct FakePush {
  std::vector<float> w = {0, 0};
  std::vector<float> b = {0};
  double loss_weight = 1;
  std::optional<double> gradient_weight = std::nullopt;
  double loss_sum = 0;
  // One of them is classified correctly, if there are any.
  int64_t labels = 2;
  Moments moments{.count = 2, .first = {0}, .second = {2}};
  // With own data; otherwise those of the range.
  std::optional<int64_t> samples;
  std::vector<double> learning_rates;
  std::vector<GroupNumber> numbers;
  std::optional<std::string> front_end_state;
  std::vector<Measure> measures;
  // It keeps the weights that it has read.
  bool takes_changes = false;
  uint64_t batch_digest = 0;
  // See PushKey and PushOpening.
  int32_t update = 0;
  int32_t optimizer = 0;
  bool continues = false;
};

// A coordinator with its only shard, the calls that workers would cause, and
// its effects. Folds run at once unless they are held.
class FakeCohort {
 public:
  explicit FakeCohort(const FakeSetup& setup,
                      const RunState* restored = nullptr);

  Coordinator& core() { return core_; }
  Instant now() const { return now_; }

  // Advances time: all live workers send heartbeats, and the clock ticks.
  void Pass(absl::Duration time);
  // Pass with heartbeats of `ranks` only.
  void PassWithHeartbeatsOf(const std::vector<Rank>& ranks,
                            absl::Duration time);

  absl::Status Join(Rank rank, Incarnation incarnation = Incarnation());
  // Sends the layout, and the initial values once they are requested. OK if the
  // answer has not come yet.
  absl::Status Register(Rank rank);
  // Registers with another layout.
  absl::Status Register(Rank rank, const ModelLayout& layout);
  // The client of `rank` closes its side of the registration.
  void CloseRegistration(Rank rank);
  // From now on only SendValues sends values.
  void HoldValues() { hold_values_ = true; }
  // `first` is the first of the three values.
  absl::Status SendValues(Rank rank, float first = 1);
  // Absent if the newest registration of this rank is not answered yet.
  const std::optional<absl::StatusOr<RegisterAnswer>>& answer(Rank rank) {
    return answers_[rank];
  }
  // Every rank joins and registers.
  void Start();
  void StartOne(Rank rank);
  void BreakSession(Rank rank);
  void Leave(Rank rank, Departure::Kind kind = Departure::Kind::kLeaves);

  absl::Status Open(Rank rank, const FakePush& push);
  // In the type that the rank's assignment states, or in another one.
  absl::Status Gradient(Rank rank, int32_t partition,
                        const std::vector<float>& values,
                        const std::vector<int32_t>& absent_slices = {},
                        std::optional<ElementType> type = std::nullopt);
  // Under global normalisation with the calls that the incarnation has made.
  absl::Status Close(Rank rank, const FakePush& push);
  // Without a number of contributions, that of the incarnation is filled in.
  absl::Status Close(Rank rank, PushClosing closing);
  // Sends a whole push. Fails the test if a part is refused.
  void Push(Rank rank, const FakePush& push);
  // Sends whole pushes of rank 0 and rank 1, in this order.
  void PushBoth(const FakePush& push) { PushBoth(push, push); }
  void PushBoth(const FakePush& first, const FakePush& second);
  // Opens a push and sends these partitions. Fails the test if a part is
  // refused.
  void Send(Rank rank, const FakePush& push,
            const std::vector<int32_t>& partitions);
  // Closes the push of `key` once more, as a client does whose answer was lost.
  // Returns the verdict, and fails the test if there is no answer.
  effect::SendVerdict CloseAgain(Rank rank, const PushKey& key);
  absl::Status Reduce(Rank rank, const ReduceKey& key, const Moments& moments);
  // Several contributions in one request.
  absl::Status Reduce(Rank rank, std::vector<MomentsMessage> messages);
  // One contribution of rank 0 and one of rank 1, in this order. Fails the test
  // if one is refused.
  void ReduceBoth(const ReduceKey& key, const Moments& moments) {
    ReduceBoth(key, moments, moments);
  }
  void ReduceBoth(const ReduceKey& key, const Moments& first,
                  const Moments& second);
  // One element with the value 0 at a place of the present step.
  absl::Status Meet(Rank rank, const CallPlace& place,
                    const std::vector<int64_t>& extents = {});
  absl::StatusOr<Assignment> Report(Rank rank);
  // Reports moments for a collected batch.
  absl::StatusOr<Assignment> ReportMoments(Rank rank,
                                           const std::vector<CallMoments>& of);
  absl::StatusOr<CollectionAnswer> Collect();
  // Reports every assigned evaluation, until there is none.
  void EvaluateAll();
  void Drain(const std::string& reason);
  void CheckpointStored();
  absl::StatusOr<ChangeAnswer> Change(const SettingValues& values);
  absl::Status Evict(Rank rank);
  // Reports that the rank lacks the state that the push of `key` needs; with
  // `lost`, that every rank does.
  absl::Status MissesState(Rank rank, const PushKey& key, bool lost);
  absl::Status DrainWorker(Rank rank);

  // True if the server has no room for the last gradient of `rank`.
  bool paused(Rank rank) const { return held_.contains(rank); }

  void HoldFolds() { hold_folds_ = true; }
  void RunFolds();
  std::vector<FoldJob>& held_folds() { return folds_; }
  void FoldDone(FoldResult result);
  std::vector<MomentsFold>& held_moments_folds() { return moments_folds_; }
  void MomentsFolded(MomentsFold done);

  // The newest assignment sent to the rank, by any effect.
  const Assignment& told(Rank rank) { return told_[rank]; }
  // The key of the update that the rank opened last.
  PushKey key(Rank rank) {
    const PushKey whole = KeyOf(told_[rank]);
    return opened_[rank].Whole() == whole ? opened_[rank] : whole;
  }
  static PushKey KeyOf(const Assignment& assignment) {
    return {.sequence = assignment.sequence, .attempt = assignment.attempt};
  }
  Sender sender(Rank rank);
  Incarnation incarnation(Rank rank) { return incarnations_[rank]; }
  SessionId session(Rank rank) { return sessions_[rank]; }

  // Effects of one kind since the last Clear, in order.
  template <typename E>
  std::vector<E> All() const {
    std::vector<E> found;
    for (const Effect& effect : effects_) {
      if (const E* e = std::get_if<E>(&effect)) found.push_back(*e);
    }
    return found;
  }
  // The only one of its kind. Fails the test if there are others or none.
  template <typename E>
  E Only() const {
    const std::vector<E> found = All<E>();
    EXPECT_EQ(found.size(), 1);
    return found.size() == 1 ? found.front() : E();
  }
  void Clear() {
    effects_.clear();
    sent_.clear();
  }
  // The weights of all command::SendWeights since then.
  const std::vector<PartitionWeights>& sent() const { return sent_; }

  // With the shard's weights and slots.
  absl::StatusOr<RunState> State() const;
  SharedSnapshot snapshot() const { return State()->snapshot; }
  std::vector<float> weights(int32_t partition) const;
  StatusView Status() const { return core_.Status(now_); }
  int64_t counter(const std::string& name) const;
  std::string log() const;

 private:
  // The effects of one call of the core, absorbed when the call is over.
  class Absorbed {
   public:
    explicit Absorbed(FakeCohort& cohort) : cohort_(cohort) {}
    ~Absorbed() { cohort_.Absorb(std::move(out_)); }
    Effects& out() { return out_; }

   private:
    FakeCohort& cohort_;
    Effects out_;
  };

  void Absorb(Effects effects);
  void SendValuesWhereAsked();
  void Note(const Effect& effect);
  void Install(const SharedModel& model, const SharedSnapshot& snapshot,
               const CoordinatorOptions& settings);
  template <typename Command>
  void CarryOut(const Command& command);
  RunState WithWeights(RunState state) const;
  void Begin(std::vector<FoldJob> folds);
  void Resume(Rank rank);

  // A gradient on a paused stream.
  struct Held {
    Sender sender;
    PushKey key;
    GradientArrival gradient;
  };

  const FakeSetup setup_;
  Coordinator core_;
  FloatBufferPool pool_;
  Instant now_ = absl::Seconds(100);
  int64_t next_session_ = 1;
  bool hold_folds_ = false;
  bool hold_values_ = false;
  Effects effects_;
  std::optional<Partitions> node_;
  std::vector<SharedFloats> values_;
  std::vector<PartitionWeights> sent_;
  int64_t next_ticket_ = 1;
  std::map<int64_t, HeldGradient> staged_;
  std::vector<FoldJob> folds_;
  std::vector<MomentsFold> moments_folds_;
  std::vector<StatisticsUpdate> updates_;
  std::map<Rank, Held> held_;
  std::vector<Rank> resumed_;
  std::map<Rank, SessionId> sessions_;
  std::map<Rank, Incarnation> incarnations_;
  std::map<Rank, Assignment> told_;
  std::map<Rank, PushKey> opened_;
  // Contributions of an incarnation in one attempt.
  struct Made {
    Incarnation incarnation;
    Version step;
    Attempt attempt;
    std::set<CallPlace> places;
  };
  // Those of the present attempt.
  Made& MadeBy(Rank rank);
  std::map<Rank, Made> made_;
  std::map<Rank, std::optional<absl::StatusOr<RegisterAnswer>>> answers_;
  std::vector<Rank> asked_;
};

// One in which every rank has joined and registered.
class StartedCohort : public FakeCohort {
 public:
  explicit StartedCohort(const FakeSetup& setup,
                         const RunState* restored = nullptr)
      : FakeCohort(setup, restored) {
    Start();
  }
};

// A push of weight 2 with this gradient for the first element of w.
inline FakePush PushOf(float value) {
  return {.w = {value, 0}, .loss_weight = 2, .loss_sum = 2};
}

// The checksum of each partition.
inline std::vector<uint64_t> WeightChecksums(const ModelSnapshot& snapshot) {
  std::vector<uint64_t> checksums;
  for (const SharedFloats& weights : snapshot.weights) {
    checksums.push_back(weights->Checksum());
  }
  return checksums;
}

// A gradient was refused in silence: its shard forgets it, and that is all.
inline bool IsForgotten(const Effects& out) {
  const auto* take =
      out.size() == 1 ? std::get_if<command::Take>(&out[0]) : nullptr;
  return take != nullptr && !take->held;
}

inline bool Trains(FakeCohort& cohort, Rank rank) {
  return cohort.told(rank).kind == AssignmentKind::kTrain;
}

}  // namespace cohort
