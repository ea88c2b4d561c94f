// A network that damages messages: the weights equal those of an intact run, or
// the run reports the damage. They are never different.

#include <gtest/gtest.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/float_buffer.h"
#include "common/status_macros.h"
#include "server/main/server.h"
#include "tests/fakes/flipping_proxy.h"
#include "worker/client/client.h"

namespace cohort {
namespace {

constexpr int32_t kWorkers = 2;
constexpr int64_t kBatch = 4;
constexpr int64_t kSteps = 3;
constexpr int64_t kElements = 2048;
constexpr size_t kChannels = 16;

ModelLayout SmallLayout() {
  return {.parameters = {{.name = "w", .shape = {kElements}}},
          .batch_norms = {
              {.name = "bn", .channels = static_cast<int64_t>(kChannels)}}};
}

// One rank of a made-up model whose gradient depends on all inputs of a worker:
// weights, moments, seed, range and version.
class SmallWorker {
 public:
  SmallWorker(const std::string& server, Rank rank, bool local)
      : server_(server), rank_(rank), local_(local) {}

  absl::Status Run() {
    COHORT_ASSIGN_OR_RETURN(client_,
                            MakeGrpcClient({.server = server_,
                                            .rank = rank_,
                                            .batch_size = kBatch,
                                            .server_timeout = absl::Seconds(4),
                                            // Shared memory passes no proxy.
                                            .local = LocalMode::kTcp}));
    COHORT_ASSIGN_OR_RETURN(const Membership joined, client_->Join());
    seed_ = static_cast<double>(joined.seed);
    const std::vector<float> ones(static_cast<size_t>(kElements), 1.0f);
    const absl::Span<const float> values(ones);
    const std::vector<LayerStatistics> statistics = {
        {.mean = std::vector<double>(kChannels, 0.5),
         .variance = std::vector<double>(kChannels, 2.0)}};
    COHORT_ASSIGN_OR_RETURN(
        registration_,
        client_->Register(SmallLayout(),
                          {.dataset = "small",
                           .dataset_digest = "00",
                           .train_samples = kWorkers * kBatch * kSteps,
                           .test_samples = 6,
                           .loss_reference = kWorkers * kBatch},
                          absl::MakeConstSpan(&values, 1), statistics));
    for (;;) {
      COHORT_ASSIGN_OR_RETURN(const Assignment next,
                              Again(client_->NextAssignment()));
      if (next.kind == AssignmentKind::kFinished) {
        client_->Leave({.reason = "done"});
        return absl::OkStatus();
      }
      const absl::Status done =
          next.kind == AssignmentKind::kTrain ? Train(next) : Evaluate(next);
      if (!done.ok() && !IsRepeated(done)) return done;
    }
  }

 private:
  static bool IsRepeated(const absl::Status& status) {
    return absl::IsAborted(status) || absl::IsUnavailable(status);
  }

  absl::StatusOr<Assignment> Again(absl::StatusOr<Assignment> next) {
    while (!next.ok() && IsRepeated(next.status())) {
      next = client_->NextAssignment();
    }
    return next;
  }

  absl::Status ReadWeights(Version version) {
    if (incarnation_ == client_->incarnation() && version_ == version) {
      return absl::OkStatus();
    }
    COHORT_ASSIGN_OR_RETURN(
        const PulledVersion pulled,
        client_->Pull(
            {.version = version, .weights = true, .statistics = true}));
    weights_ = pulled.weights;
    version_ = version;
    incarnation_ = client_->incarnation();
    return absl::OkStatus();
  }

  std::vector<float> Weights() const {
    std::vector<float> floats;
    for (const ByteRope& rope : weights_) {
      std::vector<float> part(static_cast<size_t>(rope.size_bytes()) / 4);
      rope.CopyTo(absl::MakeSpan(reinterpret_cast<std::byte*>(part.data()),
                                 part.size() * 4));
      floats.insert(floats.end(), part.begin(), part.end());
    }
    return floats;
  }

  Contribution LocalMoments(const Assignment& told, double factor) const {
    Contribution call;
    call.moments.count = told.range.size() * 4;
    const std::vector<float> weights = Weights();
    for (size_t c = 0; c < kChannels; ++c) {
      const double mean = weights[c] * (1.0 + static_cast<double>(c)) +
                          factor * static_cast<double>(told.range.begin);
      call.moments.first.push_back(mean);
      call.moments.second.push_back(mean * mean + seed_);
    }
    return call;
  }

