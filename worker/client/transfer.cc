#include "worker/client/transfer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cohort/v1/parameters.pb.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"

namespace cohort {
namespace {

using Values = absl::Span<const absl::Span<const float>>;

// Copies the values of one partition. Values are sent once a run, and without a
// copy a cancelled call could read the caller's memory after it has returned.
ByteRope GatherValues(const Partition& partition, Values values) {
  auto floats = std::make_shared<std::vector<float>>();
  floats->reserve(static_cast<size_t>(partition.elements));
  for (const Slice& slice : partition.slices) {
    const float* begin =
        values[static_cast<size_t>(slice.parameter)].data() + slice.offset;
    floats->insert(floats->end(), begin, begin + slice.count);
  }
  return ByteRope(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(floats->data()),
                          floats->size() * sizeof(float)),
      floats);
}

absl::Status SendValues(BulkCall& call, const Sender& sender,
                        const std::vector<Partition>& partitions,
                        Values values) {
  for (size_t i = 0; i < partitions.size(); ++i) {
    const ByteRope payload = GatherValues(partitions[i], values);
    v1::RegisterRequest request;
    ToProto(sender, request.mutable_sender());
    request.set_partition(static_cast<int32_t>(i));
    DescribePayload(payload, &request);
    AddMessageChecksum(&request);
    COHORT_RETURN_IF_ERROR(call.Send(EncodeFramed(request, payload)));
  }
  return absl::OkStatus();
}

// The next answer; Unavailable if the server ends the call before it.
absl::StatusOr<grpc::ByteBuffer> ReceiveOne(BulkCall& call, const Link& link,
                                            absl::string_view name) {
  COHORT_ASSIGN_OR_RETURN(std::optional<grpc::ByteBuffer> message,
                          call.Receive());
  if (!message.has_value()) return link.NormalizedEnd(name, absl::OkStatus());
  return *std::move(message);
}

absl::StatusOr<v1::RegisterReply> ReceiveRegisterReply(BulkCall& call,
                                                       const Link& link) {
  COHORT_ASSIGN_OR_RETURN(const grpc::ByteBuffer message,
                          ReceiveOne(call, link, "the registration"));
  absl::StatusOr<v1::RegisterReply> reply =
      DecodeMessage<v1::RegisterReply>(message);
  const absl::Status whole =
      reply.ok() ? TakeMessageChecksum(&*reply) : reply.status();
  // Damaged on its way: the next try may succeed.
  if (!whole.ok()) return link.NormalizedEnd("the registration", whole);
  return reply;
}

absl::StatusOr<double> LossReference(const v1::RegisterReply& reply) {
  const double value = reply.loss_reference();
  if (!std::isfinite(value) || value <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "loss_reference: got ", value, ", want a finite number above 0"));
  }
  return value;
}

absl::Status CheckSendOrder(const std::vector<int32_t>& order,
                            const std::vector<Partition>& partitions) {
  // An older server sends no order.
  if (order.empty()) return absl::OkStatus();
  std::vector<int32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int32_t> wanted = SendOrder(partitions);
  std::sort(wanted.begin(), wanted.end());
  if (sorted == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "send_order: got ", order.size(), " partitions, want each of the ",
      wanted.size(), " trainable ones once"));
}

absl::StatusOr<Registration> RegistrationFromProto(
    const v1::RegisterReply& reply, const ModelLayout& layout) {
  Registration registration;
  COHORT_ASSIGN_OR_RETURN(registration.partitions,
                          FromProto(reply.partitions(), layout));
  COHORT_ASSIGN_OR_RETURN(registration.loss_reference, LossReference(reply));
  registration.send_order.assign(reply.send_order().begin(),
                                 reply.send_order().end());
  COHORT_RETURN_IF_ERROR(
      CheckSendOrder(registration.send_order, registration.partitions));
  return registration;
}

