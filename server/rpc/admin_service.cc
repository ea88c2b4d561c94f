#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "common/log/log.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "common/printable.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "common/wire/announced_checksum.h"
#include "common/wire/status.h"
#include "server/rpc/caller.h"
#include "server/rpc/change_waits.h"
#include "server/rpc/queued_writes.h"
#include "server/rpc/services.h"
#include "server/status/run_status.h"

namespace cohort {
namespace {

constexpr int64_t kIntervalMsMin = 100;
constexpr int64_t kIntervalMsMax = 3'600'000;
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr size_t kReasonLengthMax = 1024;
constexpr absl::Duration kPatienceMax = absl::Hours(24);
// gRPC 1.51 has one limit for all methods of a server, which is that of
// partitions. The limit on an operator's requests is therefore checked after
// they arrive.
constexpr size_t kRequestBytesMax = size_t{64} << 10;
// Bytes of a name, of a text, and of a setting's value. A list of frozen slices
// is long; a refusal that repeats it has to fit into gRPC's 8 KiB of metadata.
constexpr size_t kNameLengthMax = 64;
constexpr size_t kTextLengthMax = 256;
constexpr size_t kValueLengthMax = 4096;

absl::Status CheckLength(absl::string_view what, size_t seen, size_t max) {
  if (seen <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": got ", seen, ", want at most ", max));
}

bool AnnouncesChecksum(const grpc::CallbackServerContext& context) {
  return context.client_metadata().count(kChecksumAnnounced) > 0;
}

// Errors: those of TakeAnnouncedChecksum.
template <typename Request>
absl::Status CheckUndamaged(Request request, bool announced) {
  return TakeAnnouncedChecksum(&request, announced);
}

// How long the answer to a call may take, so that it comes before the client
// gives up.
absl::Duration PatienceOf(const grpc::CallbackServerContext& context) {
  constexpr absl::Duration kMargin = absl::Seconds(1);
  const absl::Time until = absl::FromChrono(context.deadline());
  return std::clamp(until - absl::Now() - kMargin, absl::ZeroDuration(),
                    kPatienceMax);
}

// "anna (spiffe://example.org/cohort/demo/operator)".
std::string AuthorOf(const std::string& said, const Caller& caller) {
  return said.empty() ? caller.name
                      : absl::StrCat(said, " (", caller.name, ")");
}

absl::StatusOr<ChangeRequest> ChangeFrom(const v1::SetPolicyRequest& proto) {
  COHORT_RETURN_IF_ERROR(CheckLength("length of the run id",
                                     proto.run_id().size(), kNameLengthMax));
  COHORT_RETURN_IF_ERROR(CheckLength("length of the author",
                                     proto.author().size(), kTextLengthMax));
  COHORT_RETURN_IF_ERROR(CheckLength("length of the reason",
                                     proto.reason().size(), kTextLengthMax));
  ChangeRequest change{.run_id = proto.run_id(),
                       .dry_run = proto.dry_run(),
                       .note = {.author = Printable(proto.author()),
                                .reason = Printable(proto.reason())}};
  for (const auto& [name, value] : proto.settings()) {
    COHORT_RETURN_IF_ERROR(
        CheckLength("length of a setting's name", name.size(), kNameLengthMax));
    COHORT_RETURN_IF_ERROR(CheckLength(absl::StrCat("length of --", name),
                                       value.size(), kValueLengthMax));
    change.values[name] = value;
  }
  return change;
}

v1::Status StatusOf(const AdminActions& actions) {
  v1::Status status = RunStatus(*actions.figures(), StatusParts::kNone);
  if (actions.ops_address != nullptr) {
    status.set_ops_address(actions.ops_address());
  }
  if (actions.audit != nullptr) {
    status.set_audit_problem(actions.audit->problem());
  }
  const absl::Time end = actions.certificate_end == nullptr
                             ? absl::InfiniteFuture()
                             : actions.certificate_end();
  if (end != absl::InfiniteFuture()) {
    status.set_certificate_end_unix_s(absl::ToUnixSeconds(end));
  }
  return status;
}

class WatchReactor final
    : public QueuedWrites<grpc::ServerWriteReactor<v1::Status>, v1::Status,
                          Stream> {
 public:
  // `actions` must outlive the stream.
  WatchReactor(RunHost& run, const AdminActions& actions,
               absl::Duration interval)
      : QueuedWrites(run.partitions().streams()),
        run_(run),
        actions_(actions),
        interval_(interval) {}

  void Start(grpc::CallbackServerContext* context) {
    Begin(context, [this] {
      if (interval_ >= absl::Milliseconds(kIntervalMsMin) &&
          interval_ <= absl::Milliseconds(kIntervalMsMax)) {
        PartitionsHost& host = run_.partitions();
        return host.Admit(host.streams(), shared_from_this(),
                          /*speaks=*/false);
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "interval_ms: got ", absl::ToInt64Milliseconds(interval_), ", want ",
          kIntervalMsMin, " to ", kIntervalMsMax));
    });
  }

