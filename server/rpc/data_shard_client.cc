#include "server/rpc/data_shard_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cohort/v1/data_shard.grpc.pb.h"
#include "common/ops/closed_connection.h"
#include "common/status_macros.h"
#include "common/wire/channel.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "common/wire/reach.h"
#include "common/wire/status.h"
#include "server/rpc/data_messages.h"

namespace cohort {
namespace {

// Until somebody is told that a data shard is not there.
constexpr absl::Duration kTellAfter = absl::Seconds(1);
// Time between two looks at why it is not, and the limit on one.
constexpr absl::Duration kLookInterval = absl::Seconds(10);
constexpr absl::Duration kLookMax = absl::Seconds(2);
constexpr absl::Duration kGiveUpInterval = absl::Milliseconds(100);
constexpr absl::Duration kRetryPause = absl::Milliseconds(100);
constexpr absl::Duration kEndPatience = absl::Seconds(2);

void SendMessage(v1::ShardCommand& message,
                 BidiStream<grpc::ByteBuffer, grpc::ByteBuffer>& stream) {
  AddMessageChecksum(&message);
  grpc::ByteBuffer bytes = EncodeMessage(message);
  stream.Write(bytes);
}

}  // namespace

DataShardClient::DataShardClient(Options options, Reactions reactions)
    : options_(std::move(options)),
      reactions_(std::move(reactions)),
      channel_(MakeChannel(options_.address, ChannelPurpose::kBulk,
                           options_.security)),
      stub_(channel_) {}

DataShardClient::~DataShardClient() { Close(); }

void DataShardClient::Close() {
  {
    MutexLock lock(mu_);
    closing_ = true;
    CancelFetchesLocked();
  }
  if (stream_ != nullptr) stream_->Close();
}

void DataShardClient::CancelFetchesLocked() {
  for (grpc::ClientContext* fetch : fetches_) fetch->TryCancel();
}

absl::Status DataShardClient::Attach(
    const std::function<void(const std::string&)>& on_wait,
    const std::function<bool()>& give_up) {
  look_at_ = clock_.Now() + kTellAfter;
  while (TryAttach(on_wait, give_up)) {
    MutexLock lock(mu_);
    if (attached_ && !end_.has_value()) return absl::OkStatus();
    // It was killed, or stopped, as it was connected to.
    if (!absl::IsUnavailable(*end_)) return *end_;
    changed_.WaitFor(mu_, kRetryPause);
  }
  return absl::CancelledError(absl::StrCat("given up waiting for data shard ",
                                           options_.attachment.place.index));
}

bool DataShardClient::TryAttach(
    const std::function<void(const std::string&)>& on_wait,
    const std::function<bool()>& give_up) {
  stream_ = std::make_unique<Stream>(Stream::Reactions{
      .on_message =
          [this](grpc::ByteBuffer& bytes) { return OnMessage(bytes); },
      .on_written = nullptr,
      .on_end = [this](const absl::Status& end) { OnEnd(end); }});
  {
    MutexLock lock(mu_);
    attached_ = false;
    leaving_ = false;
    end_.reset();
  }
  stream_->Start([this](grpc::ClientContext* context, auto* reactor) {
    // It may be started after this process.
    context->set_wait_for_ready(true);
    stub_.PrepareBidiStreamingCall(context, "/cohort.v1.DataShards/Attach", {},
                                   reactor);
  });
  v1::ShardCommand first;
  v1::AttachShard* attach = first.mutable_attach();
  attach->set_run_id(options_.attachment.run_id);
  attach->set_run_name(options_.attachment.run_name);
  attach->set_generation(options_.attachment.generation);
  attach->set_shard(options_.attachment.place.index);
  attach->set_shards(options_.attachment.place.count);
  attach->set_workers(options_.attachment.workers);
  SendMessage(first, *stream_);
  while (!AwaitAttached()) {
    if (give_up()) return false;
    if (clock_.Now() < look_at_) continue;
    look_at_ = clock_.Now() + kLookInterval;
    const absl::Status reached =
        Reach(channel_, options_.address, options_.tls, kLookMax);
    const std::string why = reached.ok() ? "it is there, but does not answer"
                                         : std::string(reached.message());
    if (AwaitAttached() || why == told_) continue;
    told_ = why;
    on_wait(why);
  }
  return true;
}

bool DataShardClient::AwaitAttached() {
  MutexLock lock(mu_);
  if (!attached_ && !end_.has_value()) changed_.WaitFor(mu_, kGiveUpInterval);
  return attached_ || end_.has_value();
}

absl::Status DataShardClient::OnMessage(grpc::ByteBuffer& bytes) {
  COHORT_ASSIGN_OR_RETURN(v1::ShardReport report,
                          DecodeMessage<v1::ShardReport>(bytes));
  COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&report));
  {
    MutexLock lock(mu_);
    // A late one does not hide why the connection is being ended.
    if (silent_checks_ < options_.silent_checks_max) silent_checks_ = 0;
  }
  switch (report.report_case()) {
    case v1::ShardReport::kAttached: {
      MutexLock lock(mu_);
      attached_ = true;
      changed_.NotifyAll();
      return absl::OkStatus();
    }
    case v1::ShardReport::kGradient: {
      COHORT_ASSIGN_OR_RETURN(RemoteGradient gradient,
                              FromProto(report.gradient()));
      reactions_.on_gradient(std::move(gradient));
      return absl::OkStatus();
    }
    case v1::ShardReport::kFolded: {
      COHORT_ASSIGN_OR_RETURN(FoldReport fold, FromProto(report.folded()));
      return reactions_.on_fold(std::move(fold));
    }
    case v1::ShardReport::kAlive:
      return absl::OkStatus();
    case v1::ShardReport::kLeaving: {
      {
        MutexLock lock(mu_);
        leaving_ = true;
      }
      reactions_.on_leaving();
      return absl::OkStatus();
    }
    case v1::ShardReport::REPORT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("got an empty report");
}

