// Random programs whose members leave out batch-norm calls, or make them in
// different orders, as in the reference model of the design: whatever the
// timing, the members of each rendezvous of a committed step are exactly the
// ranks that make the call.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/permutation.h"
#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

// The calls of one rank in one step.
using Program = std::vector<CallPlace>;
// By rank.
using Programs = std::vector<Program>;

constexpr auto kBackward = ReducePhase::kBackward;

CallPlace BackwardOf(CallPlace place, std::vector<int32_t> path = {}) {
  place.phase = kBackward;
  place.path = std::move(path);
  return place;
}

// The forward calls of each part, and its backward pass in reverse order. Every
// third layer is visited by a pass of the script first.
Program Expand(const std::vector<std::vector<int32_t>>& parts) {
  Program program;
  for (size_t part = 0; part < parts.size(); ++part) {
    Program forward;
    for (int32_t layer : parts[part]) {
      forward.push_back({.part = static_cast<int32_t>(part), .layer = layer});
    }
    program.insert(program.end(), forward.begin(), forward.end());
    for (const CallPlace& place : forward) {
      if (place.layer % 3 == 2) program.push_back(BackwardOf(place, {1}));
    }
    std::reverse(forward.begin(), forward.end());
    for (const CallPlace& place : forward) {
      program.push_back(BackwardOf(place));
    }
  }
  return program;
}

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  size_t Below(size_t end) { return static_cast<size_t>(bits_.Below(end)); }
  bool Chance(double probability) { return bits_.Uniform() < probability; }
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[Below(i)]);
    }
  }

 private:
  SplitMix64 bits_;
};

struct Case {
  int32_t ranks = 2;
  int32_t layers = 2;
  bool legal = true;
  int32_t group = 0;
  int32_t pushes_min = 0;
  std::vector<Programs> steps;
};

// Legal: in each step the calls of all ranks are parts of one order.
Case MakeCase(uint64_t seed) {
  Random random(seed);
  Case made{.ranks = static_cast<int32_t>(2 + random.Below(3)),
            .layers = static_cast<int32_t>(2 + random.Below(5)),
            .legal = random.Chance(0.7)};
  if (random.Chance(0.2)) made.group = 2;
  const size_t steps = made.legal ? 1 + random.Below(4) : 1;
  const size_t parts = 1 + random.Below(2);
  for (size_t step = 0; step < steps; ++step) {
    std::vector<std::vector<std::vector<int32_t>>> calls(
        static_cast<size_t>(made.ranks),
        std::vector<std::vector<int32_t>>(parts));
    for (size_t part = 0; part < parts; ++part) {
      std::vector<int32_t> order;
      for (int32_t layer = 0; layer < made.layers; ++layer) {
        order.push_back(layer);
      }
      random.Shuffle(order);
      for (auto& of : calls) {
        for (int32_t layer : order) {
          if (random.Chance(0.65)) of[part].push_back(layer);
        }
        if (!made.legal) random.Shuffle(of[part]);
      }
    }
    Programs& programs = made.steps.emplace_back();
    for (const auto& of : calls) programs.push_back(Expand(of));
  }
  return made;
}

FakeSetup SetupOf(const Case& of) {
  FakeSetup setup = GlobalSetup();
  setup.options.workers = of.ranks;
  setup.options.policy.normalization_group = of.group;
  setup.options.policy.pushes_min = of.pushes_min;
  setup.layout.batch_norms.clear();
  for (int32_t layer = 0; layer < of.layers; ++layer) {
    setup.layout.batch_norms.push_back(
        {.name = absl::StrCat("bn", layer), .channels = 1});
  }
  setup.batch_sizes.assign(static_cast<size_t>(of.ranks), 1);
  setup.plan.train_samples =
      of.ranks * (static_cast<int64_t>(of.steps.size()) + 1);
  setup.plan.test_samples = 0;
  return setup;
}

struct Chances {
  double death = 0;
  double pause = 0;
  int deaths_max = 4;
};

// One run with one timing.
class Drive {
 public:
  Drive(const Case& of, uint64_t seed, Chances chances)
      : case_(of), random_(seed), chances_(chances), cohort_(SetupOf(of)) {
    cohort_.Start();
  }

  // How each step ended, and after how many attempts.
  std::string Run() {
    std::string seen;
    for (size_t step = 0; step < case_.steps.size(); ++step) {
      const std::optional<int> attempts =
          RunStep(case_.steps[step], Version(static_cast<int64_t>(step)));
      absl::StrAppend(&seen, attempts.has_value()
                                 ? absl::StrCat(*attempts, " attempts; ")
                                 : "ended");
      if (!attempts.has_value()) break;
    }
    return seen;
  }

  FakeCohort& cohort() { return cohort_; }

 private:
  struct Member {
    size_t at = 0;
    bool waits = false;
    bool closed = false;
  };

