#include <google/protobuf/stubs/logging.h>

#include <string>
#include <type_traits>
#include <vector>

#include "cohort/v1/admin.pb.h"
#include "cohort/v1/membership.pb.h"
#include "cohort/v1/moments.pb.h"
#include "cohort/v1/parameters.pb.h"
#include "common/wire/convert.h"
#include "common/wire/message_checksum.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

template <typename Message>
bool Parse(absl::string_view bytes, Message& message) {
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

// Reads bytes as a message, converts it, and back: after one round nothing
// changes any more.
template <typename Message>
void CheckRound(absl::string_view bytes) {
  Message message;
  if (!Parse(bytes, message)) return;
  const auto value = FromProto(message);
  RequireCode(value.status(), {absl::StatusCode::kInvalidArgument});
  if (!value.ok()) return;
  Message once;
  ToProto(*value, &once);
  const auto again = FromProto(once);
  COHORT_CHECK(again.ok(), again.status().ToString());
  Message twice;
  ToProto(*again, &twice);
  COHORT_CHECK(once.SerializeAsString() == twice.SerializeAsString(),
               absl::StrCat("got ", twice.ShortDebugString(), " from ",
                            once.ShortDebugString()));
}

void CheckVerdict(absl::string_view bytes) {
  v1::PushVerdict message;
  if (!Parse(bytes, message)) return;
  const absl::StatusOr<PushVerdict> verdict = FromProto(message);
  RequireCode(verdict.status(), {absl::StatusCode::kInvalidArgument});
  if (!verdict.ok()) return;
  v1::PushVerdict once;
  ToProto(*verdict, message.weights_partitions(), &once);
  const absl::StatusOr<PushVerdict> again = FromProto(once);
  COHORT_CHECK(again.ok(), again.status().ToString());
  COHORT_CHECK(again->version == verdict->version &&
                   again->next.sequence == verdict->next.sequence &&
                   once.weights_partitions() == message.weights_partitions(),
               once.ShortDebugString());
}

// The first message of a registration: a layout, and what has to fit it.
void CheckRegistration(absl::string_view bytes) {
  v1::RegisterRequest message;
  if (!Parse(bytes, message)) return;
  CheckRound<v1::ModelLayout>(message.layout().SerializeAsString());
  const absl::StatusOr<ModelLayout> layout = FromProto(message.layout());
  if (!layout.ok()) return;
  const auto statistics = FromProto(message.statistics(), *layout);
  RequireCode(statistics.status(), {absl::StatusCode::kInvalidArgument});
  if (statistics.ok()) {
    StatisticsProtos protos;
    ToProto(*statistics, &protos);
    const auto again = FromProto(protos, *layout);
    COHORT_CHECK(again.ok(), again.status().ToString());
    COHORT_CHECK(again->size() == statistics->size(), "layers are lost");
  }
  RequireCode(FromProto(message.plan()).status(),
              {absl::StatusCode::kInvalidArgument});
}

// Partitions of a layout of two parameters.
void CheckPartitions(absl::string_view bytes) {
  static const ModelLayout kLayout = {
      .parameters = {{.name = "a", .shape = {3}}, {.name = "b", .shape = {2}}}};
  v1::RegisterReply message;
  if (!Parse(bytes, message)) return;
  const auto partitions = FromProto(message.partitions(), kLayout);
  RequireCode(partitions.status(), {absl::StatusCode::kInvalidArgument});
  if (!partitions.ok()) return;
  PartitionProtos protos;
  ToProto(*partitions, &protos);
  const auto again = FromProto(protos, kLayout);
  COHORT_CHECK(again.ok() && *again == *partitions, "another partition");
}

void CheckMoments(absl::string_view bytes) {
  Reader reader(bytes);
  const int64_t count = reader.Byte() - 1;
  for (const ReducePhase phase :
       {ReducePhase::kForward, ReducePhase::kBackward}) {
    const absl::string_view values = Reader(bytes.substr(0, 400)).Rest();
    const auto moments = DecodeMoments(phase, count, values);
    RequireCode(moments.status(), {absl::StatusCode::kInvalidArgument});
    if (!moments.ok()) continue;
    std::string encoded;
    EncodeMoments(*moments, &encoded);
    COHORT_CHECK(encoded == values, "other moments");
  }
}

// One flipped bit of a message with a checksum makes it unreadable, is
// reported, or leaves every field as it was.
template <typename Message>
void CheckFlip(absl::string_view bytes, uint16_t place) {
  Message sent;
  if (!Parse(bytes, sent)) return;
  // A peer sends no field that it does not know.
  sent.DiscardUnknownFields();
  sent.clear_message_xxh3();
  AddMessageChecksum(&sent);
  std::string wire = sent.SerializeAsString();
  wire[place / 8u % wire.size()] ^= static_cast<char>(1 << place % 8u);
  Message received;
  if (!Parse(wire, received)) return;
  const absl::Status intact = TakeMessageChecksum(&received);
  RequireCode(intact, {absl::StatusCode::kDataLoss});
  if (!intact.ok()) return;
  if constexpr (std::is_same_v<Message, v1::RegisterRequest>) {
    // One flip makes the number of `xxh3` of that of `message_xxh3`. The
    // receiver compares it with the payload, if there is one.
    received.clear_xxh3();
    sent.clear_xxh3();
  }
  sent.clear_message_xxh3();
  // Sorts maps, unlike SerializeAsString.
  COHORT_CHECK(
      wire_internal::DigestOf(received) == wire_internal::DigestOf(sent),
      absl::StrCat("got ", received.ShortDebugString(), " as if it ",
                   "had been sent, but sent was ", sent.ShortDebugString()));
}

using Check = void (*)(absl::string_view bytes);
using Flip = void (*)(absl::string_view bytes, uint16_t place);

constexpr Check kChecks[] = {CheckRound<v1::Sender>,
                             CheckRound<v1::Assignment>,
                             CheckRound<v1::ModelLayout>,
                             CheckRound<v1::RunPlan>,
                             CheckRound<v1::PushKey>,
                             CheckRound<v1::PushOpening>,
                             CheckRound<v1::CallMoments>,
                             CheckRound<v1::PushClosing>,
                             CheckRound<v1::ReduceKey>,
                             CheckRound<v1::ReportRequest>,
                             CheckVerdict,
                             CheckRegistration,
                             CheckPartitions,
                             CheckMoments};
constexpr Flip kFlips[] = {
    CheckFlip<v1::SessionRequest>,   CheckFlip<v1::SessionReply>,
    CheckFlip<v1::ReportRequest>,    CheckFlip<v1::ReportReply>,
    CheckFlip<v1::RegisterRequest>,  CheckFlip<v1::RegisterReply>,
    CheckFlip<v1::ExchangeRequest>,  CheckFlip<v1::ExchangeReply>,
    CheckFlip<v1::PullRequest>,      CheckFlip<v1::PullReply>,
    CheckFlip<v1::ReduceRequest>,    CheckFlip<v1::ReduceReply>,
    CheckFlip<v1::SetPolicyRequest>, CheckFlip<v1::EvictRequest>};
constexpr int32_t kCheckCount = std::size(kChecks);
constexpr int32_t kFlipCount = std::size(kFlips);

void RunConvert(absl::string_view input) {
  // Protobuf prints a line for each text that is not UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  Reader reader(input);
  const int32_t kind = reader.Below(kCheckCount + kFlipCount);
  if (kind < kCheckCount) return kChecks[kind](reader.Rest());
  const auto place = static_cast<uint16_t>(reader.Byte() | reader.Byte() << 8);
  kFlips[kind - kCheckCount](reader.Rest(), place);
}

std::string Seed(int32_t kind, const google::protobuf::MessageLite& message) {
  std::string seed(1, static_cast<char>(kind));
  if (kind >= kCheckCount) seed.append("\x07\x01", 2);
  return seed + message.SerializeAsString();
}

Assignment ExampleAssignment() {
  return {.kind = AssignmentKind::kTrain,
          .sequence = Sequence(5),
          .attempt = Attempt(1),
          .version = Version(4),
          .members = {Rank(0), Rank(2)},
          .range = {.begin = 8, .end = 16},
          .reason = "next"};
}

v1::RegisterRequest ExampleRegistration() {
  const ModelLayout layout = {
      .parameters = {{.name = "conv.weight", .shape = {2, 3}},
                     {.name = "bias", .shape = {1}, .rate_multiplier = 2}},
      .batch_norms = {{.name = "bn", .channels = 1, .momentum = std::nullopt}}};
  v1::RegisterRequest request;
  request.mutable_sender()->set_run_id("run");
  ToProto(layout, request.mutable_layout());
  ToProto(InitialStatistics(layout), request.mutable_statistics());
  ToProto(
      RunPlan{.dataset = "d", .train_samples = 9, .optimizer = {{"a", "b"}}},
      request.mutable_plan());
  return request;
}

std::vector<std::string> ControlSeeds() {
  v1::SessionRequest join;
  join.mutable_join()->set_batch_size(32);
  join.mutable_join()->set_fingerprint("f");
  v1::SessionRequest beat;
  (*beat.mutable_heartbeat()->mutable_phase_seconds())["push"] = 0.5;
  beat.mutable_heartbeat()->set_cpu_cores(2);
  v1::SessionReply joined;
  joined.mutable_joined()->set_seed(7);
  joined.mutable_joined()->set_run_id("run");
  v1::SessionReply told;
  ToProto(ExampleAssignment(), told.mutable_assignment());
  v1::PullRequest pull;
  pull.set_version(3);
  pull.set_weights(true);
  v1::SetPolicyRequest change;
  (*change.mutable_settings())["learning_rate"] = "0.1";
  v1::EvictRequest evict;
  evict.set_rank(1);
  return {Seed(kCheckCount + 12, change), Seed(kCheckCount + 13, evict),
          Seed(kCheckCount, join),        Seed(kCheckCount, beat),
          Seed(kCheckCount + 1, joined),  Seed(kCheckCount + 1, told),
          Seed(kCheckCount + 8, pull)};
}

std::vector<std::string> ConvertSeeds() {
  std::vector<std::string> seeds = ControlSeeds();
  v1::Sender sender;
  ToProto(Sender{.run_id = "r", .rank = Rank(1), .incarnation = Incarnation(3)},
          &sender);
  v1::Assignment assignment;
  ToProto(ExampleAssignment(), &assignment);
  const v1::RegisterRequest registration = ExampleRegistration();
  v1::ExchangeRequest closing;
  ToProto(PushClosing{.loss_sum = 1.5,
                      .correct = 1,
                      .labels = 2,
                      .batch_norm_calls = {1},
                      .moments = {{.moments = {.count = 4,
                                               .first = {1, 2},
                                               .second = {3, 4}}}},
                      .measures = {{.name = "m", .sum = 1, .weight = 2}}},
          closing.mutable_closing());
  v1::ReportRequest report;
  ToProto(EvaluationSums{.samples = 3,
                         .loss_sum = 1,
                         .loss_weight = 3,
                         .correct = 2,
                         .labels = 3,
                         .top5_correct = 3},
          &report);
  v1::PushVerdict verdict;
  ToProto(PushVerdict{.version = Version(5), .next = ExampleAssignment()}, 2,
          &verdict);
  v1::RegisterReply partitions;
  ToProto(MakePartitions({.parameters = {{.name = "a", .shape = {3}},
                                         {.name = "b", .shape = {2}}}},
                         8),
          partitions.mutable_partitions());
  v1::ReduceRequest reduce;
  ToProto(ReduceKey{.step = Version(2),
                    .place = {.part = 1,
                              .layer = 1,
                              .site = "head",
                              .phase = ReducePhase::kBackward,
                              .path = {2, 0, 1}}},
          reduce.mutable_key());
  EncodeMoments({.count = 4, .first = {1}, .second = {2}},
                reduce.mutable_values());
  seeds.insert(
      seeds.end(),
      {Seed(0, sender), Seed(1, assignment), Seed(2, registration.layout()),
       Seed(3, registration.plan()), Seed(4, v1::PushKey()),
       Seed(5, v1::PushOpening()), Seed(6, closing.closing().moments(0)),
       Seed(7, closing.closing()), Seed(8, reduce.key()), Seed(9, report),
       Seed(10, verdict), Seed(11, registration), Seed(12, partitions),
       "\x0d\x04" + reduce.values(), Seed(kCheckCount + 2, report),
       Seed(kCheckCount + 4, registration), Seed(kCheckCount + 5, partitions),
       Seed(kCheckCount + 6, closing), Seed(kCheckCount + 10, reduce)});
  return seeds;
}

}  // namespace

Target ConvertTarget() {
  return {.name = "convert",
          .run = RunConvert,
          .seeds = ConvertSeeds,
          .input_bytes_max = 512};
}

}  // namespace cohort::fuzz
