#include "worker/client/state_call.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "cohort/v1/kept_state.grpc.pb.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "worker/client/unary_call.h"

namespace cohort {
namespace {

constexpr char kKeptState[] = "the kept state";
constexpr int64_t kPieceBytes = int64_t{4} << 20;

using Stub = v1::KeptState::Stub;

}  // namespace

absl::StatusOr<bool> StateCalls::Hold(const StateHolding& holding) const {
  const std::unique_ptr<Stub> stub = v1::KeptState::NewStub(channel);
  v1::HoldRequest request;
  ToProto(sender, request.mutable_sender());
  request.set_version(holding.version.value());
  request.set_moves_from(holding.moves_from.value());
  request.set_last(holding.last);
  COHORT_ASSIGN_OR_RETURN(const v1::HoldReply reply,
                          CallUnary(link, kKeptState, deadline, stub->async(),
                                    &Stub::async::Hold, request));
  return reply.wanted();
}

absl::Status StateCalls::Give(Version version, absl::string_view bytes) const {
  const std::unique_ptr<Stub> stub = v1::KeptState::NewStub(channel);
  const auto total = static_cast<int64_t>(bytes.size());
  for (int64_t offset = 0; offset < total; offset += kPieceBytes) {
    v1::GiveRequest request;
    ToProto(sender, request.mutable_sender());
    request.set_version(version.value());
    request.set_offset(offset);
    request.set_total(total);
    request.set_piece(std::string(
        bytes.substr(static_cast<size_t>(offset),
                     static_cast<size_t>(std::min(kPieceBytes, total)))));
    COHORT_ASSIGN_OR_RETURN(const v1::GiveReply reply,
                            CallUnary(link, kKeptState, deadline, stub->async(),
                                      &Stub::async::Give, request));
    if (reply.enough()) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TakenState>> StateCalls::Take(
    const Assignment& assignment) const {
  const std::unique_ptr<Stub> stub = v1::KeptState::NewStub(channel);
  TakenState taken;
  int64_t total = 0;
  do {
    v1::TakeRequest request;
    ToProto(sender, request.mutable_sender());
    ToProto(
        PushKey{.sequence = assignment.sequence, .attempt = assignment.attempt},
        request.mutable_key());
    request.set_version(assignment.version.value());
    request.set_members(static_cast<int32_t>(assignment.members.size()));
    request.set_offset(static_cast<int64_t>(taken.bytes.size()));
    COHORT_ASSIGN_OR_RETURN(const v1::TakeReply reply,
                            CallUnary(link, kKeptState, deadline, stub->async(),
                                      &Stub::async::Take, request));
    if (reply.answer() == v1::TakeReply::ANSWER_INITIAL) {
      return TakenState{.initial = true};
    }
    if (reply.answer() == v1::TakeReply::ANSWER_OVER) {
      return TakenState{.over = true};
    }
    // Another state may have taken its place between two pieces.
    if (reply.answer() != v1::TakeReply::ANSWER_HERE || reply.piece().empty() ||
        (total > 0 && reply.total() != total)) {
      return std::optional<TakenState>();
    }
    total = reply.total();
    taken.moves_from = Version(reply.moves_from());
    taken.bytes += reply.piece();
  } while (static_cast<int64_t>(taken.bytes.size()) < total);
  return taken;
}

}  // namespace cohort