  absl::Status Train(const Assignment& told) {
    COHORT_RETURN_IF_ERROR(ReadWeights(told.version));
    const Contribution forward = LocalMoments(told, 0.25);
    Contribution backward = LocalMoments(told, -0.5);
    backward.place.phase = ReducePhase::kBackward;
    std::vector<Moments> all = {forward.moments, backward.moments};
    if (!local_) {
      const ReducePass pass{.step = told.version, .attempt = told.attempt};
      COHORT_ASSIGN_OR_RETURN(
          const std::vector<Moments> f,
          client_->Reduce(pass, absl::MakeConstSpan(&forward, 1)));
      COHORT_ASSIGN_OR_RETURN(
          const std::vector<Moments> b,
          client_->Reduce(pass, absl::MakeConstSpan(&backward, 1)));
      all = {f[0], b[0]};
    }
    COHORT_RETURN_IF_ERROR(client_->OpenPush(
        {.version = told.version,
         .samples = told.range.size(),
         .loss_weight = static_cast<double>(told.range.size())}));
    const std::vector<float> weights = Weights();
    size_t at = 0;
    for (size_t p = 0; p < registration_.partitions.size(); ++p) {
      auto gradient =
          std::make_shared<FloatBuffer>(registration_.partitions[p].elements);
      for (float& g : absl::MakeSpan(gradient->data(),
                                     static_cast<size_t>(gradient->size()))) {
        const size_t c = at % kChannels;
        g = static_cast<float>(1e-3 * weights[at] * all[0].first[c] +
                               1e-4 * all[1].second[c] /
                                   registration_.loss_reference +
                               1e-3 * static_cast<double>(at % 7));
        ++at;
      }
      COHORT_RETURN_IF_ERROR(
          client_->SendGradient(static_cast<int32_t>(p), RopeOf(gradient), {}));
    }
    PushClosing closing{.loss_sum = all[0].first[0],
                        .correct = 1,
                        .labels = told.range.size(),
                        .batch_norm_calls = {1}};
    if (local_) {
      closing.moments = {{.moments = forward.moments}};
    } else {
      closing.contributions = 2;
    }
    COHORT_ASSIGN_OR_RETURN(const PushResult result,
                            client_->ClosePush(closing));
    version_ = Version(-1);
    if (!IsApplied(result.verdict.verdict) || result.weights.empty() ||
        result.weights[0].size_bytes() == 0) {
      return absl::OkStatus();
    }
    weights_ = result.weights;
    version_ = result.verdict.version;
    return absl::OkStatus();
  }

  absl::Status Evaluate(const Assignment& told) {
    return client_->ReportEvaluation({.samples = told.range.size(),
                                      .loss_sum = 1.5,
                                      .loss_weight = 2,
                                      .correct = 1,
                                      .labels = told.range.size()});
  }

