#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "common/wire/status.h"
#include "server/service/queued_writes.h"
#include "server/service/services.h"

namespace cohort {
namespace {

constexpr int64_t kIntervalMsMin = 100;
constexpr int64_t kIntervalMsMax = 3'600'000;
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr size_t kReasonLengthMax = 1024;

v1::Status ToProto(const StatusView& view) {
  v1::Status proto;
  proto.set_run_id(view.run_id);
  proto.set_state(view.state);
  proto.set_version(view.version.value());
  proto.set_attempt(view.attempt.value());
  proto.set_data_epoch(view.data_epoch);
  proto.set_epochs(view.epochs);
  proto.set_samples(view.samples);
  proto.set_policy(view.policy);
  proto.set_learning_rate(view.learning_rate);
  proto.set_train_loss(view.train_loss.value_or(0));
  proto.set_test_accuracy(view.test_accuracy.value_or(0));
  for (const StatusView::Worker& worker : view.workers) {
    v1::WorkerStatus* to = proto.add_workers();
    to->set_rank(worker.rank.value());
    to->set_state(worker.state);
    to->set_incarnation(worker.incarnation.value());
    to->set_description(worker.description);
    to->set_batch_size(worker.batch_size);
    to->set_sequence(worker.sequence.value());
    to->set_silent_ms(absl::ToInt64Milliseconds(worker.silent));
  }
  proto.mutable_counters()->insert(view.counters.begin(), view.counters.end());
  return proto;
}

class WatchReactor final
    : public QueuedWrites<grpc::ServerWriteReactor<v1::Status>, v1::Status,
                          Stream> {
 public:
  WatchReactor(Shard& shard, absl::Duration interval)
      : QueuedWrites(shard.streams()), shard_(shard), interval_(interval) {}

  void Start() {
    Begin();
    absl::Status status = shard_.streams().Admit(shared_from_this());
    if (interval_ < absl::Milliseconds(kIntervalMsMin) ||
        interval_ > absl::Milliseconds(kIntervalMsMax)) {
      status = absl::InvalidArgumentError(absl::StrCat(
          "interval_ms: got ", absl::ToInt64Milliseconds(interval_), ", want ",
          kIntervalMsMin, " to ", kIntervalMsMax));
    }
    if (!status.ok()) End(status);
  }

  // Sends the status if it is due and the last one has been read. Returns
  // false once the stream is over. Called by one thread.
  bool Poll(Instant now) {
    if (ended()) return false;
    if (now < due_ || !idle()) return true;
    due_ = now + interval_;
    Send(ToProto(shard_.Status()));
    return true;
  }

  void OnCancel() override { End(absl::CancelledError("cancelled")); }

 private:
  Shard& shard_;
  const absl::Duration interval_;
  Instant due_;
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(Shard& shard, AdminActions actions)
      : shard_(shard),
        actions_(std::move(actions)),
        blocking_({.name = "admin", .threads = 1, .queue_max = 16}),
        poller_("watch", kPollInterval, [this] { Poll(); }) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest*,
                                      v1::Status* reply) override {
    *reply = ToProto(shard_.Status());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::Status>* WatchStatus(
      grpc::CallbackServerContext*,
      const v1::WatchStatusRequest* request) override {
    const auto watch = std::make_shared<WatchReactor>(
        shard_, absl::Milliseconds(request->interval_ms()));
    watch->Start();
    MutexLock lock(mu_);
    watches_.push_back(watch);
    return watch.get();
  }

  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context,
                                       const v1::CheckpointRequest*,
                                       v1::CheckpointReply* reply) override {
    return RunBlocking(context, actions_.checkpoint, reply);
  }

  grpc::ServerUnaryReactor* Export(grpc::CallbackServerContext* context,
                                   const v1::ExportRequest*,
                                   v1::ExportReply* reply) override {
    return RunBlocking(context, actions_.export_model, reply);
  }

  grpc::ServerUnaryReactor* CollectStatistics(
      grpc::CallbackServerContext* context,
      const v1::CollectStatisticsRequest* request,
      v1::CollectStatisticsReply* reply) override {
    const absl::StatusOr<CollectionAnswer> answer =
        shard_.CollectStatistics(request->run_id());
    if (answer.ok()) {
      reply->set_version(answer->version.value());
      reply->set_batches(answer->batches);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(answer.status()));
    return reactor;
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainReply* reply) override {
    std::string reason = request->reason().substr(0, kReasonLengthMax);
    if (reason.empty()) reason = "drained by an operator";
    const absl::StatusOr<Version> version = shard_.Drain(reason);
    if (version.ok()) reply->set_version(version->value());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(version.status()));
    return reactor;
  }

 private:
  // Files are written on a thread of their own: reactions must not block.
  template <typename Reply>
  grpc::ServerUnaryReactor* RunBlocking(
      grpc::CallbackServerContext* context,
      const std::function<absl::StatusOr<Version>()>& action, Reply* reply) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::Status accepted = blocking_.Submit([reactor, reply, &action] {
      const absl::StatusOr<Version> version = action();
      if (version.ok()) reply->set_version(version->value());
      reactor->Finish(ToGrpcStatus(version.status()));
    });
    if (!accepted.ok()) reactor->Finish(ToGrpcStatus(accepted));
    return reactor;
  }

  void Poll() {
    std::vector<std::shared_ptr<WatchReactor>> watches;
    {
      MutexLock lock(mu_);
      watches = watches_;
    }
    const Instant now = shard_.clock().Now();
    std::vector<const WatchReactor*> over;
    for (const auto& watch : watches) {
      if (!watch->Poll(now)) over.push_back(watch.get());
    }
    if (over.empty()) return;
    MutexLock lock(mu_);
    std::erase_if(watches_, [&over](const auto& watch) {
      return std::find(over.begin(), over.end(), watch.get()) != over.end();
    });
  }

  Shard& shard_;
  const AdminActions actions_;

  Mutex mu_;
  std::vector<std::shared_ptr<WatchReactor>> watches_ ABSL_GUARDED_BY(mu_);

  // Last: their threads use everything above.
  ThreadPool blocking_;
  PeriodicTask poller_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(Shard& shard,
                                                AdminActions actions) {
  return std::make_unique<AdminService>(shard, std::move(actions));
}

}  // namespace cohort
