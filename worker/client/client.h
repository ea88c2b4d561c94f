#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/byte_rope.h"
#include "common/departure.h"
#include "common/evaluation_sums.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "common/security/tls_files.h"
#include "worker/client/client_hooks.h"
#include "worker/client/local_mode.h"

namespace cohort {

struct ClientOptions {
  // host:port of the server.
  std::string server;
  // Empty: plaintext.
  TlsFiles tls;
  // If absent, the lowest vacant rank.
  std::optional<Rank> rank;
  int64_t batch_size = 0;
  // The most samples of one batch, where the server's --shares gives more; 0:
  // not stated.
  int64_t batch_size_max = 0;
  std::string fingerprint;
  std::string description;
  // Version and commit of the program, for people.
  std::string build;
  // How long the client waits for an unreachable server, or for a rank that is
  // still taken, before it gives up.
  absl::Duration server_timeout = absl::Minutes(5);
  // How long after its certificate has expired the client gives up, unless
  // the files of `tls` hold a new one.
  absl::Duration own_certificate_grace = absl::Seconds(10);
  // How gradients and weights travel if the server is on this host.
  LocalMode local = LocalMode::kAuto;
  // Seeds the jitter of the back-off.
  uint64_t backoff_seed = 0;
  // Must outlive the client. May be null.
  ClientHooks* hooks = nullptr;
};

// The server's answer to a join.
struct Membership {
  Rank rank;
  std::string run_id;
  Incarnation incarnation;
  uint64_t seed = 0;
  Version version;
  int32_t workers = 0;
  // Samples of a step; 0: what the workers' batches add up to.
  int64_t global_batch = 0;
  std::string policy;
  std::string run_name;
};

struct Registration {
  std::vector<Partition> partitions;
  double loss_reference = 1;
  // Every trainable partition once, in the order in which all workers send
  // their gradients. If empty, any order.
  std::vector<int32_t> send_order;
};

// One attempt of a step: the part that the keys of its rendezvous have in
// common.
struct ReducePass {
  Version step;
  Attempt attempt;
};

// One consistent version. `weights` has one rope a partition, `statistics` one
// entry a batch-norm layer; each is empty if not requested.
struct PulledVersion {
  Version version;
  ModelLayout layout;
  std::vector<Partition> partitions;
  std::vector<ByteRope> weights;
  std::vector<LayerStatistics> statistics;
  // The training programs' state at this version; see PushClosing. Empty: none
  // was sent.
  std::string front_end_state;
};

// Which version to read, and which parts of it.
struct PullOptions {
  // If absent, the newest.
  std::optional<Version> version;
  bool weights = false;
  bool statistics = false;
  // The name of the moving statistics to read; if empty, the first.
  std::string statistics_kind;
};

// A push that was decided, and the weights that came with it: one rope a
// partition. The rope is empty for frozen partitions and if the verdict carries
// no weights.
struct PushResult {
  PushVerdict verdict;
  std::vector<ByteRope> weights;
};

// The program has the state of a version that it keeps beside the model; see
// proto/cohort/v1/kept_state.proto.
struct StateHolding {
  Version version;
  // The first version whose state is not the initial one.
  Version moves_from;
  // It begins no further step.
  bool last = false;
};

struct TakenState {
  // It is that of a program that has just started; the rest is empty.
  bool initial = false;
  // The assignment is void; only within the client.
  bool over = false;
  Version moves_from;
  std::string bytes;
};

// A worker's side of the protocol. Knows nothing of LibTorch.
//
// One incarnation: Join, Register, then for each assignment the calls that end
// it. Whenever a call returns Aborted or Unavailable, the assignment in
// progress is void: call NextAssignment, which reconnects if it must (same
// rank, same incarnation if the server still knows it) and returns the next
// assignment. Contributions are pure functions of the assignment, so repeating
// one is harmless.
//
// Thread safety: one thread drives the client. RequestStop may be called
// from any thread or a signal-watching thread.
// Errors of every call, besides its own: Aborted (the assignment is void),
//   Unavailable (connection lost, the assignment is void), FailedPrecondition
//   (wrong run or layout: final), Cancelled (RequestStop, or the run no longer
//   needs this rank), DeadlineExceeded (server_timeout passed; says what was
//   waited for).
class Client {
 public:
  virtual ~Client() = default;

  // Connects and joins. While the server is not reachable or the rank is still
  // taken, retries until server_timeout.
  virtual absl::StatusOr<Membership> Join() = 0;