  const std::string server_;
  const Rank rank_;
  const bool local_;
  std::unique_ptr<Client> client_;
  Registration registration_;
  double seed_ = 0;
  Version version_{-1};
  Incarnation incarnation_;
  std::vector<ByteRope> weights_;
};

struct RunEnd {
  // The error that any worker, or the run, reported.
  absl::Status error;
  // Weights and statistics; empty after an error.
  std::string bits;
  bool flipped = false;
};

std::string BitsOf(const ModelSnapshot& snapshot) {
  std::string bits;
  for (const SharedFloats& floats : snapshot.weights) {
    bits += RopeOf(floats).ToString();
  }
  const auto add = [&bits](const std::vector<double>& values) {
    bits.append(reinterpret_cast<const char*>(values.data()),
                values.size() * sizeof(double));
  };
  for (const LayerStatistics& layer : snapshot.statistics->front().layers) {
    add(layer.mean);
    add(layer.variance);
    absl::StrAppend(&bits, layer.num_batches_tracked);
  }
  return bits;
}

RunEnd Train(bool local, const std::optional<BitFlip>& flip) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.ops_listen = "";
  CoordinatorOptions& run = options.coordinator;
  run.workers = kWorkers;
  run.epochs = 1;
  run.optimizer = {.kind = OptimizerKind::kSgd,
                   .learning_rate = 0.1,
                   .weight_decay = 0,
                   .schedule = ScheduleKind::kConstant};
  run.partition_bytes = 2048;
  if (local) run.policy.normalization = NormalizationKind::kLocal;
  std::ostringstream out;
  absl::StatusOr<std::unique_ptr<Server>> server = StartServer(options, out);
  EXPECT_TRUE(server.ok()) << server.status();
  std::optional<FlippingProxy> proxy;
  if (flip.has_value()) proxy.emplace((*server)->address(), *flip);
  const std::string address =
      proxy.has_value() ? proxy->address() : (*server)->address();
  std::vector<absl::Status> statuses(kWorkers);
  std::vector<std::jthread> workers;
  for (int32_t r = 0; r < kWorkers; ++r) {
    workers.emplace_back([&, r] {
      absl::Status& status = statuses[static_cast<size_t>(r)];
      status = SmallWorker(address, Rank(r), local).Run();
      if (!status.ok()) (*server)->RequestStop();
    });
  }
  const RunSummary summary = (*server)->Wait();
  workers.clear();
  RunEnd end;
  for (const absl::Status& status : statuses) {
    if (end.error.ok()) end.error = status;
  }
  if (end.error.ok() && summary.outcome != RunOutcome::kFinished) {
    end.error = absl::InternalError(absl::StrCat("the run: ", summary.reason));
  }
  if (end.error.ok()) end.bits = BitsOf(*summary.snapshot);
  end.flipped = proxy.has_value() && proxy->flipped();
  return end;
}

// The messages that a series of runs damages.
struct Target {
  std::string service;
  bool to_server = true;
  size_t bytes_min = 1;
  size_t bytes_max = size_t{1} << 30;
  // Distance between the damaged message of one run and that of the next.
  int spread = 1;
  // Normalisation by local batches: moments travel in closing messages.
  bool local = false;
};

// The runs of a series, several at a time, because a damaged run may wait for
// seconds until a worker gives up.
std::vector<RunEnd> TrainAll(bool local, const std::vector<BitFlip>& flips) {
  constexpr size_t kRunsAtATime = 4;
  std::vector<RunEnd> ends(flips.size());
  std::atomic<size_t> next = 0;
  std::vector<std::jthread> lanes;
  for (size_t lane = 0; lane < kRunsAtATime; ++lane) {
    lanes.emplace_back([&] {
      for (size_t i = next++; i < flips.size(); i = next++) {
        ends[i] = Train(local, flips[i]);
      }
    });
  }
  lanes.clear();
  return ends;
}

void DamageEach(const Target& target, const std::vector<size_t>& bytes) {
  const RunEnd intact = Train(target.local, std::nullopt);
  ASSERT_TRUE(intact.error.ok()) << intact.error;
  ASSERT_FALSE(intact.bits.empty());
  std::vector<BitFlip> flips;
  for (size_t i = 0; i < bytes.size(); ++i) {
    flips.push_back({.service = target.service,
                     .to_server = target.to_server,
                     .message = static_cast<int>(i % 4) * target.spread,
                     .bytes_min = target.bytes_min,
                     .bytes_max = target.bytes_max,
                     .byte = bytes[i],
                     .bit = static_cast<int>(i % 8)});
  }
  const std::vector<RunEnd> ends = TrainAll(target.local, flips);
  int flipped = 0;
  int named = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const RunEnd& end = ends[i];
    flipped += end.flipped;
    if (!end.error.ok()) {
      ++named;
      std::cout << "byte " << flips[i].byte << ": " << end.error << "\n";
      EXPECT_FALSE(end.error.message().empty());
      // Errors that say that a worker does not fit, and shall not come again.
      EXPECT_FALSE(absl::IsInvalidArgument(end.error) ||
                   absl::IsFailedPrecondition(end.error) ||
                   absl::IsUnimplemented(end.error))
          << end.error;
      continue;
    }
    EXPECT_EQ(end.bits == intact.bits, true)
        << target.service << (target.to_server ? " request" : " reply")
        << ", byte " << flips[i].byte << ", bit " << flips[i].bit;
  }
  // Otherwise the test would have looked only at intact runs.
  EXPECT_EQ(flipped, static_cast<int>(bytes.size()));
  std::cout << target.service
            << (target.to_server ? " requests: " : " replies: ") << named
            << " of " << flipped << " runs ended with an error that says why\n";
}

// Positions all over a message of some 300 bytes.
const std::vector<size_t> kPlaces = {0,  5,   13,  21,  34,  47,
                                     60, 101, 150, 203, 250, 290};

constexpr char kMoments[] = "/cohort.v1.Moments/";
constexpr char kParameters[] = "/cohort.v1.Parameters/";
constexpr char kMembership[] = "/cohort.v1.Membership/";

// Messages of one kind, to or from the server.
class DamagedWireTest
    : public testing::TestWithParam<std::tuple<Target, bool>> {};

TEST_P(DamagedWireTest, ChangesNoResultUnlessItIsNoticed) {
  auto [target, to_server] = GetParam();
  target.to_server = to_server;
  DamageEach(target, kPlaces);
}

INSTANTIATE_TEST_SUITE_P(
    Messages, DamagedWireTest,
    testing::Combine(
        testing::Values(
            Target{.service = kMoments, .bytes_min = 200, .spread = 3},
            // Values, gradients and weights.
            Target{.service = kParameters, .bytes_min = 1000, .spread = 5},
            // Layouts, openings and closings; verdicts and statistics.
            Target{.service = kParameters,
                   .bytes_min = 20,
                   .bytes_max = 1000,
                   .spread = 3,
                   .local = true},
            // Joins and reports; assignments.
            Target{.service = kMembership, .bytes_min = 15}),
        testing::Bool()));

}  // namespace
}  // namespace cohort
