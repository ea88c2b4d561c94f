#include "tests/core/fake_cohort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "kernels/backend.h"
#include "server/core/run_state.h"
#include "tests/core/float_values.h"
#include "tests/fakes/statuses.h"
#include "tests/kernels/reference/reference_backend.h"

namespace cohort {
namespace {

ByteRope Encoded(const std::vector<float>& values, ElementType type) {
  if (type == ElementType::kFloat32) return RopeOf(BufferOf(values));
  std::vector<std::byte> halves(values.size() * 2);
  RoundToBFloat16(reinterpret_cast<const std::byte*>(values.data()),
                  static_cast<int64_t>(values.size()), halves.data());
  return ByteRope::Copy(halves);
}

}  // namespace

FakeSetup SmallSetup() {
  return {.options = {.run_id = "run",
                      .workers = 2,
                      .policy = {.normalization = NormalizationKind::kLocal},
                      .optimizer = {.kind = OptimizerKind::kSgd,
                                    .learning_rate = 0.5,
                                    .weight_decay = 0,
                                    .schedule = ScheduleKind::kConstant},
                      .epochs = 1,
                      .partition_bytes = 8},
          .layout = {.parameters = {{.name = "w", .shape = {2}},
                                    {.name = "b", .shape = {1}}},
                     .batch_norms = {{.name = "bn", .channels = 1}}},
          .plan = {.dataset = "numbers",
                   .dataset_digest = "ab",
                   .train_samples = 8,
                   .test_samples = 4,
                   .loss_reference = 4},
          .batch_sizes = {3, 1}};
}

FakeSetup GlobalSetup() {
  FakeSetup setup = SmallSetup();
  setup.options.policy.normalization = NormalizationKind::kGlobal;
  return setup;
}

FakeSetup AsyncSetup() {
  FakeSetup setup = SmallSetup();
  setup.options.policy = {.aggregation = AggregationKind::kAsync};
  setup.batch_sizes = {2, 2};
  return setup;
}

FakeSetup Long(FakeSetup setup, int64_t train_samples) {
  setup.plan.train_samples = train_samples;
  return setup;
}

FakeSetup WithWorkers(FakeSetup setup, int32_t workers, int64_t batch_size) {
  setup.options.workers = workers;
  setup.batch_sizes.assign(static_cast<size_t>(workers), batch_size);
  return setup;
}

FakeSetup FirstTwo(FakeSetup setup) {
  setup = Long(WithWorkers(std::move(setup), 3, 2), 12);
  setup.options.policy.pushes_min = 2;
  return setup;
}

FakeSetup Continuing(FakeSetup setup) {
  setup.options.on_worker_loss = OnWorkerLoss::kContinue;
  return setup;
}

FakeSetup Checkpointing(FakeSetup setup) {
  setup.options.checkpoint_every = 1;
  return setup;
}

FakeCohort::FakeCohort(const FakeSetup& setup, const RunState* restored)
    : setup_(setup), core_(setup.options, restored) {
  if (restored == nullptr) return;
  Install(restored->model, restored->snapshot, core_.options());
}

void FakeCohort::Install(const SharedModel& model,
                         const SharedSnapshot& snapshot,
                         const CoordinatorOptions& settings) {
  absl::StatusOr<Partitions> node =
      Partitions::Install(InstallationOf({}, model, snapshot, settings));
  COHORT_CHECK(node.ok(), node.status().ToString());
  node_ = *std::move(node);
}

absl::StatusOr<RunState> FakeCohort::State() const {
  absl::StatusOr<RunState> state = core_.State();
  if (!state.ok()) return state;
  return WithWeights(*std::move(state));
}

RunState FakeCohort::WithWeights(RunState state) const {
  const SharedSnapshot held = node_->Read(state.snapshot->version);
  COHORT_CHECK(held != nullptr, "the shard does not have the version");
  auto whole = std::make_shared<ModelSnapshot>(*state.snapshot);
  whole->weights = held->weights;
  whole->slots = held->slots;
  state.snapshot = std::move(whole);
  return FittedToSettings(std::move(state));
}

template <typename Command>
void FakeCohort::CarryOut(const Command& command) {
  if constexpr (std::is_same_v<Command, command::Take>) {
    auto staged = staged_.extract(command.ticket);
    if (!command.held) return;
    staged.mapped().push = command.push;
    Begin(*node_->Hold(std::move(staged.mapped())));
  } else {
    absl::StatusOr<Partitions::Consequences> led_to = node_->Carry(command);
    COHORT_CHECK(led_to.ok(), led_to.status().ToString());
    Begin(std::move(led_to->folds));
    if (led_to->weights.has_value()) sent_.push_back(*led_to->weights);
  }
}

void FakeCohort::Note(const Effect& effect) {
  if (const auto* e = std::get_if<effect::Joined>(&effect)) {
    sessions_[e->rank] = e->session;
    incarnations_[e->rank] = e->incarnation;
  } else if (const auto* e = std::get_if<effect::Notify>(&effect)) {
    for (const auto& [rank, session] : sessions_) {
      if (session == e->session) told_[rank] = e->assignment;
    }
  } else if (const auto* e = std::get_if<effect::SendVerdict>(&effect)) {
    told_[e->rank] = e->verdict.next;
  } else if (const auto* e = std::get_if<effect::ResumeGradients>(&effect)) {
    resumed_.push_back(e->rank);
  } else if (const auto* e = std::get_if<effect::InstallModel>(&effect)) {
    auto first = std::make_shared<ModelSnapshot>();
    first->weights = values_;
    Install(e->model, first, e->settings);
  } else if (const auto* e = std::get_if<effect::FoldMoments>(&effect)) {
    moments_folds_.push_back(e->job);
  } else if (const auto* e = std::get_if<effect::UpdateStatistics>(&effect)) {
    updates_.push_back(e->job);
  } else if (const auto* e = std::get_if<effect::RegisterAnswered>(&effect)) {
    if (e->incarnation != incarnations_[e->rank]) return;
    answers_[e->rank] = e->answer;
    if (e->answer.ok() && e->answer->send_values) asked_.push_back(e->rank);
  } else {
    std::visit(
        [this]<typename E>(const E& e) {
          if constexpr (std::is_constructible_v<ShardCommand, const E&>) {
            CarryOut(e);
          }
        },
        effect);
  }
}

void FakeCohort::Begin(std::vector<FoldJob> folds) {
  for (FoldJob& job : folds) folds_.push_back(std::move(job));
}

void FakeCohort::Absorb(Effects effects) {
  for (Effect& effect : effects) {
    Note(effect);
    if (auto* write = std::get_if<effect::WriteCheckpoint>(&effect)) {
      write->state = WithWeights(std::move(write->state));
    }
    effects_.push_back(std::move(effect));
  }
  while (!resumed_.empty()) {
    const Rank rank = resumed_.front();
    resumed_.erase(resumed_.begin());
    Resume(rank);
  }
  if (!hold_folds_) RunFolds();
  if (!hold_values_) SendValuesWhereAsked();
}

void FakeCohort::SendValuesWhereAsked() {
  for (Rank rank : std::exchange(asked_, {})) {
    ExpectOk(SendValues(rank));
  }
}

absl::Status FakeCohort::SendValues(Rank rank, float first) {
  values_ = {BufferOf({first, 2}), BufferOf({3})};
  return core_
      .FinishRegister(sender(rank), setup_.layout, setup_.plan, {}, now_,
                      Absorbed(*this).out())
      .status();
}

void FakeCohort::Resume(Rank rank) {
  auto node = held_.extract(rank);
  if (node.empty()) return;
  Held& held = node.mapped();
  Effects out;
  const absl::StatusOr<Admission> admission =
      core_.Gradient(held.sender, held.key, held.gradient, now_, out);
  EXPECT_TRUE(admission.ok()) << admission.status();
  if (admission.ok() && *admission == Admission::kPaused) {
    held_.insert(std::move(node));
  }
  Absorb(std::move(out));
}

void FakeCohort::RunFolds() {
  while (!moments_folds_.empty()) {
    MomentsFold job = std::move(moments_folds_.front());
    moments_folds_.erase(moments_folds_.begin());
    MomentsFolded(RunMomentsFold(std::move(job)));
  }
  while (!updates_.empty()) {
    StatisticsUpdate job = std::move(updates_.front());
    updates_.erase(updates_.begin());
    core_.StatisticsUpdated(RunStatisticsUpdate(std::move(job)), now_,
                            Absorbed(*this).out());
  }
  while (!folds_.empty()) {
    const FoldJob job = std::move(folds_.front());
    folds_.erase(folds_.begin());
    FoldDone(RunFold(job, kernels::ReferenceBackend(), pool_));
  }
}

void FakeCohort::MomentsFolded(MomentsFold done) {
  core_.MomentsFolded(std::move(done), now_, Absorbed(*this).out());
}

void FakeCohort::FoldDone(FoldResult result) {
  core_.Folded(node_->FoldDone(std::move(result)), now_, Absorbed(*this).out());
}

void FakeCohort::Pass(absl::Duration time) {
  std::vector<Rank> ranks;
  for (const auto& [rank, session] : sessions_) ranks.push_back(rank);
  PassWithHeartbeatsOf(ranks, time);
}

void FakeCohort::PassWithHeartbeatsOf(const std::vector<Rank>& ranks,
                                      absl::Duration time) {
  now_ += time;
  for (Rank rank : ranks) core_.Heartbeat(sessions_[rank], now_);
  core_.Tick(now_, Absorbed(*this).out());
}

absl::StatusOr<ChangeAnswer> FakeCohort::Change(const SettingValues& values) {
  return core_.Change({.values = values}, now_, Absorbed(*this).out());
}

absl::Status FakeCohort::Evict(Rank rank) {
  return core_.Evict(rank, "told to", now_, Absorbed(*this).out());
}

absl::Status FakeCohort::DrainWorker(Rank rank) {
  return core_.DrainWorker(rank, "told to", now_, Absorbed(*this).out());
}

absl::Status FakeCohort::MissesState(Rank rank, const PushKey& key, bool lost) {
  return core_.MissesState(sender(rank), key, lost, now_,
                           Absorbed(*this).out());
}

absl::Status FakeCohort::Join(Rank rank, Incarnation incarnation) {
  return core_.Join(
      SessionId(next_session_++),
      {.rank = rank,
       .incarnation = incarnation,
       .batch_size = setup_.batch_sizes[static_cast<size_t>(rank.value())],
       .batch_size_max =
           setup_.batch_sizes_max.empty()
               ? 0
               : setup_.batch_sizes_max[static_cast<size_t>(rank.value())],
       .fingerprint = "same",
       .description = absl::StrCat("host", rank.value())},
      now_, Absorbed(*this).out());
}

absl::Status FakeCohort::Register(Rank rank) {
  return Register(rank, setup_.layout);
}

absl::Status FakeCohort::Register(Rank rank, const ModelLayout& layout) {
  answers_[rank].reset();
  const absl::Status status = core_.BeginRegister(
      sender(rank), layout, setup_.plan, now_, Absorbed(*this).out());
  return status.ok() && answers_[rank].has_value() ? answers_[rank]->status()
                                                   : status;
}

void FakeCohort::CloseRegistration(Rank rank) {
  core_.RegisterClosed(sender(rank), now_, Absorbed(*this).out());
}

void FakeCohort::StartOne(Rank rank) {
  ExpectOk(Join(rank));
  ExpectOk(Register(rank));
}

void FakeCohort::Start() {
  for (int32_t i = 0; i < setup_.options.workers; ++i) StartOne(Rank(i));
}

void FakeCohort::BreakSession(Rank rank) {
  core_.SessionBroken(sessions_[rank], now_, Absorbed(*this).out());
}

void FakeCohort::Leave(Rank rank, Departure::Kind kind) {
  core_.Leave(sessions_[rank], {.reason = "asked to", .kind = kind}, now_,
              Absorbed(*this).out());
}

void FakeCohort::Drain(const std::string& reason) {
  core_.Drain(reason, now_, Absorbed(*this).out());
}

void FakeCohort::CheckpointStored() {
  core_.CheckpointStored(now_, Absorbed(*this).out());
}

Sender FakeCohort::sender(Rank rank) {
  return {.run_id = setup_.options.run_id,
          .rank = rank,
          .incarnation = incarnations_[rank]};
}

absl::Status FakeCohort::Open(Rank rank, const FakePush& push) {
  opened_[rank] = KeyOf(told_[rank]);
  opened_[rank].update = push.update;
  return core_.Open(sender(rank), opened_[rank],
                    {.version = told_[rank].version,
                     .samples = push.samples.value_or(told_[rank].range.size()),
                     .loss_weight = push.loss_weight,
                     .gradient_weight = push.gradient_weight,
                     .learning_rates = push.learning_rates,
                     .numbers = push.numbers,
                     .takes_changes = push.takes_changes,
                     .batch_digest = push.batch_digest,
                     .optimizer = push.optimizer,
                     .continues = push.continues},
                    now_, Absorbed(*this).out());
}

absl::Status FakeCohort::Gradient(Rank rank, int32_t partition,
                                  const std::vector<float>& values,
                                  const std::vector<int32_t>& absent_slices,
                                  std::optional<ElementType> type) {
  Held held{.sender = sender(rank),
            .key = key(rank),
            .gradient = {.partition = partition,
                         .type = type.value_or(told_[rank].gradients),
                         .absent_slices = absent_slices,
                         .ticket = next_ticket_++}};
  GradientArrival& gradient = held.gradient;
  const ByteRope bytes = Encoded(values, gradient.type);
  gradient.bytes = bytes.size_bytes();
  gradient.sampled_checksum = bytes.SampledChecksum();
  staged_[gradient.ticket] = {.partition = partition,
                              .gradient = bytes,
                              .type = gradient.type,
                              .absent_slices = absent_slices};
  Effects out;
  const absl::StatusOr<Admission> admission =
      core_.Gradient(held.sender, held.key, gradient, now_, out);
  if (admission.ok() && *admission == Admission::kPaused) held_[rank] = held;
  Absorb(std::move(out));
  return admission.status();
}

absl::Status FakeCohort::Close(Rank rank, const FakePush& push) {
  PushClosing closing{.loss_sum = push.loss_sum,
                      .correct = std::min<int64_t>(push.labels, 1),
                      .labels = push.labels,
                      .batch_norm_calls = {1},
                      .front_end_state = push.front_end_state,
                      .measures = push.measures};
  if (!told_[rank].global_normalization) {
    closing.moments = {{.layer = 0, .call = 0, .moments = push.moments}};
    const size_t steps = told_[rank].local_steps.size();
    if (steps > 0) {
      closing.batch_norm_calls.assign(steps, 1);
      closing.moments.front().weight = static_cast<double>(push.moments.count);
      closing.moments.front().updates = static_cast<int32_t>(steps);
    }
    return Close(rank, std::move(closing));
  }
  const size_t layers = setup_.layout.batch_norms.size();
  closing.batch_norm_calls.assign(layers, 0);
  for (const CallPlace& place : MadeBy(rank).places) {
    if (place.phase != ReducePhase::kForward || place.layer < 0) continue;
    const size_t at = static_cast<size_t>(place.part) * layers +
                      static_cast<size_t>(place.layer);
    if (at >= closing.batch_norm_calls.size()) {
      closing.batch_norm_calls.resize(layers *
                                      (static_cast<size_t>(place.part) + 1));
    }
    ++closing.batch_norm_calls[at];
  }
  return Close(rank, std::move(closing));
}

absl::Status FakeCohort::Close(Rank rank, PushClosing closing) {
  if (told_[rank].global_normalization && closing.contributions == 0) {
    closing.contributions = static_cast<int64_t>(MadeBy(rank).places.size());
  }
  return core_.Close(sender(rank), key(rank), std::move(closing), now_,
                     Absorbed(*this).out());
}

FakeCohort::Made& FakeCohort::MadeBy(Rank rank) {
  Made& made = made_[rank];
  const Assignment& told = told_[rank];
  if (made.incarnation != incarnations_[rank] || made.step != told.version ||
      made.attempt != told.attempt) {
    made = {.incarnation = incarnations_[rank],
            .step = told.version,
            .attempt = told.attempt};
  }
  return made;
}

void FakeCohort::Send(Rank rank, const FakePush& push,
                      const std::vector<int32_t>& partitions) {
  ExpectOk(Open(rank, push));
  for (int32_t partition : partitions) {
    ExpectOk(Gradient(rank, partition, partition == 0 ? push.w : push.b));
  }
}

void FakeCohort::PushBoth(const FakePush& first, const FakePush& second) {
  Push(kRank0, first);
  Push(kRank1, second);
}

effect::SendVerdict FakeCohort::CloseAgain(Rank rank, const PushKey& key) {
  Effects out;
  ExpectOk(core_.Close(
      sender(rank), key,
      {.batch_norm_calls = {1}, .moments = {{.moments = FakePush().moments}}},
      now_, out));
  const auto* sent =
      out.empty() ? nullptr : std::get_if<effect::SendVerdict>(&out.back());
  EXPECT_NE(sent, nullptr);
  return sent == nullptr ? effect::SendVerdict() : *sent;
}

void FakeCohort::Push(Rank rank, const FakePush& push) {
  Send(rank, push, {0, 1});
  // The verdict of the push changes the key of the rank.
  ExpectOk(Close(rank, push));
}

absl::Status FakeCohort::Reduce(Rank rank, const ReduceKey& key,
                                const Moments& moments) {
  return Reduce(rank, {{.key = key, .moments = moments}});
}

absl::Status FakeCohort::Reduce(Rank rank,
                                std::vector<MomentsMessage> messages) {
  Made& made = MadeBy(rank);
  for (const MomentsMessage& message : messages) {
    if (message.key.step == made.step && message.key.attempt == made.attempt) {
      made.places.insert(message.key.place);
    }
  }
  return core_.Reduce(sender(rank), std::move(messages), now_,
                      Absorbed(*this).out());
}

void FakeCohort::ReduceBoth(const ReduceKey& key, const Moments& first,
                            const Moments& second) {
  for (const Rank rank : {kRank0, kRank1}) {
    ExpectOk(Reduce(rank, key, rank == kRank0 ? first : second));
  }
}

absl::Status FakeCohort::Meet(Rank rank, const CallPlace& place,
                              const std::vector<int64_t>& extents) {
  const Assignment& told = told_[rank];
  return Reduce(
      rank,
      {{.key = {.step = told.version, .attempt = told.attempt, .place = place},
        .moments = {.count = 2, .first = {0}, .second = {0}},
        .extents = extents}});
}

absl::StatusOr<Assignment> FakeCohort::Report(Rank rank) {
  const int64_t samples = told_[rank].range.size();
  absl::StatusOr<Assignment> next =
      core_.ReportEvaluation(sender(rank), told_[rank].sequence,
                             {.samples = samples,
                              .loss_sum = static_cast<double>(samples),
                              .loss_weight = static_cast<double>(samples),
                              .correct = 1,
                              .labels = samples},
                             now_, Absorbed(*this).out());
  if (next.ok()) told_[rank] = *next;
  return next;
}

absl::StatusOr<Assignment> FakeCohort::ReportMoments(
    Rank rank, const std::vector<CallMoments>& of) {
  absl::StatusOr<Assignment> next = core_.ReportMoments(
      sender(rank), told_[rank].sequence, of, now_, Absorbed(*this).out());
  if (next.ok()) told_[rank] = *next;
  return next;
}

absl::StatusOr<CollectionAnswer> FakeCohort::Collect() {
  return core_.CollectStatistics(setup_.options.run_id, now_,
                                 Absorbed(*this).out());
}

void FakeCohort::EvaluateAll() {
  for (const auto& [rank, session] : sessions_) {
    while (told_[rank].kind == AssignmentKind::kEvaluate) {
      ExpectOk(Report(rank).status());
    }
  }
}

std::vector<float> FakeCohort::weights(int32_t partition) const {
  return ValuesOf(snapshot()->weights[static_cast<size_t>(partition)]);
}

int64_t FakeCohort::counter(const std::string& name) const {
  return ByName(core_.Status(now_).counts).at(name);
}

std::string FakeCohort::log() const {
  std::string text;
  for (const effect::Log& log : All<effect::Log>()) {
    absl::StrAppend(&text, log.text, "\n");
  }
  return text;
}

}  // namespace cohort
