#include "server/rpc/data_shard_client.h"

#include <grpcpp/grpcpp.h>

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

// Until `on_wait` reports that a data shard is not there.
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

// The end of a call in our words, where gRPC's own say little.
absl::Status InWords(const absl::Status& end) {
  if (IsClosedEarly(end.message())) {
    return absl::Status(end.code(), "the connection was lost");
  }
  if (absl::IsUnimplemented(end)) {
    return absl::UnimplementedError(
        "it is no data shard; start cohort-server --data_shard there, and name "
        "other processes than this one");
  }
  return end;
}

}  // namespace

DataShardClient::DataShardClient(Options options, Reactions reactions)
    : options_(std::move(options)),
      reactions_(std::move(reactions)),
      channel_(MakeChannel(options_.address, ChannelPurpose::kBulk,
                           options_.security)),
      stub_(channel_),
      connection_(name(), options_.silent_checks_max) {}

DataShardClient::~DataShardClient() { Close(); }

std::string DataShardClient::name() const {
  return absl::StrCat("data shard ", options_.attachment.place.index, " at ",
                      options_.address);
}

void DataShardClient::Close() {
  {
    MutexLock lock(mu_);
    connection_.Close();
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
    if (const auto result = connection_.result()) return *result;
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
    connection_.Begin();
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
  while (!AwaitSettled()) {
    if (give_up()) return false;
    if (clock_.Now() < look_at_) continue;
    look_at_ = clock_.Now() + kLookInterval;
    const absl::Status reached =
        Reach(channel_, options_.address, options_.tls, kLookMax);
    const std::string why = reached.ok() ? "it is there, but does not answer"
                                         : std::string(reached.message());
    if (AwaitSettled() || why == told_) continue;
    told_ = why;
    on_wait(why);
  }
  return true;
}

bool DataShardClient::AwaitSettled() {
  MutexLock lock(mu_);
  if (!connection_.settled()) changed_.WaitFor(mu_, kGiveUpInterval);
  return connection_.settled();
}

absl::Status DataShardClient::OnMessage(grpc::ByteBuffer& bytes) {
  COHORT_ASSIGN_OR_RETURN(v1::ShardReport report,
                          DecodeMessage<v1::ShardReport>(bytes));
  COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&report));
  {
    MutexLock lock(mu_);
    connection_.Heard();
  }
  switch (report.report_case()) {
    case v1::ShardReport::kAttached: {
      MutexLock lock(mu_);
      connection_.Attached();
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
        connection_.Leaving();
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
    if (!connection_.CheckAlive()) return;
  }
  stream_->Cancel();
}

void DataShardClient::OnEnd(const absl::Status& end) {
  absl::Status why;
  {
    MutexLock lock(mu_);
    const bool lost = connection_.Ended(InWords(end));
    CancelFetchesLocked();
    changed_.NotifyAll();
    if (!lost) return;
    why = connection_.Usable();
  }
  reactions_.on_end(why);
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
    COHORT_RETURN_IF_ERROR(connection_.Usable());
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
  return absl::Status(status.code(),
                      absl::StrCat(name(), ": ", status.message()));
}

void DataShardClient::EndRun() {
  {
    MutexLock lock(mu_);
    if (!connection_.open()) return;
    connection_.Close();
  }
  Send(command::EndRun{});
  stream_->FinishWrites();
}

void DataShardClient::AwaitEnd() {
  {
    MutexLock lock(mu_);
    if (!connection_.open()) return;
  }
  stream_->WaitForEnd(clock_, clock_.Now() + kEndPatience);
}

}  // namespace cohort
