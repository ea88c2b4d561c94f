#include "worker/client/push_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/message_checksum.h"

namespace cohort {

PushStream::PushStream(const std::shared_ptr<grpc::Channel>& channel,
                       Link& link, const Options& options,
                       const std::vector<Partition>& partitions)
    : link_(link),
      sender_(options.sender),
      checksums_(options.checksums),
      local_(options.local),
      partitions_(partitions),
      stream_(
          channel, "/cohort.v1.Parameters/Exchange", link,
          [this](grpc::ByteBuffer& message) { return OnMessage(message); },
          [this](const absl::Status& end) {
            link_.Break(link_.NormalizedEnd("the exchange of gradients", end));
          }) {
  for (size_t i = 0; i < options.data_shards.size(); ++i) {
    data_streams_.push_back(std::make_unique<BulkStream>(
        options.data_shards[i].channel, "/cohort.v1.Parameters/Exchange", link,
        [this](grpc::ByteBuffer& message) { return OnMessage(message); },
        [this, shard = i + 1,
         address = options.data_shards[i].address](const absl::Status& end) {
          link_.Break(link_.NormalizedEnd(
              absl::StrCat("the exchange of gradients with data shard ", shard),
              end, address));
        }));
  }
}

BulkStream& PushStream::StreamOf(int32_t partition) {
  // As the server divides them: ShardPlace::OwnerOf.
  const size_t owner =
      static_cast<size_t>(partition) % (data_streams_.size() + 1);
  return owner == 0 ? stream_ : *data_streams_[owner - 1];
}

absl::Status PushStream::Open(const PushKey& key, const PushOpening& opening,
                              ElementType gradients, KeptWeights::Shared base) {
  open_ = key;
  type_ = gradients;
  in_arena_.assign(partitions_.size(), false);
  {
    // Before the opening is sent: an answer may come before Send returns.
    MutexLock lock(link_.mu);
    Await(key, std::move(base));
    base_version_ = opening.version;
  }
  v1::ExchangeRequest request = NewRequest();
  ToProto(opening, request.mutable_opening());
  AddMessageChecksum(&request);
  return Send(request, ByteRope());
}

absl::Status PushStream::SendGradient(int32_t partition,
                                      const ByteRope& gradient,
                                      absl::Span<const int32_t> absent_slices) {
  if (!open_.has_value()) {
    return absl::FailedPreconditionError("got a gradient before OpenPush");
  }
  COHORT_ASSIGN_OR_RETURN(const Partition* spec, FindTrainable(partition));
  v1::ExchangeRequest request = NewRequest();
  v1::GradientPartition* header = request.mutable_gradient();
  header->set_partition(partition);
  header->mutable_absent_slices()->Add(absent_slices.begin(),
                                       absent_slices.end());
  const bool empty =
      gradient.size_bytes() == 0 && absent_slices.size() == spec->slices.size();
  COHORT_RETURN_IF_ERROR(CheckPayload({.encoding = v1::ENCODING_FLOAT32},
                                      gradient, empty ? 0 : spec->elements));
  header->set_encoding(EncodingOf(type_));
  // In shared memory too, so that results do not depend on the way taken.
  const ByteRope payload = EncodeGradient(gradient, type_);
  if (local_ != nullptr && !empty &&
      !in_arena_[static_cast<size_t>(partition)]) {
    return SendLocally(partition, payload, request);
  }
  if (checksums_) header->set_xxh3(payload.Checksum());
  AddMessageChecksum(&request);
  return SendTo(StreamOf(partition), request, payload);
}

absl::Status PushStream::SendLocally(int32_t partition,
                                     const ByteRope& gradient,
                                     v1::ExchangeRequest& request) {
  // The server releases a gradient with or before the verdict; only a fold that
  // has become useless may take longer.
  constexpr absl::Duration kPatience = absl::Minutes(1);
  const absl::Status written =
      local_->Write(partition, gradient, link_.clock(), kPatience, [this] {
        MutexLock lock(link_.mu);
        COHORT_RETURN_IF_ERROR(link_.CheckLocked());
        return link_.tracker.CheckTaken();
      });
  if (absl::IsDeadlineExceeded(written)) {
    const absl::Status broken = absl::UnavailableError(written.message());
    link_.Break(broken);
    return broken;
  }
  COHORT_RETURN_IF_ERROR(written);
  request.mutable_gradient()->set_in_arena(true);
  AddMessageChecksum(&request);
  const absl::Status sent = Send(request, ByteRope());
  if (sent.ok()) {
    in_arena_[static_cast<size_t>(partition)] = true;
  } else {
    // The step has ended early, or the connection is over, and with it the
    // arena.
    local_->TakeBack(partition);
  }
  return sent;
}

absl::StatusOr<std::vector<ByteRope>> PushStream::AwaitUpdate() {
  if (!open_.has_value()) {
    return absl::FailedPreconditionError("call OpenPush before AwaitUpdate");
  }
  MutexLock lock(link_.mu);
  awaits_update_ = true;
  while (!UpdateHereLocked()) {
    COHORT_RETURN_IF_ERROR(link_.tracker.CheckTakenStep());
    if (verdict_.has_value()) return absl::AbortedError(verdict_->reason);
    COHORT_RETURN_IF_ERROR(link_.WaitLocked(absl::InfiniteDuration()));
  }
  std::vector<ByteRope> weights(partitions_.size());
  for (size_t i = 0; i < received_.size(); ++i) {
    if (received_[i].has_value()) {
      weights[i] = std::move(received_[i]->weights);
    }
  }
  return weights;
}

absl::StatusOr<PushResult> PushStream::Close(const PushClosing& closing) {
  if (!open_.has_value()) {
    return absl::FailedPreconditionError("call OpenPush before ClosePush");
  }
  COHORT_RETURN_IF_ERROR(SendClosing(closing));

  MutexLock lock(link_.mu);
  while (!CompleteLocked()) {
    // If only a later step has ended early, this one was committed, and its
    // verdict is on its way.
    COHORT_RETURN_IF_ERROR(link_.tracker.CheckTakenStep());
    COHORT_RETURN_IF_ERROR(link_.WaitLocked(absl::InfiniteDuration()));
  }
  PushResult result;
  result.verdict = *std::move(verdict_);
  result.weights.resize(partitions_.size());
  for (size_t i = 0; i < received_.size(); ++i) {
    std::optional<Received>& received = received_[i];
    // Tentative weights of a step that was not committed must not be used.
    if (weights_announced_ > 0 && received.has_value() &&
        received->version == result.verdict.version) {
      result.weights[i] = std::move(received->weights);
    }
  }
  awaited_.reset();
  base_.reset();
  received_.clear();
  versions_.clear();
  verdict_.reset();
  return result;
}

absl::StatusOr<PushVerdict> PushStream::RepeatClosing(
    const PushKey& key, const PushClosing& closing) {
  {
    MutexLock lock(link_.mu);
    Await(key, nullptr);
  }
  open_ = key;
  COHORT_RETURN_IF_ERROR(SendClosing(closing));
  MutexLock lock(link_.mu);
  while (!verdict_.has_value()) {
    COHORT_RETURN_IF_ERROR(link_.WaitLocked(absl::InfiniteDuration()));
  }
  awaited_.reset();
  received_.clear();
  versions_.clear();
  return *std::exchange(verdict_, std::nullopt);
}

void PushStream::Await(const PushKey& key, KeptWeights::Shared base) {
  awaited_ = key;
  base_ = std::move(base);
  received_.assign(partitions_.size(), std::nullopt);
  versions_.clear();
  verdict_.reset();
  weights_announced_ = 0;
  awaits_update_ = false;
}

absl::Status PushStream::SendClosing(const PushClosing& closing) {
  v1::ExchangeRequest request = NewRequest();
  ToProto(closing, request.mutable_closing());
  AddMessageChecksum(&request);
  open_.reset();
  return Send(request, ByteRope());
}

absl::Status PushStream::SendTo(BulkStream& stream,
                                const v1::ExchangeRequest& request,
                                const ByteRope& payload) {
  const absl::Status status =
      stream.Send(EncodeFramed(request, payload), absl::InfiniteDuration());
  // The link's status says why the stream is over.
  const absl::Status link = link_.Check();
  return link.ok() ? status : link;
}

absl::Status PushStream::OnMessage(grpc::ByteBuffer& message) {
  COHORT_ASSIGN_OR_RETURN(Reply reply,
                          DecodeFramed<v1::ExchangeReply>(message));
  COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&reply.header));
  COHORT_ASSIGN_OR_RETURN(const PushKey key, FromProto(reply.header.key()));
  switch (reply.header.part_case()) {
    case v1::ExchangeReply::kWeights: {
      COHORT_RETURN_IF_ERROR(OnWeights(key, reply));
      // The driving thread is woken for the last partition, not for each.
      MutexLock lock(link_.mu);
      const bool here = awaits_update_ ? UpdateHereLocked() : CompleteLocked();
      if (!here) return absl::OkStatus();
      break;
    }
    case v1::ExchangeReply::kVerdict:
      COHORT_RETURN_IF_ERROR(OnVerdict(key, reply.header.verdict()));
      break;
    case v1::ExchangeReply::PART_NOT_SET:
      return absl::InvalidArgumentError(
          "got an answer to a push with neither weights nor verdict");
  }
  link_.Notify();
  return absl::OkStatus();
}

