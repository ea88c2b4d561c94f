#include "tests/fuzz/core_driver.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "common/bfloat16.h"
#include "tests/sim/sim_model.h"

namespace cohort::fuzz {
namespace {

using absl::StatusCode;

constexpr size_t kClientsMax = 12;
constexpr absl::Duration kSteps[] = {
    absl::ZeroDuration(),    absl::Milliseconds(1),    absl::Milliseconds(50),
    absl::Milliseconds(350), absl::Milliseconds(1100), absl::Hours(11)};

sim::Scenario MakeScenario(Reader& reader) {
  const int32_t number =
      (reader.Byte() | reader.Byte() << 8) % sim::kRunSpecCount;
  sim::Scenario scenario = sim::MakeUndisturbed(number);
  const uint8_t variant = reader.Byte();
  if (variant % 2 != 0) scenario.run.coordinator.moments_inline_max = 1;
  scenario.run.coordinator.max_steps = variant / 2 % 4;
  scenario.in_order = false;
  scenario.strangers = true;
  return scenario;
}

Moments MomentsOf(const BatchNormSpec& layer, int64_t count, Rank rank) {
  const auto channels = static_cast<size_t>(layer.channels);
  return {.count = count,
          .first = std::vector<double>(channels, 0.5 + rank.value()),
          .second = std::vector<double>(channels, 1.0)};
}

PushKey KeyOf(const Assignment& work) {
  return {.sequence = work.sequence, .attempt = work.attempt};
}

}  // namespace

CoreDriver::CoreDriver(Reader& reader)
    : CoreHost(run_checker_),
      reader_(reader),
      scenario_(MakeScenario(reader)),
      run_checker_(scenario_),
      clients_(1) {
  clients_.front().sender = {.run_id = run().coordinator.run_id,
                             .rank = Rank(0),
                             .incarnation = Incarnation(1)};
  Restart();
}

void CoreDriver::Run() {
  while (!reader_.empty() && !over()) {
    Event(reader_.Byte() % 16);
    checker_.AfterEvent(*core_);
    CheckFailure();
    COHORT_CHECK(core_->inflight_bytes() >= 0, "a negative number of bytes");
  }
  if (!over()) checker_.CheckCounts(core_->Status(now_));
  CheckFailure();
}

void CoreDriver::Event(uint8_t kind) {
  switch (kind) {
    case 0:
    case 1:
    case 2:
      return Proceed(Chosen());
    case 3:
      // All of them, so that a short input also gets far.
      for (size_t i = 0; i < clients_.size() && !over(); ++i) {
        Proceed(clients_[i]);
      }
      return;
    case 4:
    case 5:
      return EndFold();
    case 6:
      for (int i = 0; i < 8; ++i) EndFold();
      return;
    case 7:
    case 8:
      return Join();
    case 9:
      return Register(Chosen());
    case 10:
      return PassTime();
    case 11:
      return EndSession();
    case 12:
    case 13:
      return Intrude();
    case 14:
      return Operate();
    default:
      if (reader_.Below(4) == 0) Restart();
  }
}

CoreDriver::Client& CoreDriver::Chosen() {
  return clients_[reader_.Byte() % clients_.size()];
}

CoreDriver::Client* CoreDriver::FindSession(SessionId session) {
  for (Client& client : clients_) {
    if (client.connected && client.session == session) return &client;
  }
  return nullptr;
}

void CoreDriver::CheckFailure() {
  if (!checker_.failure().has_value()) return;
  const std::string& failure = *checker_.failure();
  // The pushes in progress when a run ends early are answered as dropped.
  const bool ended_early =
      absl::StartsWith(failure, "the run ended early") ||
      absl::StrContains(failure, " is dropped: the run is over: ");
  // Such small batches are refused.
  const bool too_few = absl::StrContains(failure, "has one value a channel");
  COHORT_CHECK((may_end_early_ || too_few) && over() && ended_early,
               absl::StrCat(failure, "; ", sim::Describe(scenario_)));
}

// ---- sessions

void CoreDriver::Join() {
  const uint8_t how = reader_.Byte();
  const auto at = static_cast<size_t>(how / 16);
  const auto rank = Rank(how % 16 % sim::kRanksMax);
  const SessionId session(next_session_++);
  JoinRequest request{
      .rank = rank,
      .batch_size = run().batch_sizes[static_cast<size_t>(rank.value())]};
  int64_t returning = -1;
  if (at > 0 && at < clients_.size()) {
    // A client comes back after its stream broke, or while it is still there.
    returning = static_cast<int64_t>(at);
    const Sender& sender = clients_[at].sender;
    request.rank = sender.rank;
    request.run_id = sender.run_id;
    request.incarnation = sender.incarnation;
    request.batch_size =
        run().batch_sizes[static_cast<size_t>(sender.rank.value())];
  } else if (clients_.size() >= kClientsMax) {
    return;
  }
  joins_[session] = returning;
  const absl::Status status = Handle(
      [&](Effects& out) { return core_->Join(session, request, now_, out); });
  RequireCode(status,
              {StatusCode::kAlreadyExists, StatusCode::kResourceExhausted,
               StatusCode::kInvalidArgument, StatusCode::kFailedPrecondition,
               StatusCode::kAborted, StatusCode::kOutOfRange});
}

void CoreDriver::EndSession() {
  Client& client = Chosen();
  const SessionId session = client.session;
  client.connected = false;
  switch (reader_.Below(3)) {
    case 0:
      return Handle([&](Effects& out) {
        core_->Leave(session, {.reason = "asked to"}, now_, out);
      });
    case 1:
      return Handle([&](Effects& out) {
        core_->Leave(session,
                     {.reason = "done", .kind = Departure::Kind::kDataEnded},
                     now_, out);
      });
    default:
      return Handle(
          [&](Effects& out) { core_->SessionBroken(session, now_, out); });
  }
}

void CoreDriver::Register(Client& client) {
  if (!client.asked_for_values) {
    const absl::Status status = Handle([&](Effects& out) {
      return core_->BeginRegister(client.sender, run().layout, run().plan, now_,
                                  out);
    });
    return RequireCode(status,
                       {StatusCode::kInvalidArgument, StatusCode::kAborted,
                        StatusCode::kFailedPrecondition});
  }
  const absl::StatusOr<RegisterAnswer> answer = FinishRegister(
      client.sender, run().layout, run().plan,
      sim::InitialValues(
          run(),
          MakePartitions(run().layout, run().coordinator.partition_bytes),
          client.sender.rank),
      now_);
  RequireCode(answer.status(),
              {StatusCode::kInvalidArgument, StatusCode::kAborted,
               StatusCode::kFailedPrecondition});
  client.asked_for_values = false;
  client.registered = answer.ok();
}

// ---- the protocol, one message further

void CoreDriver::Take(Client& client, const Assignment& assignment) {
  if (assignment.kind == AssignmentKind::kWait) return;
  if (assignment.kind == AssignmentKind::kFinished) {
    client.work.reset();
    return;
  }
  told_[{client.sender.rank, KeyOf(assignment)}] = assignment;
  if (client.work.has_value() && KeyOf(*client.work) >= KeyOf(assignment)) {
    return;
  }
  client.work = assignment;
  client.sent = 0;
}

void CoreDriver::Proceed(Client& client) {
  core_->Heartbeat(client.session, now_);
  if (!client.registered) return Register(client);
  if (!client.work.has_value()) return;
  const Assignment work = *client.work;
  switch (work.kind) {
    case AssignmentKind::kTrain:
      return ProceedStep(client, work);
    case AssignmentKind::kEvaluate:
      return Report(client.sender, work.sequence, work.range.size());
    case AssignmentKind::kCollectMoments:
      return ReportMoments(client.sender, work.sequence, work.range.size());
    default:
      return;
  }
}

void CoreDriver::ProceedStep(Client& client, const Assignment& work) {
  const std::vector<sim::BatchNormCall> calls = sim::CallsOf(run().layout);
  const size_t meetings = work.global_normalization ? calls.size() : 0;
  size_t at = client.sent++;
  const auto contribute = [&](ReducePhase phase, size_t call) {
    Contribute(client.sender,
               {.step = work.version,
                .attempt = work.attempt,
                .place = {.layer = calls[call].layer,
                          .call = calls[call].call,
                          .phase = phase}},
               work.range.size());
  };
  if (at < meetings) return contribute(ReducePhase::kForward, at);
  at -= meetings;
  if (at == 0) {
    client.read = work.version;
    if (work.members.empty()) client.read = (*core_->Read({}))->version;
    return Open(client.sender, KeyOf(work),
                {.version = client.read,
                 .samples = work.range.size(),
                 .loss_weight = sim::LossWeight(work.range)});
  }
  at -= 1;
  if (at < meetings) {
    return contribute(ReducePhase::kBackward, meetings - 1 - at);
  }
  at -= meetings;
  const std::vector<int32_t> order = SendOrder(core_->model()->partitions);
  if (at < order.size()) return Gradient(client.sender, KeyOf(work), order[at]);
  Close(client.sender, KeyOf(work), !work.global_normalization);
}

void CoreDriver::Report(const Sender& sender, Sequence sequence,
                        int64_t samples) {
  const absl::StatusOr<Assignment> next = Handle([&](Effects& out) {
    return core_->ReportEvaluation(sender, sequence,
                                   {.samples = samples,
                                    .loss_sum = 0.5,
                                    .loss_weight = static_cast<double>(samples),
                                    .correct = samples,
                                    .labels = samples},
                                   now_, out);
  });
  RequireCode(next.status(),
              {StatusCode::kInvalidArgument, StatusCode::kAborted,
               StatusCode::kFailedPrecondition});
}

void CoreDriver::ReportMoments(const Sender& sender, Sequence sequence,
                               int64_t samples) {
  std::vector<CallMoments> moments;
  for (const sim::BatchNormCall& call : sim::CallsOf(run().layout)) {
    moments.push_back(
        {.layer = call.layer,
         .call = call.call,
         .moments = MomentsOf(
             run().layout.batch_norms[static_cast<size_t>(call.layer)], samples,
             sender.rank)});
  }
  const absl::StatusOr<Assignment> next = Handle([&](Effects& out) {
    return core_->ReportMoments(sender, sequence, moments, now_, out);
  });
  RequireCode(next.status(),
              {StatusCode::kInvalidArgument, StatusCode::kAborted,
               StatusCode::kFailedPrecondition});
}

void CoreDriver::Contribute(const Sender& sender, const ReduceKey& key,
                            int64_t count) {
  const auto layers = static_cast<int32_t>(run().layout.batch_norms.size());
  const BatchNormSpec& layer = run().layout.batch_norms[static_cast<size_t>(
      std::clamp(key.place.layer, 0, layers - 1))];
  const absl::Status status = Handle([&](Effects& out) {
    return core_->Reduce(
        sender, {{.key = key, .moments = MomentsOf(layer, count, sender.rank)}},
        now_, out);
  });
  RequireCode(status, {StatusCode::kInvalidArgument, StatusCode::kAborted,
                       StatusCode::kFailedPrecondition,
                       StatusCode::kResourceExhausted});
}

void CoreDriver::Open(const Sender& sender, const PushKey& key,
                      const PushOpening& opening) {
  const absl::Status status = Handle([&](Effects& out) {
    return core_->Open(sender, key, opening, now_, out);
  });
  RequireCode(status, {StatusCode::kInvalidArgument, StatusCode::kAborted,
                       StatusCode::kFailedPrecondition});
}

void CoreDriver::Gradient(const Sender& sender, const PushKey& key,
                          int32_t partition) {
  auto block = std::make_shared<sim::GradientBlock>();
  block->rank = sender.rank;
  block->incarnation = sender.incarnation;
  block->key = key;
  const auto told = told_.find({sender.rank, key});
  if (told != told_.end()) {
    block->epoch = told->second.data_epoch;
    block->ranges = {told->second.range};
  }
  const SharedModel model = core_->model();
  const auto count =
      model == nullptr ? 0 : static_cast<int32_t>(model->partitions.size());
  const int64_t elements =
      partition >= 0 && partition < count
          ? model->partitions[static_cast<size_t>(partition)].elements
          : 3;
  for (int64_t i = 0; i < elements; ++i) {
    block->values.push_back(0.01f * static_cast<float>(i + 1));
  }
  absl::Span<const std::byte> bytes = absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(block->values.data()),
      block->values.size() * sizeof(float));
  ReceivedGradient message{.about = {.partition = partition}};
  if (told != told_.end()) message.about.type = told->second.gradients;
  if (message.about.type == ElementType::kBFloat16) {
    block->halves.resize(bytes.size() / 2);
    RoundToBFloat16(bytes.data(), elements, block->halves.data());
    bytes = block->halves;
  }
  message.bytes = ByteRope(bytes, block);
  GradientArrival arrival = message.about;
  arrival.bytes = message.bytes.size_bytes();
  arrival.sampled_checksum = message.bytes.SampledChecksum();
  arrival.ticket = Stage(message);
  const absl::StatusOr<Admission> taken = Handle([&](Effects& out) {
    return core_->Gradient(sender, key, arrival, now_, out);
  });
  // One that is paused is sent again, if at all.
  if (!taken.ok() || *taken == Admission::kPaused) Refuse(arrival.ticket);
  RequireCode(taken.status(),
              {StatusCode::kInvalidArgument, StatusCode::kAborted,
               StatusCode::kFailedPrecondition});
}

