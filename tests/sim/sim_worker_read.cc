// How a simulated worker reads versions, and what it does with those that are
// not for a step.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/shard_network.h"
#include "tests/sim/sim_worker.h"

namespace cohort::sim {

// A version of which parts are still to come from the data shards.
struct SimWorker::Gathered {
  std::optional<Version> wanted;
  OnRead done;
  ModelSnapshot snapshot;
  int32_t missing = 0;
  bool failed = false;
};

// Like the client's PullVersion.
void SimWorker::Read(std::optional<Version> version, OnRead done) {
  world_.network.Call<MaybeSnapshot>(
      connection_,
      [version](SimServer& server) { return server.Read(version); },
      [version, done = std::move(done)](SimWorker& worker,
                                        MaybeSnapshot snapshot) mutable {
        const int32_t shards = worker.world_.shards.shards();
        if (!snapshot.ok() || shards == 1) {
          return done(worker, std::move(snapshot));
        }
        const auto gathered =
            std::make_shared<Gathered>(Gathered{.wanted = version,
                                                .done = std::move(done),
                                                .snapshot = **snapshot,
                                                .missing = shards - 1});
        for (int32_t shard = 1; shard < shards; ++shard) {
          worker.world_.shards.Read(
              worker.connection_, shard, (*snapshot)->version,
              [gathered](SimWorker& to, MaybeSnapshot part) {
                to.Gather(*gathered, part);
              });
        }
      });
}

void SimWorker::Gather(Gathered& gathered, const MaybeSnapshot& part) {
  if (gathered.failed) return;
  if (!part.ok()) {
    gathered.failed = true;
    if (!absl::IsOutOfRange(part.status())) return OnBroken();
    // The newest may have been replaced.
    if (!gathered.wanted.has_value()) {
      return Read(std::nullopt, std::move(gathered.done));
    }
    return gathered.done(*this, part.status());
  }
  for (size_t p = 0; p < (*part)->weights.size(); ++p) {
    if ((*part)->weights[p] == nullptr) continue;
    gathered.snapshot.weights[p] = (*part)->weights[p];
  }
  if (--gathered.missing > 0) return;
  gathered.done(*this, std::make_shared<const ModelSnapshot>(
                           std::move(gathered.snapshot)));
}

void SimWorker::ReadPinned(const Assignment& assignment, WithSnapshot then) {
  Read(assignment.version,
       [then = std::move(then)](SimWorker& worker, MaybeSnapshot snapshot) {
         if (!snapshot.ok()) {
           worker.Abandon();
           return worker.Proceed();
         }
         worker.After(worker.world_.network.Delay(),
                      [&worker, then, snapshot = *std::move(snapshot)] {
                        then(worker, *snapshot);
                      });
       });
}

void SimWorker::Evaluate(const Assignment& assignment) {
  ReadPinned(assignment, [assignment](SimWorker& worker, const auto&) {
    worker.Report(assignment);
  });
}

void SimWorker::Report(const Assignment& assignment) {
  using Answer = absl::StatusOr<Assignment>;
  const int64_t samples = assignment.range.size();
  const EvaluationSums sums{.samples = samples,
                            .loss_sum = 0.5 * static_cast<double>(samples),
                            .loss_weight = static_cast<double>(samples),
                            .correct = samples,
                            .labels = samples};
  world_.network.Call<Answer>(
      connection_,
      [sender = Identity(), sequence = assignment.sequence, sums](
          SimServer& server) { return server.Report(sender, sequence, sums); },
      [](SimWorker& worker, Answer next) {
        if (!next.ok()) return worker.OnBroken();
        worker.Abandon();
        worker.OnAssignment(*next);
      });
}

void SimWorker::Collect(const Assignment& assignment) {
  ReadPinned(assignment, [assignment](SimWorker& worker, const auto& snapshot) {
    worker.ReportMoments(assignment, snapshot.weights);
  });
}

void SimWorker::ReportMoments(const Assignment& assignment,
                              const std::vector<SharedFloats>& weights) {
  using Answer = absl::StatusOr<Assignment>;
  const StepInput input{.spec = &world_.scenario.run,
                        .epoch = assignment.data_epoch,
                        .range = assignment.range,
                        .weights = weights};
  std::vector<Moments> forward;
  std::vector<CallMoments> calls;
  for (const BatchNormCall& call : CallsOf(layout())) {
    forward.push_back(ForwardMoments(input, forward.size(), forward));
    calls.push_back(
        {.layer = call.layer, .call = call.call, .moments = forward.back()});
  }
  world_.network.Call<Answer>(
      connection_,
      [sender = Identity(), sequence = assignment.sequence,
       calls](SimServer& server) {
        return server.ReportMoments(sender, sequence, calls);
      },
      [](SimWorker& worker, Answer next) {
        if (!next.ok()) return worker.OnBroken();
        worker.Abandon();
        worker.OnAssignment(*next);
      });
}

void SimWorker::CheckScore(const Assignment& assignment) {
  const RunSpec& run = world_.scenario.run;
  const std::vector<StatisticsKind>& kinds = run.coordinator.policy.statistics;
  const bool evaluated =
      run.plan.test_samples > 0 &&
      std::any_of(kinds.begin(), kinds.end(), [](StatisticsKind kind) {
        return kind != StatisticsKind::kAfter;
      });
  if (!run.plan.awaits_scores || !evaluated || assignment.members.empty() ||
      !world_.scenario.changes.empty()) {
    return;
  }
  const int64_t epochs =
      assignment.score.has_value() ? assignment.score->epochs : 0;
  if (epochs == assignment.data_epoch) return;
  world_.checker.Fail(absl::StrCat("rank ", rank_.value(), " trains epoch ",
                                   assignment.data_epoch,
                                   " with the score of epoch ", epochs));
}

void SimWorker::Train(const Assignment& assignment) {
  CheckScore(assignment);
  if (!weights_.empty() && version_ == assignment.version) {
    return Compute(assignment);
  }
  // Under async the assignment may be older than the newest weights.
  const bool sync = !assignment.members.empty();
  Pull(assignment,
       sync ? std::optional<Version>(assignment.version) : std::nullopt);
}

void SimWorker::Pull(const Assignment& assignment,
                     std::optional<Version> version) {
  Read(version, [assignment, task = task_](SimWorker& worker,
                                           MaybeSnapshot snapshot) {
    if (task != worker.task_) return;
    if (!snapshot.ok() || worker.StepEnded(assignment)) {
      worker.Abandon();
      return worker.Proceed();
    }
    worker.version_ = (*snapshot)->version;
    worker.weights_ = (*snapshot)->weights;
    worker.state_ = Decode((*snapshot)->front_end_state.get());
    worker.world_.checker.OnHeld(worker.rank_, worker.version_, worker.state_);
    worker.Compute(assignment);
  });
}

}  // namespace cohort::sim