absl::Status PushStream::OnWeights(const PushKey& key, Reply& reply) {
  const v1::WeightsPartition& weights = reply.header.weights();
  COHORT_ASSIGN_OR_RETURN(const Partition* spec,
                          FindTrainable(weights.partition()));
  COHORT_ASSIGN_OR_RETURN(ByteRope payload, WeightsOf(reply, spec->elements));
  const Version version(weights.version());
  MutexLock lock(link_.mu);
  if (awaited_ != key) return absl::OkStatus();
  std::optional<Received>& received =
      received_[static_cast<size_t>(weights.partition())];
  if (received.has_value() && received->version > version) {
    return absl::OkStatus();
  }
  if (received.has_value()) --versions_[received->version];
  ++versions_[version];
  received = {.version = version, .weights = std::move(payload)};
  return absl::OkStatus();
}

absl::StatusOr<ByteRope> PushStream::WeightsOf(Reply& reply, int64_t elements) {
  const v1::WeightsPartition& weights = reply.header.weights();
  if (weights.has_base_version()) return Changed(reply, elements);
  if (!weights.has_shared()) {
    // Checked here and not on the driving thread, which is computing.
    COHORT_RETURN_IF_ERROR(CheckPayload(weights, reply.payload, elements));
    return std::move(reply.payload);
  }
  if (local_ == nullptr) {
    return absl::InvalidArgumentError(
        "got weights in shared memory, want their bytes: this worker shares "
        "none");
  }
  return local_->Weights(
      {.file = weights.shared().file(), .offset = weights.shared().offset()},
      elements);
}