void CoreDriver::Close(const Sender& sender, const PushKey& key, bool local) {
  PushClosing closing{.loss_sum = 1,
                      .correct = 1,
                      .labels = 2,
                      .batch_norm_calls = sim::CallCounts(run().layout)};
  const auto told = told_.find({sender.rank, key});
  const int64_t samples = told == told_.end() ? 1 : told->second.range.size();
  for (const sim::BatchNormCall& call : sim::CallsOf(run().layout)) {
    if (!local) break;
    closing.moments.push_back(
        {.layer = call.layer,
         .call = call.call,
         .moments = MomentsOf(
             run().layout.batch_norms[static_cast<size_t>(call.layer)], samples,
             sender.rank)});
  }
  const absl::Status status = Handle([&](Effects& out) {
    return core_->Close(sender, key, std::move(closing), now_, out);
  });
  RequireCode(status, {StatusCode::kInvalidArgument, StatusCode::kAborted,
                       StatusCode::kFailedPrecondition});
}

// ---- the protocol broken

void CoreDriver::Intrude() {
  const Client& client = Chosen();
  const uint8_t who = reader_.Byte();
  const uint8_t what = reader_.Byte();
  // Small steps around what would be right, which is the middle.
  const auto off = [this] { return reader_.Below(5) - 2; };
  Sender sender = client.sender;
  if (who % 8 == 1) sender.run_id = "another";
  if (who % 8 == 2) sender.rank = Rank(sender.rank.value() + off());
  if (who % 8 == 3) {
    sender.incarnation = Incarnation(sender.incarnation.value() + off());
  }
  PushKey key;
  int64_t samples = 1;
  if (client.work.has_value()) {
    key = KeyOf(*client.work);
    samples = client.work->range.size();
  }
  key.sequence = Sequence(key.sequence.value() + int64_t{who / 8 % 2} * off());
  key.attempt = Attempt(key.attempt.value() + (who / 16 % 2) * off());
  switch (what % 8) {
    case 0:
      return Open(sender, key,
                  {.version = Version(client.read.value() + off()),
                   .samples = samples + off(),
                   .loss_weight = 1.0 * off()});
    case 1:
    case 2:
      return Gradient(sender, key, off());
    case 3:
      return Close(sender, key, what / 8 % 2 == 0);
    case 4:
      // Contributions that were not made before may void a step, twice.
      may_end_early_ = true;
      return Contribute(
          sender,
          {.step = Version(client.read.value() + off()),
           .attempt = key.attempt,
           .place = {.layer = off(),
                     .call = off(),
                     .phase = static_cast<ReducePhase>(what / 8 % 2)}},
          samples + off());
    case 5:
      return Report(sender, key.sequence, samples + off());
    case 6:
      return ReportMoments(sender, key.sequence, samples + off());
    default:
      RequireCode(core_->RegisterProgress(sender, now_),
                  {StatusCode::kAborted, StatusCode::kFailedPrecondition,
                   StatusCode::kInvalidArgument});
  }
}

