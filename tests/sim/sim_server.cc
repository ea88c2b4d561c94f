#include "tests/sim/sim_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/ledger/gradient_budget.h"
#include "server/core/ledger/share_proposal.h"
#include "server/core/optimizer/workers_optimizer.h"
#include "tests/sim/sim_worker.h"

namespace cohort::sim {

SimServer::SimServer(World world, int32_t incarnation, const RunState* restored,
                     Reactions reactions)
    : CoreHost(world.checker),
      world_(world),
      incarnation_(incarnation),
      reactions_(std::move(reactions)),
      lifecycle_({.data_shards = world.shards.shards() > 1}),
      arrived_(world.shards.shards()) {
  StartCore(world.scenario.run, incarnation, restored);
  if (restored == nullptr) return;
  restored_model_ = restored->model;
  restored_snapshot_ = restored->snapshot;
  if (IsOver(*restored, OptionsOf(world.scenario.run, incarnation, restored))) {
    whole_ = restored->snapshot;
  }
}

bool SimServer::IsSurplus(const JoinRequest& request,
                          const absl::Status& status) const {
  // A server that lost the change may never have had the rank, or may be about
  // to add it.
  return request.rank->value() >=
             core_->Status(world_.scheduler.now()).workers_expected &&
         (absl::IsOutOfRange(status) || absl::IsInvalidArgument(status) ||
          absl::IsResourceExhausted(status));
}

absl::StatusOr<SharedSnapshot> SimServer::Read(std::optional<Version> version) {
  const absl::StatusOr<SharedVersion> read = core_->Read(version);
  if (!read.ok()) return read.status();
  world_.checker.OnRead(**read);
  return WithWeights(**read);
}

bool SimServer::HasSession(const Connection& connection) const {
  return sessions_.contains(connection.session);
}

void SimServer::Join(const SharedConnection& connection,
                     const JoinRequest& request) {
  sessions_[connection->session] = connection;
  const absl::Status status = Handle([&](Effects& out) {
    return core_->Join(connection->session, request, world_.scheduler.now(),
                       out);
  });
  if (status.ok()) return;
  sessions_.erase(connection->session);
  if (!absl::IsAborted(status) && !absl::IsAlreadyExists(status) &&
      !IsSurplus(request, status)) {
    world_.checker.Fail(absl::StrCat("join: ", status.ToString()));
  }
  world_.network.ToWorker(
      connection, StreamKind::kSession,
      [status](SimWorker& worker) { worker.OnRefused(status); });
  connection->stream(StreamKind::kSession).ended = true;
  connection->session_over = true;
}

// Before there is a model, the server would accept a change that the model will
// not fit, and then refuse the model, which would end the simulation.
bool SimServer::LeavesRoom(const SettingValues& values) const {
  CoordinatorOptions target = core_->options();
  for (const auto& [name, value] : values) {
    SetSetting(name, value, target).IgnoreError();
  }
  const RunSpec& run = world_.scenario.run;
  return CheckInflight(target, run.layout).ok() &&
         CheckPlanFits(target, run.plan).ok();
}

void SimServer::Change(const SettingValues& values) {
  if (core_->model() == nullptr && !LeavesRoom(values)) return;
  Handle([&](Effects& out) {
    // A change may be invalid after earlier ones; then it must leave the run
    // unharmed.
    core_->Change({.values = values}, world_.scheduler.now(), out)
        .IgnoreError();
  });
}

void SimServer::Heartbeat(const SharedConnection& connection) {
  // The speed of a rank differs from that of the next, and from time to time.
  const double seconds =
      0.1 * static_cast<double>(1 + (connection->session.value() * 7) % 5);
  // So many are enough for a decision, because simulated runs are short.
  for (size_t i = 0; i <= SpeedMeter::kReports; ++i) {
    core_->Heartbeat(connection->session, world_.scheduler.now(),
                     {.phases = {{"forward", seconds}}});
  }
}

void SimServer::Leave(const SharedConnection& connection) {
  Handle([&](Effects& out) {
    core_->Leave(connection->session, {.reason = "asked to"},
                 world_.scheduler.now(), out);
  });
  sessions_.erase(connection->session);
  connection->session_over = true;
}

void SimServer::SessionBroken(const SharedConnection& connection) {
  if (sessions_.erase(connection->session) == 0) return;
  Handle([&](Effects& out) {
    core_->SessionBroken(connection->session, world_.scheduler.now(), out);
  });
}

void SimServer::BeginRegister(const SharedConnection& connection,
                              const Sender& sender) {
  const RunSpec& run = world_.scenario.run;
  Handle([&](Effects& out) {
    Accept(core_->BeginRegister(sender, run.layout, run.plan,
                                world_.scheduler.now(), out),
           connection, StreamKind::kRegister, sender);
  });
}

absl::StatusOr<RegisterAnswer> SimServer::FinishRegister(
    const Sender& sender, std::vector<SharedFloats> values) {
  const RunSpec& run = world_.scenario.run;
  return CoreHost::FinishRegister(sender, run.layout, run.plan,
                                  std::move(values), world_.scheduler.now());
}

SimServer::Places& SimServer::PlacesOf(StreamKind kind) {
  if (kind == StreamKind::kRegister) return registers_;
  return kind == StreamKind::kExchange ? exchanges_ : reduces_;
}

SharedConnection SimServer::Find(const Places& places, Rank rank,
                                 Incarnation incarnation) const {
  const auto at = places.find(rank);
  const bool here = at != places.end() && at->second.incarnation == incarnation;
  return here ? at->second.connection : nullptr;
}

void SimServer::ToRank(StreamKind kind, Rank rank, Incarnation incarnation,
                       Network::WorkerEvent event) {
  const SharedConnection to = Find(PlacesOf(kind), rank, incarnation);
  if (to != nullptr) world_.network.ToWorker(to, kind, std::move(event));
}

void SimServer::ToSession(SessionId session, Network::WorkerEvent event) {
  const auto at = sessions_.find(session);
  if (at == sessions_.end()) return;
  world_.network.ToWorker(at->second, StreamKind::kSession, std::move(event));
}

void SimServer::Accept(const absl::Status& status,
                       const SharedConnection& connection, StreamKind kind,
                       const Sender& sender) {
  if (!status.ok()) {
    if (!absl::IsAborted(status)) {
      world_.checker.Fail(absl::StrCat("refused: ", status.ToString()));
    }
    world_.network.EndFromServer(connection, kind);
    return;
  }
  Place& place = PlacesOf(kind)[sender.rank];
  if (place.connection == connection) return;
  if (place.connection != nullptr) {
    if (place.incarnation == sender.incarnation &&
        place.connection->number > connection->number) {
      world_.network.EndFromServer(connection, kind);
      return;
    }
    world_.network.EndFromServer(place.connection, kind);
  }
  place = {.incarnation = sender.incarnation, .connection = connection};
}

// As in the service, a stream is registered before the effects of its message
// are carried out.
void SimServer::Open(const SharedConnection& connection, const Sender& sender,
                     const PushKey& key, const PushOpening& opening) {
  if (IsHeld(connection, [=](SimServer& server) {
        server.Open(connection, sender, key, opening);
      })) {
    return;
  }
  Handle([&](Effects& out) {
    Accept(core_->Open(sender, key, opening, world_.scheduler.now(), out),
           connection, StreamKind::kExchange, sender);
  });
  if (IsShared()) Offer(sender.rank);
}

// As in the service, nothing more of a stream is read until the core has
// answered.
void SimServer::Gradient(const SharedConnection& connection,
                         const Sender& sender, const PushKey& key,
                         const ReceivedGradient& message) {
  if (IsHeld(connection, [=](SimServer& server) {
        server.Gradient(connection, sender, key, message);
      })) {
    return;
  }
  RemoteGradient gradient{
      .sender = sender, .key = key, .gradient = message.about};
  gradient.gradient.bytes = message.bytes.size_bytes();
  gradient.gradient.ticket = Stage(message);
  waiting_[gradient.gradient.ticket] = {.connection = connection,
                                        .sender = sender};
  held_.try_emplace(connection->number);
  Arrived(0, std::move(gradient));
}

void SimServer::OnTaken(int64_t ticket) {
  const Waiting was = waiting_.extract(ticket).mapped();
  Accept(absl::OkStatus(), was.connection, StreamKind::kExchange, was.sender);
  // Later, because effects of this event may follow.
  world_.shards.OnServer(
      absl::ZeroDuration(),
      [to = was.connection](SimServer& server) { server.Resume(to); });
}

bool SimServer::IsHeld(const SharedConnection& connection, Message message) {
  const auto held = held_.find(connection->number);
  if (held == held_.end()) return false;
  held->second.push_back(std::move(message));
  return true;
}

void SimServer::Resume(const SharedConnection& connection) {
  const auto held = held_.find(connection->number);
  if (held == held_.end()) return;
  std::deque<Message> messages = std::move(held->second);
  held_.erase(held);
  const Connection::Stream& stream = connection->stream(StreamKind::kExchange);
  for (Message& message : messages) {
    // If the stream is paused again, the rest is queued again.
    if (!stream.cut && !stream.ended) message(*this);
  }
}

void SimServer::Close(const SharedConnection& connection, const Sender& sender,
                      const PushKey& key, const PushClosing& closing) {
  if (IsHeld(connection, [=](SimServer& server) {
        server.Close(connection, sender, key, closing);
      })) {
    return;
  }
  Handle([&](Effects& out) {
    Accept(core_->Close(sender, key, closing, world_.scheduler.now(), out),
           connection, StreamKind::kExchange, sender);
  });
}

void SimServer::Reduce(const SharedConnection& connection, const Sender& sender,
                       const ReduceKey& key, const Moments& moments) {
  Handle([&](Effects& out) {
    Accept(core_->Reduce(sender, {{.key = key, .moments = moments}},
                         world_.scheduler.now(), out),
           connection, StreamKind::kReduce, sender);
  });
}

void SimServer::MissesState(const Sender& sender, const PushKey& key) {
  Handle([&](Effects& out) {
    // Refused once another policy is in force, or another incarnation.
    core_->MissesState(sender, key, /*lost=*/false, world_.scheduler.now(), out)
        .IgnoreError();
  });
}

absl::StatusOr<Assignment> SimServer::Report(const Sender& sender,
                                             Sequence sequence,
                                             const EvaluationSums& sums) {
  return Handle([&](Effects& out) {
    return core_->ReportEvaluation(sender, sequence, sums,
                                   world_.scheduler.now(), out);
  });
}

absl::StatusOr<Assignment> SimServer::ReportMoments(
    const Sender& sender, Sequence sequence, std::vector<CallMoments> calls) {
  return Handle([&](Effects& out) {
    return core_->ReportMoments(sender, sequence, std::move(calls),
                                world_.scheduler.now(), out);
  });
}

void SimServer::Tick() {
  Handle([&](Effects& out) { core_->Tick(world_.scheduler.now(), out); });
  for (Rank rank : arrived_.Overdue(world_.scheduler.now())) Offer(rank);
}

// The result looks up its server when it is done, because that may be gone by
// then.
template <typename Result>
void SimServer::DoneLater(Result done) {
  world_.network.AfterFold(incarnation_,
                           [done = std::move(done)](SimServer& server) {
                             server.Done(done, server.world_.scheduler.now());
                           });
}

void SimServer::EndData(StreamKind kind, Rank rank, Incarnation below) {
  Places& places = PlacesOf(kind);
  const auto at = places.find(rank);
  if (at == places.end() || at->second.incarnation >= below) return;
  world_.network.EndFromServer(at->second.connection, kind);
  places.erase(at);
}

void SimServer::On(const effect::Joined& e) {
  EndData(StreamKind::kRegister, e.rank, e.incarnation);
  EndData(StreamKind::kExchange, e.rank, e.incarnation);
  EndData(StreamKind::kReduce, e.rank, e.incarnation);
  ToSession(e.session,
            [e](SimWorker& worker) { worker.OnJoined(e.rank, e.incarnation); });
}

void SimServer::On(const effect::EndSession& e) {
  const auto at = sessions_.find(e.session);
  if (at == sessions_.end()) return;
  const SharedConnection connection = at->second;
  sessions_.erase(at);
  for (StreamKind kind : {StreamKind::kSession, StreamKind::kRegister,
                          StreamKind::kExchange, StreamKind::kReduce}) {
    world_.network.EndFromServer(connection, kind);
  }
}

void SimServer::On(const effect::Notify& e) {
  ToSession(e.session,
            [e](SimWorker& worker) { worker.OnAssignment(e.assignment); });
}

void SimServer::On(const effect::StepAborted& e) {
  ToSession(e.session, [e](SimWorker& worker) {
    worker.OnStepAborted(e.step, e.attempt);
  });
}

void SimServer::On(const effect::RegisterAnswered& e) {
  if (!e.answer.ok()) {
    if (Find(registers_, e.rank, e.incarnation) == nullptr) return;
    return world_.checker.Fail(
        absl::StrCat("register: ", e.answer.status().ToString()));
  }
  ToRank(StreamKind::kRegister, e.rank, e.incarnation,
         [e](SimWorker& worker) { worker.OnRegisterAnswered(*e.answer); });
}

void SimServer::On(const effect::ReduceResult& e) {
  ToRank(StreamKind::kReduce, e.rank, e.incarnation,
         [e](SimWorker& worker) { worker.OnReduced(e.key, *e.moments); });
}

void SimServer::On(const effect::ReduceAborted& e) {
  ToRank(StreamKind::kReduce, e.rank, e.incarnation,
         [e](SimWorker& worker) { worker.OnReduceAborted(e.key); });
}

void SimServer::OnWeights(const command::SendWeights& to,
                          const WeightsMessage& message) {
  ToRank(StreamKind::kExchange, to.rank, to.incarnation,
         [message](SimWorker& worker) { worker.OnWeights(message); });
}

void SimServer::On(const effect::SendVerdict& e) {
  ToRank(StreamKind::kExchange, e.rank, e.incarnation,
         [e](SimWorker& worker) { worker.OnVerdict(e); });
}

void SimServer::On(const effect::ResumeGradients& e) {
  world_.shards.OnServer(
      world_.network.Delay(),
      [rank = e.rank](SimServer& server) { server.Offer(rank); });
}

}  // namespace cohort::sim