absl::StatusOr<ByteRope> PushStream::Changed(const Reply& reply,
                                             int64_t elements) {
  const v1::WeightsPartition& weights = reply.header.weights();
  COHORT_ASSIGN_OR_RETURN(const PushKey key, FromProto(reply.header.key()));
  COHORT_RETURN_IF_ERROR(CheckChange(weights, reply.payload, elements));
  KeptWeights::Shared base;
  {
    MutexLock lock(link_.mu);
    // A push that was given up by now, or its repetition.
    if (awaited_ != key || base_ == nullptr ||
        weights.base_version() != base_version_.value()) {
      return ByteRope();
    }
    base = base_;
  }
  // Without the lock, which the driving thread needs to send gradients.
  COHORT_ASSIGN_OR_RETURN(
      const SharedFloats sums,
      AddChange((*base)[static_cast<size_t>(weights.partition())],
                reply.payload, pool_));
  return RopeOf(sums);
}

absl::Status PushStream::OnVerdict(const PushKey& key,
                                   const v1::PushVerdict& proto) {
  COHORT_ASSIGN_OR_RETURN(PushVerdict verdict, FromProto(proto));
  const int32_t trainable = Trainable();
  if (proto.weights_partitions() > trainable) {
    return absl::InvalidArgumentError(
        absl::StrCat("verdict.weights_partitions: got ",
                     proto.weights_partitions(), ", want at most ", trainable));
  }
  MutexLock lock(link_.mu);
  // The next assignment is valid even if the driving thread no longer waits for
  // this push.
  link_.tracker.Offer(verdict.next);
  if (IsApplied(verdict.verdict)) progress_.Made();
  if (!awaited_.has_value() || awaited_->Whole() != key.Whole()) {
    return absl::OkStatus();
  }
  weights_announced_ = proto.weights_partitions();
  verdict_ = std::move(verdict);
  return absl::OkStatus();
}

bool PushStream::UpdateHereLocked() const {
  int32_t here = 0;
  for (const auto& [version, partitions] : versions_) here += partitions;
  return here == Trainable();
}

bool PushStream::CompleteLocked() const {
  if (!verdict_.has_value()) return false;
  const auto here = versions_.find(verdict_->version);
  return (here == versions_.end() ? 0 : here->second) >= weights_announced_;
}

int32_t PushStream::Trainable() const {
  return static_cast<int32_t>(
      std::count_if(partitions_.begin(), partitions_.end(),
                    [](const Partition& p) { return p.trainable; }));
}

absl::StatusOr<const Partition*> PushStream::FindTrainable(
    int32_t index) const {
  if (index < 0 || static_cast<size_t>(index) >= partitions_.size() ||
      !partitions_[static_cast<size_t>(index)].trainable) {
    return absl::InvalidArgumentError(absl::StrCat(
        "partition: got ", index, ", want one of the trainable ones among ",
        partitions_.size(), " partitions"));
  }
  return &partitions_[static_cast<size_t>(index)];
}

v1::ExchangeRequest PushStream::NewRequest() const {
  v1::ExchangeRequest request;
  ToProto(sender_, request.mutable_sender());
  ToProto(*open_, request.mutable_key());
  return request;
}

}  // namespace cohort