// ---- pools, time and people

void CoreDriver::EndFold() {
  if (!moments_.empty()) {
    MomentsFold done = RunMomentsFold(std::move(moments_.front()));
    moments_.pop_front();
    return Done(std::move(done), now_);
  }
  if (!updates_.empty()) {
    StatisticsUpdate done = RunStatisticsUpdate(std::move(updates_.front()));
    updates_.pop_front();
    return Done(std::move(done), now_);
  }
  if (folds_.empty()) return;
  const auto at = static_cast<std::ptrdiff_t>(reader_.Byte() % folds_.size());
  const FoldJob job = folds_[static_cast<size_t>(at)];
  folds_.erase(folds_.begin() + at);
  Done(Fold(job), now_);
}

void CoreDriver::PassTime() {
  const uint8_t how = reader_.Byte();
  const absl::Duration step = kSteps[how % std::size(kSteps)];
  if (step > absl::Hours(1)) may_end_early_ = true;
  now_ += step;
  for (const Client& client : clients_) {
    if (how / 8 % 2 == 0) core_->Heartbeat(client.session, now_);
  }
  Handle([&](Effects& out) { core_->Tick(now_, out); });
}

void CoreDriver::Operate() {
  const uint8_t what = reader_.Byte();
  const Rank rank(what / 8 % 8 - 1);
  const auto change = [this](const SettingValues& values) {
    const absl::StatusOr<ChangeAnswer> answer = Handle([&](Effects& out) {
      return core_->Change({.values = values}, now_, out);
    });
    RequireCode(answer.status(), {StatusCode::kInvalidArgument,
                                  StatusCode::kFailedPrecondition});
  };
  switch (what % 8) {
    case 0:
      return RequireCode(
          Handle([&](Effects& out) {
            return core_->Evict(rank, "slow", now_, out);
          }),
          {StatusCode::kInvalidArgument, StatusCode::kFailedPrecondition});
    case 1:
      return RequireCode(
          Handle([&](Effects& out) {
            return core_->DrainWorker(rank, "moves", now_, out);
          }),
          {StatusCode::kInvalidArgument, StatusCode::kFailedPrecondition});
    case 2:
      return RequireCode(Handle([&](Effects& out) {
                           return core_->CollectStatistics("", now_, out);
                         }).status(),
                         {StatusCode::kFailedPrecondition});
    case 3:
      return change({{"workers", absl::StrCat(1 + what / 8 % 7)}});
    case 4:
      return change({{"aggregation", what / 8 % 2 == 0 ? "sync" : "async"},
                     {"normalization", "auto"},
                     {"bn_statistics", "auto"},
                     {"min_pushes", "0"}});
    case 5:
      return change({{"staleness", what / 8 % 2 == 0 ? "drop" : "keep"},
                     {"max_staleness", absl::StrCat(what / 16 % 4)}});
    case 6:
      return change(
          {{"on_worker_loss", what / 8 % 2 == 0 ? "wait" : "continue"}});
    default:
      may_end_early_ = true;
      if (what / 8 % 4 != 0) return;
      return Handle([&](Effects& out) { core_->Drain("asked to", now_, out); });
  }
}