  // Absent: the run has ended.
  std::optional<int> RunStep(const Programs& programs, Version step) {
    Begin(step);
    for (int moves = 0; moves < 20'000; ++moves) {
      TakeEffects(programs);
      if (cohort_.core().ended()) return std::nullopt;
      if (cohort_.snapshot()->version > step) {
        Check(programs);
        return attempt_.value() + 1;
      }
      const Rank rank(static_cast<int32_t>(random_.Below(programs.size())));
      if (cohort_.told(rank).attempt != attempt_) {
        Begin(step);
        continue;
      }
      Move(rank, programs[static_cast<size_t>(rank.value())]);
    }
    ADD_FAILURE() << "a step never ends";
    return std::nullopt;
  }

  void Begin(Version step) {
    step_ = step;
    attempt_ = cohort_.told(kRank0).attempt;
    for (int32_t r = 0; r < case_.ranks; ++r) {
      attempt_ = std::max(attempt_, cohort_.told(Rank(r)).attempt);
    }
    members_.assign(static_cast<size_t>(case_.ranks), {});
    results_.clear();
    deaths_ = 0;
  }

  void Move(Rank rank, const Program& program) {
    Member& member = members_[static_cast<size_t>(rank.value())];
    if (deaths_ < chances_.deaths_max && random_.Chance(chances_.death)) {
      ++deaths_;
      cohort_.Leave(rank);
      cohort_.StartOne(rank);
      // The push of a rank that has finished counts without it.
      if (!member.closed) member = {};
      return;
    }
    if (member.closed || member.waits || random_.Chance(chances_.pause)) return;
    if (member.at == program.size()) {
      member.closed = true;
      cohort_.Push(rank, {});
      return;
    }
    member.waits = true;
    const CallPlace& place = program[member.at];
    // The sum of the members' values tells who they are.
    const double value = static_cast<double>(1 << rank.value());
    ExpectOk(cohort_.Reduce(
        rank, {.step = step_, .attempt = attempt_, .place = place},
        {.count = 2, .first = {value}, .second = {0}}));
  }

  void TakeEffects(const Programs& programs) {
    for (const auto& result : cohort_.All<effect::ReduceResult>()) {
      if (result.key.step != step_ || result.key.attempt != attempt_) continue;
      Member& member = members_[static_cast<size_t>(result.rank.value())];
      const Program& program =
          programs[static_cast<size_t>(result.rank.value())];
      if (result.incarnation != cohort_.incarnation(result.rank) ||
          !member.waits || program[member.at] != result.key.place) {
        continue;
      }
      member.waits = false;
      ++member.at;
      const Moments& moments = *result.moments;
      // A forward meeting has the mean, of two values a member.
      const double count = result.key.place.phase == kBackward
                               ? 1
                               : static_cast<double>(moments.count) / 2;
      results_[{Group(result.rank), result.key.place}] =
          moments.first[0] * count;
    }
    cohort_.Clear();
  }

  int32_t Group(Rank rank) const {
    return case_.group == 0 ? 0 : rank.value() / case_.group;
  }

  // What the step committed is what the programs say.
  void Check(const Programs& programs) {
    std::map<std::pair<int32_t, CallPlace>, double> truth;
    for (int32_t r = 0; r < case_.ranks; ++r) {
      for (const CallPlace& place : programs[static_cast<size_t>(r)]) {
        truth[{Group(Rank(r)), place}] += static_cast<double>(1 << r);
      }
    }
    EXPECT_EQ(results_.size(), truth.size());
    for (const auto& [at, sum] : truth) {
      EXPECT_NEAR(results_[at], sum, 1e-9)
          << "layer " << at.second.layer << " in part " << at.second.part;
    }
  }

  const Case& case_;
  Random random_;
  const Chances chances_;
  FakeCohort cohort_;
  Version step_;
  Attempt attempt_;
  std::vector<Member> members_;
  int deaths_ = 0;
  std::map<std::pair<int32_t, CallPlace>, double> results_;
};

TEST(CoordinatorOrderTest, MembersAreExactAndNothingDependsOnTiming) {
  int repeated = 0;
  int ended = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const Case of = MakeCase(seed);
    std::set<std::string> seen;
    for (uint64_t timing = 0; timing < 6; ++timing) {
      Drive drive(of, 1000 * seed + timing,
                  {.death = timing % 2 == 1 ? 0.03 : 0,
                   .pause = timing % 3 == 0 ? 0.3 : 0});
      const std::string ends = drive.Run();
      seen.insert(ends);
      if (of.legal) {
        EXPECT_FALSE(drive.cohort().core().ended())
            << "seed " << seed << ": " << ends << drive.cohort().log();
      }
      ended += drive.cohort().core().ended();
      repeated += drive.cohort().counter("steps_repeated_for_order") > 0;
      // A step that never ends takes long.
      if (HasFailure()) return;
    }
    EXPECT_EQ(seen.size(), 1)
        << "seed " << seed << ": " << *seen.begin() << " or " << *seen.rbegin();
  }
  // The cases are neither all easy nor all hopeless.
  EXPECT_GT(repeated, 100);
  EXPECT_GT(ended, 30);
}

}  // namespace
}  // namespace cohort