void DataShardClient::CheckAlive() {
  {
    MutexLock lock(mu_);
    if (!attached_ || end_.has_value()) return;
    if (++silent_checks_ != options_.silent_checks_max) return;
  }
  stream_->Cancel();
}

void DataShardClient::OnEnd(const absl::Status& end) {
  bool lost = false;
  absl::Status why;
  {
    MutexLock lock(mu_);
    const bool silent = silent_checks_ >= options_.silent_checks_max;
    const std::string said =
        silent     ? absl::StrCat("it has said nothing for ", silent_checks_,
                                  " s (--shard_lease)")
        : leaving_ ? "it is being stopped"
        : end.ok() ? "it ended the connection"
        : IsClosedEarly(end.message()) ? "the connection was lost"
        : absl::IsUnimplemented(end)
            ? "it is no data shard; start cohort-server --data_shard there, "
              "and name other processes than this one"
            : std::string(end.message());
    // A cancelled stream was ended here, because the data shard leaves or says
    // nothing. Attach tries again; only its caller gives up.
    why = absl::Status(
        end.ok() || absl::IsCancelled(end) ? absl::StatusCode::kUnavailable
                                           : end.code(),
        absl::StrCat("data shard ", options_.attachment.place.index, " at ",
                     options_.address, ": ", said));
    end_ = why;
    lost = attached_ && !closing_;
    CancelFetchesLocked();
    changed_.NotifyAll();
  }
  if (lost) reactions_.on_end(why);
}

void DataShardClient::Install(Installation installation) {
  EncodeInstallation(installation, [this](v1::ShardCommand& message) {
    SendMessage(message, *stream_);
  });
}

void DataShardClient::Send(ShardCommand command) {
  v1::ShardCommand message = EncodeCommand(command);
  SendMessage(message, *stream_);
}

absl::Status DataShardClient::Fetch(Version version,
                                    const RegisteredModel& model,
                                    ModelSnapshot& into) {
  const auto stub = v1::DataShards::NewStub(channel_);
  grpc::ClientContext context;
  v1::FetchRequest request;
  request.set_run_id(options_.attachment.run_id);
  request.set_generation(options_.attachment.generation);
  request.set_version(version.value());
  AddMessageChecksum(&request);
  {
    MutexLock lock(mu_);
    if (end_.has_value()) return *end_;
    if (closing_) {
      return absl::UnavailableError("the connection to data shards is closed");
    }
    fetches_.insert(&context);
  }
  const auto reader = stub->Fetch(&context, request);
  v1::ShardPartition partition;
  absl::Status status;
  while (reader->Read(&partition)) {
    status = AddPartition(partition, model.partitions, into);
    if (!status.ok()) break;
  }
  if (!status.ok()) context.TryCancel();
  const absl::Status end = FromGrpcStatus(reader->Finish());
  {
    MutexLock lock(mu_);
    fetches_.erase(&context);
  }
  if (status.ok()) status = end;
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("data shard ", options_.attachment.place.index, " at ",
                   options_.address, ": ", status.message()));
}

void DataShardClient::EndRun() {
  {
    MutexLock lock(mu_);
    if (!attached_ || end_.has_value()) return;
    closing_ = true;
  }
  Send(command::EndRun{});
  stream_->FinishWrites();
}

void DataShardClient::AwaitEnd() {
  {
    MutexLock lock(mu_);
    if (!attached_ || end_.has_value()) return;
  }
  stream_->WaitForEnd(clock_, clock_.Now() + kEndPatience);
}

}  // namespace cohort