void CoreDriver::Restart() {
  if (core_ != nullptr) {
    checker_.CheckCounts(core_->Status(now_));
    checker_.OnServerGone();
  }
  const RunState* restored = checker_.checkpoint();
  StartCore(run(), ++server_incarnation_, restored);
  folds_.clear();
  moments_.clear();
  updates_.clear();
  joins_.clear();
  for (Client& client : clients_) {
    client.connected = false;
    client.registered = false;
    client.asked_for_values = false;
    client.work.reset();
  }
}

// ---- effects

void CoreDriver::On(const effect::Joined& e) {
  const auto join = joins_.find(e.session);
  COHORT_CHECK(join != joins_.end(), "a session that was not opened joined");
  const int64_t returning = join->second;
  joins_.erase(join);
  if (returning < 0) clients_.emplace_back();
  Client& client = returning < 0 ? clients_.back()
                                 : clients_[static_cast<size_t>(returning)];
  COHORT_CHECK(returning < 0 || client.sender.incarnation == e.incarnation,
               "let in again under another incarnation");
  client.session = e.session;
  client.connected = true;
  client.sender = {.run_id = run().coordinator.run_id,
                   .rank = e.rank,
                   .incarnation = e.incarnation};
}

void CoreDriver::On(const effect::EndSession& e) {
  COHORT_CHECK(!e.status.ok(), "a session ends without a reason");
  Client* client = FindSession(e.session);
  if (client != nullptr) client->connected = false;
}

void CoreDriver::On(const effect::Notify& e) {
  Client* client = FindSession(e.session);
  if (client != nullptr) Take(*client, e.assignment);
}

void CoreDriver::On(const effect::RegisterAnswered& e) {
  for (Client& client : clients_) {
    if (client.sender.rank != e.rank ||
        client.sender.incarnation != e.incarnation) {
      continue;
    }
    client.asked_for_values = e.answer.ok() && e.answer->send_values;
    client.registered = e.answer.ok() && !e.answer->send_values;
  }
}

void CoreDriver::On(const effect::SendVerdict& e) {
  COHORT_CHECK(std::any_of(clients_.begin(), clients_.end(),
                           [&e](const Client& client) {
                             return client.sender.rank == e.rank &&
                                    client.sender.incarnation == e.incarnation;
                           }),
               "a verdict for a client that was never let in");
  for (Client& client : clients_) {
    if (client.sender.rank == e.rank &&
        client.sender.incarnation == e.incarnation) {
      Take(client, e.verdict.next);
    }
  }
}

}  // namespace cohort::fuzz