// Reads the first reply of a pull.
absl::StatusOr<PulledVersion> PulledFromProto(const v1::PullHeader& header,
                                              const PullOptions& options) {
  PulledVersion pulled;
  COHORT_ASSIGN_OR_RETURN(pulled.layout, FromProto(header.layout()));
  COHORT_ASSIGN_OR_RETURN(pulled.partitions,
                          FromProto(header.partitions(), pulled.layout));
  COHORT_ASSIGN_OR_RETURN(pulled.statistics,
                          FromProto(header.statistics(), pulled.layout));
  pulled.version = Version(header.version());
  pulled.front_end_state = header.front_end_state();
  if (options.version.has_value() && pulled.version != *options.version) {
    return absl::InvalidArgumentError(
        absl::StrCat("pull: got version ", pulled.version.value(), ", want ",
                     options.version->value()));
  }
  if (options.weights) pulled.weights.resize(pulled.partitions.size());
  return pulled;
}

// Stores one partition at its index.
absl::Status AddPartition(FramedMessage<v1::PullReply>& reply,
                          PulledVersion& pulled) {
  const auto index = static_cast<size_t>(reply.header.partition());
  if (reply.header.partition() < 0 || index >= pulled.weights.size() ||
      pulled.weights[index].size_bytes() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pull: got partition ", reply.header.partition(),
                     ", want each below ", pulled.weights.size(), " once"));
  }
  COHORT_RETURN_IF_ERROR(CheckPayload(reply.header, reply.payload,
                                      pulled.partitions[index].elements));
  pulled.weights[index] = std::move(reply.payload);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Registration> RegisterModel(const BulkTarget& target,
                                           const RegistrationOffer& offer) {
  const Link& link = *target.link;
  BulkCall call(target, "/cohort.v1.Parameters/Register", "the registration");
  v1::RegisterRequest first;
  ToProto(target.sender, first.mutable_sender());
  ToProto(offer.layout, first.mutable_layout());
  ToProto(offer.plan, first.mutable_plan());
  ToProto(offer.statistics, first.mutable_statistics());
  AddMessageChecksum(&first);
  COHORT_RETURN_IF_ERROR(call.Send(EncodeFramed(first, ByteRope())));

  // The server answers once all workers have sent their values.
  COHORT_RETURN_IF_ERROR(call.AwaitAnswer(offer.on_wait));
  COHORT_ASSIGN_OR_RETURN(v1::RegisterReply reply,
                          ReceiveRegisterReply(call, link));
  COHORT_ASSIGN_OR_RETURN(Registration registration,
                          RegistrationFromProto(reply, offer.layout));
  if (reply.send_values()) {
    if (!offer.values.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat(link.server(),
                       ": the server lost its model: it requested the initial "
                       "weights again"));
    }
    COHORT_RETURN_IF_ERROR(SendValues(call, target.sender,
                                      registration.partitions, *offer.values));
  }
  call.FinishWrites();
  while (reply.send_values() && !reply.done()) {
    COHORT_ASSIGN_OR_RETURN(v1::RegisterReply next,
                            ReceiveRegisterReply(call, link));
    reply.set_done(next.done());
    if (next.done()) {
      COHORT_ASSIGN_OR_RETURN(registration.loss_reference, LossReference(next));
    }
  }
  // Read to the end; destroying an unfinished call would cancel it.
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(const std::optional<grpc::ByteBuffer> rest,
                            call.Receive());
    if (!rest.has_value()) return registration;
  }
}

namespace {

// A pull and its first reply.
struct BegunPull {
  std::unique_ptr<BulkCall> call;
  v1::PullHeader header;
};

// See PullRequest.
struct AtDataShard {
  int32_t shard = 0;
  int64_t generation = 0;
};

// `name` is used in errors. `at`: absent at the run's server.
absl::StatusOr<BegunPull> BeginPull(const BulkTarget& target,
                                    const PullOptions& options,
                                    const std::string& name,
                                    std::optional<AtDataShard> at = {}) {
  const Link& link = *target.link;
  BegunPull begun{.call = std::make_unique<BulkCall>(
                      target, "/cohort.v1.Parameters/Pull", name)};
  BulkCall& call = *begun.call;
  v1::PullRequest request;
  request.set_run_id(target.sender.run_id);
  if (options.version.has_value())
    request.set_version(options.version->value());
  request.set_weights(options.weights);
  request.set_statistics(options.statistics);
  request.set_statistics_kind(options.statistics_kind);
  if (at.has_value()) {
    request.set_shard(at->shard);
    request.set_generation(at->generation);
  }
  AddMessageChecksum(&request);
  COHORT_RETURN_IF_ERROR(call.Send(EncodeFrame(request, ByteRope())));
  call.FinishWrites();

  COHORT_ASSIGN_OR_RETURN(const grpc::ByteBuffer first,
                          ReceiveOne(call, link, name));
  COHORT_ASSIGN_OR_RETURN(FramedMessage<v1::PullReply> head,
                          DecodeFramed<v1::PullReply>(first));
  COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&head.header));
  begun.header.Swap(head.header.mutable_header());
  return begun;
}