  // Sends the status if it is due and the last one has been read. Returns
  // false once the stream is over. Called by one thread.
  bool Poll(Instant now) {
    if (ended()) return false;
    if (now < due_ || !idle()) return true;
    due_ = now + interval_;
    Send(StatusOf(actions_));
    return true;
  }

  void OnCancel() override { End(absl::CancelledError("cancelled")); }

 private:
  RunHost& run_;
  const AdminActions& actions_;
  const absl::Duration interval_;
  Instant due_;
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(RunHost& run, AdminActions actions)
      : run_(run),
        actions_(std::move(actions)),
        blocking_({.name = "admin", .threads = 1, .queue_max = 64}),
        saving_({.name = "admin-save", .threads = 1, .queue_max = 64}),
        poller_("watch", kPollInterval, [this] { Poll(); }) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::Status* reply) override {
    return Serve(context, *request, [&] {
      if (actions_.on_status != nullptr) actions_.on_status();
      *reply = StatusOf(actions_);
      reply->set_caller(IdentityNameOf(*context));
      return absl::OkStatus();
    });
  }

  grpc::ServerWriteReactor<v1::Status>* WatchStatus(
      grpc::CallbackServerContext* context,
      const v1::WatchStatusRequest* request) override {
    const auto watch = std::make_shared<WatchReactor>(
        run_, actions_, absl::Milliseconds(request->interval_ms()));
    watch->Start(context);
    MutexLock lock(mu_);
    watches_.push_back(watch);
    return watch.get();
  }

  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context,
                                       const v1::CheckpointRequest* request,
                                       v1::CheckpointReply* reply) override {
    return Apply(saving_, context, "Checkpoint", *request, [=, this] {
      return WithVersion(actions_.checkpoint(PatienceOf(*context)), *reply);
    });
  }

  grpc::ServerUnaryReactor* Export(grpc::CallbackServerContext* context,
                                   const v1::ExportRequest* request,
                                   v1::ExportReply* reply) override {
    return Apply(saving_, context, "Export", *request, [this, reply] {
      return WithVersion(actions_.export_model(), *reply);
    });
  }

  grpc::ServerUnaryReactor* CollectStatistics(
      grpc::CallbackServerContext* context,
      const v1::CollectStatisticsRequest* request,
      v1::CollectStatisticsReply* reply) override {
    return Apply(blocking_, context, "CollectStatistics", *request,
                 [this, request, reply]() -> absl::Status {
                   COHORT_ASSIGN_OR_RETURN(
                       const CollectionAnswer answer,
                       run_.CollectStatistics(request->run_id()));
                   reply->set_version(answer.version.value());
                   reply->set_batches(answer.batches);
                   return absl::OkStatus();
                 });
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainReply* reply) override {
    return Apply(blocking_, context, "Drain", *request, [this, request, reply] {
      std::string reason =
          Printable(request->reason().substr(0, kReasonLengthMax));
      if (reason.empty()) reason = "drained by an operator";
      const absl::StatusOr<Version> drained = run_.Drain(reason);
      if (drained.ok() && actions_.on_drained) actions_.on_drained(reason);
      return WithVersion(drained, *reply);
    });
  }

  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* context,
                                      const v1::SetPolicyRequest* request,
                                      v1::SetPolicyReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto serve = [=, this, caller = CallerOf(*context),
                        announced = AnnouncesChecksum(*context)] {
      const auto body = [&]() -> absl::Status {
        COHORT_RETURN_IF_ERROR(CheckUndamaged(*request, announced));
        if (!request->has_awaited()) return Change(caller, *request, *reply);
        *reply->mutable_awaited() = request->awaited();
        return CheckRunId(request->run_id(), run_.facts().run_id);
      };
      const absl::Status status = Checked(*request, [&] {
        return request->has_awaited()
                   ? body()
                   : Audited(caller.name, "SetPolicy", *request, body);
      });
      if (!status.ok() || !reply->has_awaited()) {
        return reactor->Finish(ToGrpcStatus(status));
      }
      AwaitChange(*context, *request, *reactor, *reply);
    };
    // A call that only waits writes no record.
    if (request->has_awaited()) {
      serve();
      return reactor;
    }
    const absl::Status accepted = blocking_.Submit(serve);
    if (!accepted.ok()) reactor->Finish(ToGrpcStatus(accepted));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetPolicy(grpc::CallbackServerContext* context,
                                      const v1::GetPolicyRequest* request,
                                      v1::GetPolicyReply* reply) override {
    return Serve(context, *request, [&] {
      *reply = PolicyStatus(run_.Policy(), StatusParts::kAll);
      reply->set_run_id(run_.facts().run_id);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context,
                                  const v1::EvictRequest* request,
                                  v1::EvictReply* reply) override {
    // The record says what was meant: a worker that may finish its step.
    const char* verb = request->after_step() ? "DrainWorker" : "Evict";
    return Apply(
        blocking_, context, verb, *request,
        [this, request, reply,
         announced = AnnouncesChecksum(*context)]() -> absl::Status {
          COHORT_RETURN_IF_ERROR(CheckUndamaged(*request, announced));
          std::string reason =
              Printable(request->reason().substr(0, kReasonLengthMax));
          if (reason.empty()) reason = "requested by an operator";
          const Rank rank(request->rank());
          const Dismissal how =
              request->after_step() ? Dismissal::kDrain : Dismissal::kEvict;
          return WithVersion(run_.Dismiss(request->run_id(), rank, how, reason),
                             *reply);
        });
  }

  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::SetLogLevelReply* reply) override {
    return Apply(blocking_, context, "SetLogLevel", *request,
                 [request, reply] { return ChangeLogLevel(*request, *reply); });
  }

 private:
  // Errors: ResourceExhausted: the request is too long, or `body` threw.
  template <typename Request, typename Body>
  static absl::Status Checked(const Request& request, Body&& body) {
    return ServePeer([&]() -> absl::Status {
      const size_t bytes = request.ByteSizeLong();
      if (bytes <= kRequestBytesMax) return body();
      return absl::ResourceExhaustedError(absl::StrCat(
          "request: got ", bytes, " bytes, want at most ", kRequestBytesMax));
    });
  }

  // Finishes a call that changes nothing with the status of `body`.
  template <typename Request, typename Body>
  static grpc::ServerUnaryReactor* Serve(grpc::CallbackServerContext* context,
                                         const Request& request, Body body) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(Checked(request, body)));
    return reactor;
  }

  // The same for a call that changes the run, which is recorded. Files are
  // written, so it runs on `thread`: reactions must not block. `request` and
  // what `body` refers to live until the call is finished.
  template <typename Request, typename Body>
  grpc::ServerUnaryReactor* Apply(ThreadPool& thread,
                                  grpc::CallbackServerContext* context,
                                  const char* verb, const Request& request,
                                  Body body) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::Status accepted =
        thread.Submit([this, reactor, verb, &request, body = std::move(body),
                       client = CallerOf(*context).name] {
          reactor->Finish(ToGrpcStatus(Checked(
              request, [&] { return Audited(client, verb, request, body); })));
        });
    if (!accepted.ok()) reactor->Finish(ToGrpcStatus(accepted));
    return reactor;
  }

  // Errors also: FailedPrecondition: the record cannot be written, so nothing
  //   was done.
  absl::Status Audited(const std::string& client, const char* verb,
                       const google::protobuf::Message& request,
                       const std::function<absl::Status()>& body) {
    if (actions_.audit == nullptr) return body();
    AuditedCall call{.client = client, .verb = verb};
    // Fails only for messages that cannot be JSON, which these can.
    static_cast<void>(
        google::protobuf::util::MessageToJsonString(request, &call.arguments));
    const absl::StatusOr<SharedVersion> newest = run_.Find(std::nullopt);
    if (newest.ok()) call.version = (*newest)->version.value();
    COHORT_ASSIGN_OR_RETURN(const int64_t id, actions_.audit->Intent(call));
    const absl::Status outcome = body();
    const absl::Status recorded = actions_.audit->Outcome(id, outcome);
    if (!recorded.ok()) Log(LogLevel::kError, recorded.message());
    return outcome;
  }

  // The status of a change, whose version goes into the reply.
  template <typename Reply>
  static absl::Status WithVersion(const absl::StatusOr<Version>& version,
                                  Reply& reply) {
    COHORT_RETURN_IF_ERROR(version.status());
    reply.set_version(version->value());
    return absl::OkStatus();
  }

  absl::Status Change(const Caller& caller, const v1::SetPolicyRequest& request,
                      v1::SetPolicyReply& reply) {
    COHORT_ASSIGN_OR_RETURN(ChangeRequest change, ChangeFrom(request));
    // An author without encryption is only what the client says.
    if (caller.role == PeerRole::kOperator) {
      change.note.author = AuthorOf(change.note.author, caller);
    }
    const auto every = change.values.find("checkpoint_every");
    if (every != change.values.end() && every->second != "0" &&
        !actions_.keeps_checkpoints) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--checkpoint_every: got ", every->second,
          ", want 0: the server was started without --checkpoint_dir"));
    }
    COHORT_ASSIGN_OR_RETURN(const ChangeAnswer answer, run_.Change(change));
    reply.set_policy_epoch(answer.policy_epoch);
    reply.set_version(answer.version.value());
    reply.set_pending(answer.pending);
    reply.set_text(answer.text);
    if (answer.awaited.values.empty()) return absl::OkStatus();
    v1::AwaitedChange* awaited = reply.mutable_awaited();
    awaited->set_generation(run_.facts().generation);
    awaited->set_policy_epoch(answer.awaited.policy_epoch);
    awaited->mutable_settings()->insert(answer.awaited.values.begin(),
                                        answer.awaited.values.end());
    return absl::OkStatus();
  }

  // Finishes a call once the change that `reply` names is in force, or will not
  // be.
  void AwaitChange(const grpc::CallbackServerContext& context,
                   const v1::SetPolicyRequest& request,
                   grpc::ServerUnaryReactor& call, v1::SetPolicyReply& reply) {
    const v1::AwaitedChange& name = reply.awaited();
    const bool restarted = name.generation() != run_.facts().generation;
    const Instant now = run_.partitions().clock().Now();
    actions_.change_waits->Add(
        {.change = {.policy_epoch = name.policy_epoch(),
                    .values = {name.settings().begin(), name.settings().end()}},
         .due = now +
                std::min(absl::Milliseconds(request.wait_ms()), kPatienceMax),
         .is_cancelled = [&context] { return context.IsCancelled(); },
         .done =
             [&call, &reply, restarted](const PolicyView& policy,
                                        const auto& outcome) {
               reply.set_pending(outcome.ok() && !outcome->has_value());
               if (reply.pending()) {
                 reply.set_pending_reason(policy.pending_reason);
               } else if (outcome.ok()) {
                 *reply.mutable_change() = PolicyChangeStatus(**outcome);
                 reply.clear_awaited();
               }
               call.Finish(ToGrpcStatus(
                   restarted && absl::IsAborted(outcome.status())
                       ? absl::AbortedError("the change did not take effect: "
                                            "the server was restarted")
                       : outcome.status()));
             }});
    // It may be in force already.
    actions_.change_waits->Check(run_.Policy(), now);
  }

  static absl::Status ChangeLogLevel(const v1::SetLogLevelRequest& request,
                                     v1::SetLogLevelReply& reply) {
    const LogLevel before = CurrentLogLevel();
    LogLevel after = before;
    if (!request.level().empty()) {
      const absl::StatusOr<LogLevel> wanted = ParseLogLevel(request.level());
      if (!wanted.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("log level: ", wanted.status().message()));
      }
      after = *wanted;
    }
    if (after != before) {
      const std::string change =
          absl::StrCat("log level ", LogLevelName(before), " -> ",
                       LogLevelName(after), " (requested by an operator)");
      // Logged at a level that both settings let through, before the new one
      // takes effect.
      cohort::SetLogLevel(std::min(before, after));
      Log(std::max(LogLevel::kInfo, std::min(before, after)), change);
      cohort::SetLogLevel(after);
    }
    reply.set_level(std::string(LogLevelName(after)));
    reply.set_previous(std::string(LogLevelName(before)));
    return absl::OkStatus();
  }

  void Poll() ABSL_LOCKS_EXCLUDED(mu_) {
    const Instant now = run_.partitions().clock().Now();
    if (actions_.change_waits->IsDue(now)) {
      actions_.change_waits->Check(run_.Policy(), now);
    }
    std::vector<std::shared_ptr<WatchReactor>> watches;
    {
      MutexLock lock(mu_);
      watches.swap(watches_);
    }
    std::erase_if(watches,
                  [now](const auto& watch) { return !watch->Poll(now); });
    MutexLock lock(mu_);
    // Others may have come since.
    watches_.insert(watches_.end(), watches.begin(), watches.end());
  }

  RunHost& run_;
  const AdminActions actions_;

  Mutex mu_;
  std::vector<std::shared_ptr<WatchReactor>> watches_ ABSL_GUARDED_BY(mu_);

  // Last: their threads use everything above.
  ThreadPool blocking_;
  // For calls that write the whole model, or wait for what belongs to it. The
  // others must not wait for them.
  ThreadPool saving_;
  PeriodicTask poller_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(RunHost& run,
                                                AdminActions actions) {
  return std::make_unique<AdminService>(run, std::move(actions));
}

}  // namespace cohort
