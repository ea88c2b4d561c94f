#include "server/run/kept_states.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cohort {

void KeptStates::Restore(const RunState& state) {
  MutexLock lock(mu_);
  const Version version = state.snapshot->version;
  if (state.kept_state == nullptr) {
    restored_without_ = version;
    return;
  }
  moves_from_ = state.kept_moves_from;
  held_ = {.version = version, .bytes = state.kept_state};
}

bool KeptStates::IsAwaitedLocked(Version version) const {
  return wanted_ ||
         std::any_of(takers_.begin(), takers_.end(), [&](const auto& taker) {
           return taker.second.version == version;
         });
}

absl::StatusOr<bool> KeptStates::Hold(const Sender& from,
                                      const Holding& holding) {
  MutexLock lock(mu_);
  if (!moves_from_.has_value() && restored_without_.has_value() &&
      *restored_without_ >= holding.moves_from) {
    return absl::FailedPreconditionError(absl::StrCat(
        "kept state: the run continues from a checkpoint of step ",
        restored_without_->value(),
        ", which has none, but the script has kept "
        "one since step ",
        holding.moves_from.value(),
        "; start a new run, or continue with the script that wrote it"));
  }
  if (!moves_from_.has_value() || holding.moves_from < *moves_from_) {
    moves_from_ = holding.moves_from;
  }
  takers_.erase(from.rank);
  const Version version = holding.version;
  if (!MovesLocked(version) || HasLocked(version)) return false;
  if (!IsAwaitedLocked(version) && !holding.last) return false;
  // One sends it. Its own Hold means that it begins again.
  if (giving_.has_value() && giving_->version == version &&
      giving_->from.rank != from.rank) {
    return false;
  }
  giving_ = Giving{.from = from, .version = version, .bytes = {}};
  return true;
}

std::optional<Sender> KeptStates::giver() const {
  MutexLock lock(mu_);
  if (!giving_.has_value()) return std::nullopt;
  return giving_->from;
}

void KeptStates::Forget(Incarnation giver) {
  MutexLock lock(mu_);
  if (giving_.has_value() && giving_->from.incarnation == giver) {
    giving_.reset();
  }
}

absl::StatusOr<KeptStates::Receipt> KeptStates::Give(Rank rank, Piece piece) {
  MutexLock lock(mu_);
  if (piece.total < 0 || piece.total > kBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("kept state: got ", piece.total, " bytes, want 0 to ",
                     kBytesMax, "; keep fewer or smaller tensors"));
  }
  if (!giving_.has_value() || giving_->from.rank != rank ||
      giving_->version != piece.version) {
    return Receipt{.enough = true};
  }
  std::string& bytes = giving_->bytes;
  const auto begin = static_cast<int64_t>(bytes.size());
  const auto size = static_cast<int64_t>(piece.bytes.size());
  if (piece.offset != begin || size == 0 || size > piece.total - begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("kept state: got ", size, " bytes from ", piece.offset,
                     " on of ", piece.total, ", want 1 to ",
                     piece.total - begin, " from ", begin, " on"));
  }
  bytes.append(piece.bytes);
  if (begin + size < piece.total) return Receipt{};
  held_ = {.version = piece.version,
           .bytes = std::make_shared<const std::string>(std::move(bytes))};
  giving_.reset();
  captured_.reset();
  wanted_ = false;
  const bool awaits_run =
      !waits_.empty() && waits_.begin()->first < piece.version;
  // Otherwise once the run's state is there.
  if (!awaits_run) changed_.NotifyAll();
  return Receipt{.enough = true, .awaits_run = awaits_run};
}

void KeptStates::Capture(RunState state) {
  MutexLock lock(mu_);
  captured_ = std::move(state);
  changed_.NotifyAll();
}

absl::StatusOr<KeptStates::Answer> KeptStates::Take(const Request& request) {
  using Kind = Answer::Kind;
  MutexLock lock(mu_);
  if (!MovesLocked(request.version)) return Answer{.kind = Kind::kInitial};
  if (HasLocked(request.version)) {
    const std::string& bytes = *held_->bytes;
    const auto total = static_cast<int64_t>(bytes.size());
    if (request.offset >= total) {
      return absl::InvalidArgumentError(
          absl::StrCat("kept state: got offset ", request.offset,
                       ", want less than ", total));
    }
    return Answer{.kind = Kind::kHere,
                  .moves_from = *moves_from_,
                  .total = total,
                  .piece = bytes.substr(static_cast<size_t>(request.offset),
                                        kPieceBytes)};
  }
  const Taker taker{.incarnation = request.incarnation,
                    .version = request.version,
                    .attempt = request.attempt};
  const auto known = takers_.find(request.rank);
  const bool first = known == takers_.end() ||
                     known->second.incarnation != taker.incarnation ||
                     known->second.version != taker.version;
  takers_[request.rank] = taker;
  const auto without =
      std::count_if(takers_.begin(), takers_.end(), [&](const auto& other) {
        return other.second.version == request.version &&
               other.second.attempt == request.attempt;
      });
  if (without >= request.members) return Answer{.kind = Kind::kLost};
  if (!first) return Answer{.kind = Kind::kAwaited};
  // The sender may be the one that has died.
  giving_.reset();
  return Answer{.kind = Kind::kRepeat};
}

void KeptStates::Want(Version version) {
  MutexLock lock(mu_);
  wanted_ = wanted_ || MovesLocked(version);
}

bool KeptStates::Lacks(Version version) const {
  MutexLock lock(mu_);
  return MovesLocked(version) && !HasLocked(version);
}

bool KeptStates::CompleteLocked(RunState& state) {
  if (!held_.has_value()) return false;
  if (!HasLocked(state.snapshot->version)) {
    if (!captured_.has_value() || !HasLocked(captured_->snapshot->version)) {
      return false;
    }
    state = *captured_;
  }
  state.kept_state = held_->bytes;
  state.kept_moves_from = *moves_from_;
  return true;
}

absl::StatusOr<RunState> KeptStates::Complete(RunState state,
                                              absl::Duration patience) {
  const Instant until = clock_.Now() + patience;
  MutexLock lock(mu_);
  const Version version = state.snapshot->version;
  if (state.kept_state != nullptr || !MovesLocked(version)) return state;
  ++waits_[version];
  bool in_time = true;
  while (!CompleteLocked(state) && in_time) {
    wanted_ = true;
    const absl::Duration left =
        std::min(until, closes_.value_or(until)) - clock_.Now();
    if (left == absl::InfiniteDuration()) {
      changed_.Wait(mu_);
    } else if (left > absl::ZeroDuration()) {
      changed_.WaitFor(mu_, left);
    } else {
      in_time = false;
    }
  }
  if (--waits_[version] == 0) waits_.erase(version);
  if (waits_.empty()) captured_.reset();
  if (in_time) return state;
  return absl::UnavailableError(absl::StrCat(
      "no worker has sent the kept state of step ", version.value(),
      " or of a later one; it is sent at the beginning of a "
      "step"));
}

void KeptStates::CloseAfter(absl::Duration patience) {
  MutexLock lock(mu_);
  closes_ = clock_.Now() + patience;
  changed_.NotifyAll();
}

}  // namespace cohort