  // Registers the model, or verifies it if it is registered already.
  // `values[i]` are the float32 elements of layout.parameters[i]. They must
  // stay valid during the call and are sent only if the server requests them.
  // `statistics` may be empty.
  virtual absl::StatusOr<Registration> Register(
      const ModelLayout& layout, const RunPlan& plan,
      absl::Span<const absl::Span<const float>> values,
      absl::Span<const LayerStatistics> statistics) = 0;

  // The incarnation of this worker that the newest assignment belongs to. When
  // it changes, the server may have been restarted from an older version, so
  // version numbers read before are no longer valid.
  virtual Incarnation incarnation() const = 0;

  // Blocks until there is work or the run has finished (kFinished). kWait is
  // waited out here and reported to the observer.
  virtual absl::StatusOr<Assignment> NextAssignment() = 0;

  // Reads one version.
  // Errors: OutOfRange if the version is not held; DataLoss if it arrives
  //   damaged, however often it is read again.
  virtual absl::StatusOr<PulledVersion> Pull(const PullOptions& options) = 0;

  // Contributes to one rendezvous for each of `local`, all at once, and blocks
  // until they are complete. Returns the moments of all members, in the same
  // order. Their places must differ.
  virtual absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const Contribution> local) = 0;

  // The push of the current training assignment: open once after the forward
  // pass, then each trainable partition once, then close. `gradient` holds the
  // partition's slices concatenated, float32; it is sent without a copy, unless
  // the assignment asks for another type, and kept alive by its owners.
  // `absent_slices` are positions in Partition::slices without a gradient
  // (their bytes must be zeros). If all are, the bytes may be left out.
  //
  // A step of several optimizers makes several updates of the weights: each is
  // opened and sent, and all but the last (PushOpening::continues) end with
  // AwaitUpdate.
  virtual absl::Status OpenPush(const PushOpening& opening) = 0;
  virtual absl::Status SendGradient(
      int32_t partition, ByteRope gradient,
      absl::Span<const int32_t> absent_slices) = 0;
  // Blocks until the weights that the update makes have arrived: one rope a
  // partition, empty for frozen ones. They belong to no version.
  virtual absl::StatusOr<std::vector<ByteRope>> AwaitUpdate() = 0;
  // Blocks until the verdict and the weights that it announces have arrived.
  virtual absl::StatusOr<PushResult> ClosePush(const PushClosing& closing) = 0;
  // Asks again what became of an earlier push, whose ClosePush ended without a
  // verdict: sends its closing once more. Call it within a training assignment,
  // before OpenPush.
  // Errors also: FailedPrecondition if the server does not know the push,
  //   because it was restarted from an earlier version; the connection is then
  //   lost.
  virtual absl::StatusOr<PushVerdict> RepeatClosing(
      const PushKey& key, const PushClosing& closing) = 0;

  // Returns whether the server wants the state: pass it to GiveState at once.
  // Errors also: FailedPrecondition, where no state can be kept.
  virtual absl::StatusOr<bool> HoldState(const StateHolding& holding) = 0;
  // Errors also: ResourceExhausted, if it is too large.
  virtual absl::Status GiveState(Version version, absl::string_view bytes) = 0;
  // Waits for the state of the version of the training assignment.
  virtual absl::StatusOr<TakenState> TakeState() = 0;

  // Ends an evaluation assignment.
  virtual absl::Status ReportEvaluation(const EvaluationSums& sums) = 0;

  // Ends a collection of moments: all calls of the batch, ascending by (layer,
  // call).
  virtual absl::Status ReportMoments(absl::Span<const CallMoments> calls) = 0;

  // Leaves on purpose; the rank becomes vacant at once.
  virtual void Leave(const Departure& departure) = 0;

  // Makes the call in progress, and later ones, end with Cancelled.
  virtual void RequestStop() = 0;

  // Called with a sentence whenever the client starts to wait for something
  // other than the network, reconnects or repeats a step.
  virtual void SetObserver(
      std::function<void(const std::string&)> observer) = 0;
};

// Settings of the network library for the whole process; what it would print
// goes to `log`, from any thread. Call it before creating any client.
void PrepareTransport(void (*log)(absl::string_view text));

// A GrpcClient whose calls a RetryingClient repeats.
// Errors: InvalidArgument if the options are invalid.
absl::StatusOr<std::unique_ptr<Client>> MakeGrpcClient(
    const ClientOptions& options);

}  // namespace cohort