// Reads the weights that follow. Returns the number of partitions.
absl::StatusOr<size_t> ReceivePartitions(BulkCall& call,
                                         PulledVersion& pulled) {
  size_t received = 0;
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(const std::optional<grpc::ByteBuffer> message,
                            call.Receive());
    if (!message.has_value()) return received;
    COHORT_ASSIGN_OR_RETURN(FramedMessage<v1::PullReply> reply,
                            DecodeFramed<v1::PullReply>(*message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&reply.header));
    COHORT_RETURN_IF_ERROR(AddPartition(reply, pulled));
    ++received;
  }
}

// Begins the pulls of the same version from the data shards.
absl::StatusOr<std::vector<BegunPull>> BeginFurtherPulls(
    const BulkTarget& target, const PullOptions& options,
    const v1::PullHeader& header) {
  std::vector<BegunPull> further;
  if (!options.weights || header.further_shards().empty()) return further;
  if (target.shards == nullptr) {
    return absl::FailedPreconditionError(
        "pull: the run has several shards, which this client cannot read");
  }
  PullOptions same = options;
  same.version = Version(header.version());
  same.statistics = false;
  for (const std::string& address : header.further_shards()) {
    const auto shard = static_cast<int32_t>(further.size()) + 1;
    COHORT_RETURN_IF_ERROR(CheckServerAddress("further_shards", address));
    BulkTarget data_shard = target;
    data_shard.channel = target.shards->To(address);
    data_shard.server = address;
    COHORT_ASSIGN_OR_RETURN(
        further.emplace_back(),
        BeginPull(
            data_shard, same, absl::StrCat("the pull from data shard ", shard),
            AtDataShard{.shard = shard, .generation = header.generation()}));
  }
  return further;
}

absl::StatusOr<PulledVersion> PullOnce(const BulkTarget& target,
                                       const PullOptions& options) {
  const Link& link = *target.link;
  COHORT_ASSIGN_OR_RETURN(const BegunPull first,
                          BeginPull(target, options, "the pull"));
  COHORT_ASSIGN_OR_RETURN(PulledVersion pulled,
                          PulledFromProto(first.header, options));
  COHORT_ASSIGN_OR_RETURN(const std::vector<BegunPull> further,
                          BeginFurtherPulls(target, options, first.header));
  COHORT_ASSIGN_OR_RETURN(size_t received,
                          ReceivePartitions(*first.call, pulled));
  for (const BegunPull& pull : further) {
    COHORT_ASSIGN_OR_RETURN(const size_t more,
                            ReceivePartitions(*pull.call, pulled));
    received += more;
  }
  if (received != pulled.weights.size()) {
    return absl::UnavailableError(
        absl::StrCat(link.server(), ": the pull ended after ", received, " of ",
                     pulled.weights.size(), " partitions"));
  }
  return pulled;
}

}  // namespace

absl::StatusOr<PulledVersion> PullVersion(const BulkTarget& target,
                                          const PullOptions& options) {
  // The newest version may be replaced before a data shard is asked for it.
  // Then the run has made another, so a reader that is overtaken repeatedly
  // is slow, not stuck; an error would cost it its assignment.
  for (;;) {
    absl::StatusOr<PulledVersion> pulled = PullOnce(target, options);
    if (!absl::IsOutOfRange(pulled.status()) || options.version.has_value()) {
      return pulled;
    }
  }
}

}  // namespace cohort
