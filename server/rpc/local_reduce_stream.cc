#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cohort/v1/moments.pb.h"
#include "common/incarnation_text.h"
#include "common/local/local_messages.h"
#include "common/log/log.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/local/local_inbox.h"
#include "server/local/local_peer.h"
#include "server/rpc/reduce_messages.h"
#include "server/rpc/services.h"
#include "server/streams/fault.h"

namespace cohort {
namespace {

std::string MailWith(local::Mail kind, const grpc::ByteBuffer& content) {
  std::string mail(1, static_cast<char>(kind));
  std::vector<grpc::Slice> slices;
  // Only fails for a buffer that could not be decompressed.
  (void)content.Dump(&slices);
  for (const grpc::Slice& slice : slices) {
    mail.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return mail;
}

std::string EndMail(const absl::Status& end) {
  return absl::StrCat(std::string(1, static_cast<char>(local::Mail::kEnd)),
                      std::string(1, static_cast<char>(end.code())),
                      end.message());
}

class LocalReduce final : public ReduceStream,
                          public LocalService,
                          public std::enable_shared_from_this<LocalReduce> {
 public:
  LocalReduce(RunHost& run, Rank rank, Incarnation incarnation,
              std::shared_ptr<LocalPeer> peer)
      : run_(run),
        rank_(rank),
        incarnation_(incarnation),
        peer_(std::move(peer)) {}

  void OnMessage(std::string mail) override {
    if (ended()) return;
    const absl::Status served = ServePeer([&] { return Serve(mail); });
    if (!served.ok()) End(served);
  }

  void OnDamage(const absl::Status& damage) override {
    Log(LogLevel::kWarning,
        absl::StrCat("rank ", rank_.value(), ": ", damage.message()));
    End(damage);
  }

  void OnGone() override {
    {
      MutexLock lock(mu_);
      ended_ = true;
    }
    run_.partitions().streams().Forget(this);
  }

  void SendResults(absl::Span<const effect::ReduceResult* const> results,
                   EncodedResults& encoded) override {
    Send(MailWith(local::Mail::kReduce, EncodeResults(results, encoded)));
  }

  void SendAborted(const effect::ReduceAborted& aborted) override {
    v1::ReduceReply reply = ReplyFor(aborted);
    AddMessageChecksum(&reply);
    Send(MailWith(local::Mail::kReduce, EncodeMessage(reply)));
  }

  void End(const absl::Status& status) override {
    {
      MutexLock lock(mu_);
      if (std::exchange(ended_, true)) return;
      // A worker that does not read will find its connection closed.
      (void)peer_->Send(EndMail(status));
    }
    run_.partitions().streams().Forget(this);
  }

 private:
  absl::Status Serve(absl::string_view mail) {
    v1::ReduceRequest request;
    if (mail.empty() ||
        mail.front() != static_cast<char>(local::Mail::kReduce) ||
        !request.ParseFromArray(mail.data() + 1,
                                static_cast<int>(mail.size()) - 1)) {
      return absl::DataLossError(absl::StrCat(
          "shared memory: got ", mail.size(), " bytes, want a ReduceRequest"));
    }
    COHORT_ASSIGN_OR_RETURN(ReduceMessage message, ReduceMessageFrom(request));
    const Sender& sender = message.sender;
    if (sender.rank != rank_ || sender.incarnation != incarnation_) {
      return absl::PermissionDeniedError(absl::StrCat(
          "sender: got rank ", sender.rank.value(), " incarnation ",
          IncarnationText(sender.incarnation), ", want rank ", rank_.value(),
          " incarnation ", IncarnationText(incarnation_),
          ", which connected here"));
    }
    return run_.Reduce(sender, std::move(message.contributions),
                       shared_from_this());
  }

  void Send(const std::string& mail) {
    absl::Status sent;
    {
      MutexLock lock(mu_);
      if (ended_) return;
      sent = peer_->Send(mail);
    }
    if (!sent.ok()) End(sent);
  }

  bool ended() {
    MutexLock lock(mu_);
    return ended_;
  }

  // Fixed after construction.
  RunHost& run_;
  const Rank rank_;
  const Incarnation incarnation_;
  const std::shared_ptr<LocalPeer> peer_;

  Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

std::shared_ptr<LocalService> MakeLocalReduce(
    RunHost& run, Rank rank, Incarnation incarnation,
    const std::shared_ptr<LocalPeer>& peer) {
  auto stream = std::make_shared<LocalReduce>(run, rank, incarnation, peer);
  // It may be silent for as long as the run normalises locally.
  PartitionsHost& host = run.partitions();
  const absl::Status admitted =
      host.Admit(host.streams(), stream, /*speaks=*/false);
  if (!admitted.ok()) stream->End(admitted);
  return stream;
}

int64_t LocalMessageBytes(const ModelLayout& layout) {
  // Two float64 a channel, and the rest of a message with its frame.
  constexpr int64_t kChannelBytes = 16;
  constexpr int64_t kOtherBytes = 256;
  // A rank may wait in so many rendezvous beside two for each layer.
  constexpr int64_t kFurtherWaits = 64;
  constexpr int64_t kMax = int64_t{1} << 30;
  // Layers that are not of the model meet, too: a teacher, sums of the script.
  constexpr int64_t kMin = int64_t{1} << 20;
  int64_t all = 0;
  int64_t largest = 0;
  for (const BatchNormSpec& layer : layout.batch_norms) {
    const int64_t bytes = layer.channels * kChannelBytes + kOtherBytes;
    // Both phases of one call.
    all += 2 * bytes;
    largest = std::max(largest, bytes);
  }
  const int64_t bytes = all + kFurtherWaits * largest;
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::clamp(bytes, kMin, kMax))));
}

}  // namespace cohort
