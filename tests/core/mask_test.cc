#include "server/core/optimizer/mask.h"

#include "absl/strings/str_cat.h"
#include "common/name_pattern.h"
#include "server/core/settings/freeze_spec.h"
#include "tests/core/small_run.h"
#include "tests/fakes/statuses.h"
#include "tests/kernels/reference/optimizer_oracle.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NamePatternTest, StarsStandForAnythingAndQuestionMarksForOne) {
  struct Case {
    const char* pattern;
    const char* name;
    bool matches;
  };
  for (const Case& c :
       {Case{"conv1.weight", "conv1.weight", true},
        Case{"conv1.weight", "conv1.weights", false},
        Case{"layer4.*", "layer4.0.conv1.weight", true},
        Case{"layer4.*", "layer4", false}, Case{"*.bias", "fc.bias", true},
        Case{"*.bias", "fc.bias.x", false}, Case{"*a*b*", "xxaxxbxx", true},
        Case{"*a*b", "aab b", true}, Case{"*ab", "aaab", true},
        Case{"conv?.weight", "conv12.weight", false},
        Case{"conv?.weight", "conv1.weight", true}, Case{"*", "", true},
        Case{"**", "a", true}, Case{"", "", true}, Case{"?", "", false},
        Case{"a.b", "axb", false}}) {
    EXPECT_EQ(MatchesPattern(c.pattern, c.name), c.matches)
        << c.pattern << " " << c.name;
  }
}

TEST(FreezeSpecTest, ReadsPatternsAndSlices) {
  EXPECT_EQ(*ParseFreezeSpec(" layer4.* "),
            (FreezeSpec{.pattern = "layer4.*"}));
  const auto spec =
      OkValue(ParseFreezeSpec("conv2.weight[:, 1:-2 ,29,-1,3:,:4]"));
  EXPECT_EQ(spec.pattern, "conv2.weight");
  EXPECT_THAT(spec.axes,
              ElementsAre(AxisSlice{}, AxisSlice{.begin = 1, .end = -2},
                          AxisSlice{.is_index = true, .begin = 29},
                          AxisSlice{.is_index = true, .begin = -1},
                          AxisSlice{.begin = 3}, AxisSlice{.end = 4}));
}

TEST(FreezeSpecTest, BadTextIsNamedWithWhatIsWrong) {
  struct Case {
    const char* text;
    const char* why;
  };
  for (const Case& c :
       {Case{"", "missing name"}, Case{"[0]", "missing name"},
        Case{"w[0", "missing ] at the end"}, Case{"w]", "] without ["},
        Case{"w[0]x", "missing ] at the end"}, Case{"w[]", "'' is neither"},
        Case{"w[0,]", "'' is neither"}, Case{"w[a]", "'a' is neither"},
        Case{"w[0:4:2]", "'0:4:2' is neither"},
        Case{"w[...]", "'...' is neither"}, Case{"w[1.5]", "'1.5' is neither"},
        Case{"w[0][1]", "'0][1' is neither"},
        Case{"w[99999999999999999999]", "is neither"}}) {
    const auto spec = ParseFreezeSpec(c.text);
    EXPECT_EQ(spec.status().code(), kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(spec.status().message()),
                AllOf(HasSubstr(absl::StrCat("--freeze: got '", c.text, "'")),
                      HasSubstr(c.why)));
  }
}

// Which elements of SmallRunLayout() are frozen, by parameter and element.
std::vector<std::vector<bool>> Frozen(const std::vector<std::string>& specs,
                                      int64_t partition_bytes) {
  const ModelLayout layout = SmallRunLayout();
  const std::vector<Partition> partitions =
      MakePartitions(layout, partition_bytes);
  const auto mask = OkValue(MakeMask(specs, layout, partitions));
  std::vector<std::vector<bool>> frozen;
  for (const ParameterSpec& parameter : layout.parameters) {
    frozen.emplace_back(static_cast<size_t>(ElementCount(parameter)));
  }
  int64_t elements = 0;
  for (size_t p = 0; p < partitions.size(); ++p) {
    const PartitionMask& of = mask->partitions[p];
    std::vector<bool> flat(static_cast<size_t>(partitions[p].elements));
    if (of.runs != nullptr) {
      int64_t end = -1;
      for (const ElementRun& run : *of.runs) {
        EXPECT_GT(run.offset, end) << "sorted, with gaps";
        EXPECT_GT(run.count, 0);
        end = run.offset + run.count;
        std::fill_n(flat.begin() + run.offset, run.count, true);
      }
    }
    size_t at = 0;
    for (size_t i = 0; i < partitions[p].slices.size(); ++i) {
      const Slice& slice = partitions[p].slices[i];
      for (int64_t e = 0; e < slice.count; ++e, ++at) {
        EXPECT_FALSE(of.whole[i] && flat[at]) << "said twice";
        if (!of.whole[i] && !flat[at]) continue;
        frozen[static_cast<size_t>(slice.parameter)]
              [static_cast<size_t>(slice.offset + e)] = true;
        ++elements;
      }
    }
  }
  EXPECT_EQ(mask->elements, elements);
  return frozen;
}

TEST(MaskTest, SlicesFreezeWhatNumpyWouldSelect) {
  // The result does not depend on how the parameters are cut.
  for (int64_t partition_bytes : {4, 28, 400, 20000, 1 << 20}) {
    const auto frozen = Frozen({"conv.weight[:,1,0:2,-1]", "conv.weight[3]",
                                "bn.*", "big.weight[10:12]"},
                               partition_bytes);
    for (size_t i = 0; i < 108; ++i) {
      const size_t o = i / 27, c = i / 9 % 3, y = i / 3 % 3, x = i % 3;
      EXPECT_EQ(frozen[0][i], (c == 1 && y < 2 && x == 2) || o == 3) << i;
    }
    EXPECT_THAT(frozen[1], ::testing::Each(true));
    EXPECT_THAT(frozen[2], ::testing::Each(true));
    for (size_t i = 0; i < 7000; ++i) {
      ASSERT_EQ(frozen[4][i], i >= 1000 && i < 1200) << i;
    }
    EXPECT_THAT(frozen[5], ::testing::Each(false));
  }
}

TEST(MaskTest, NoSpecsNoMask) {
  const ModelLayout layout = SmallRunLayout();
  EXPECT_EQ(*MakeMask({}, layout, MakePartitions(layout, 1 << 20)), nullptr);
}

TEST(MaskTest, ConsecutiveElementsAreOneRun) {
  const ModelLayout layout = SmallRunLayout();
  const auto mask = OkValue(MakeMask({"fc.weight[2:4]", "fc.weight[4,0:3]"},
                                     layout, MakePartitions(layout, 1 << 20)));
  // big.weight and fc.weight follow the frozen head.
  EXPECT_THAT(*mask->partitions.back().runs,
              ElementsAre(ElementRun{.offset = 7014, .count = 17}));
}

TEST(MaskTest, WhatDoesNotFitTheModelIsNamed) {
  struct Case {
    const char* text;
    const char* why;
  };
  const ModelLayout layout = SmallRunLayout();
  for (const Case& c :
       {Case{"conv.weigth", "the nearest names are conv.weight, "},
        Case{"layer4.*", "no parameter has this name"},
        Case{"bn.bias[0,0]", "2 index entries, want at most 1 for bn.bias"},
        Case{"conv.weight[4]", "an index within -4 to 3 for conv.weight"},
        Case{"conv.weight[:,-4]", "entry 2"},
        Case{"fc.weight[0:11]", "want a range within -10 to 10"},
        Case{"fc.weight[3:3]", "entry 1 is empty"},
        Case{"fc.weight[5:-6]", "entry 1 is empty"}}) {
    const auto mask =
        MakeMask({"bn.bias", c.text}, layout, MakePartitions(layout, 1 << 20));
    EXPECT_EQ(mask.status().code(), kFailedPrecondition) << c.text;
    EXPECT_THAT(std::string(mask.status().message()),
                AllOf(HasSubstr(absl::StrCat("--freeze: got '", c.text, "'")),
                      HasSubstr(c.why)));
  }
}

// ---- frozen elements in training

constexpr int kMaskedSteps = 100;

// By element: true where `specs` freeze.
void ExpectFrozen(const std::vector<std::vector<bool>>& frozen,
                  const ParameterValues& before, const ParameterValues& after) {
  for (size_t k = 0; k < frozen.size(); ++k) {
    // The parameter is not trained, or has no such slot.
    if (k == 3 || before[k].empty()) continue;
    for (size_t i = 0; i < frozen[k].size(); ++i) {
      const bool same =
          std::memcmp(&before[k][i], &after[k][i], sizeof(float)) == 0;
      ASSERT_EQ(same, frozen[k][i])
          << "parameter " << k << " element " << i << ": " << before[k][i]
          << ", then " << after[k][i];
    }
  }
}

const std::vector<std::string>& FrozenSpecs() {
  static const auto& specs = *new std::vector<std::string>{
      "conv.weight[:,:,1,-1]", "bn.weight", "big.weight[:,7]",
      "big.weight[39:43]", "fc.weight[2]"};
  return specs;
}

TEST(MaskTest, FrozenElementsAndTheirSlotsStayToTheBit) {
  const auto frozen = Frozen(FrozenSpecs(), 20000);
  for (const kernels::OptimizerCase& c : kernels::OptimizerCases()) {
    for (double clip_norm : {0.0, 3.0}) {
      SCOPED_TRACE(absl::StrCat(c.name(), ", ", clip_norm));
      OptimizerOptions options{.kind = c.kind,
                               .numbers = c.numbers,
                               .weight_decay = 0.01,
                               .decay_everything = true,
                               .clip_norm = clip_norm};
      SmallRun run(options, kernels::CpuBackend());
      const double rate = c.rate() / 5;
      // Fills the slots, so that there is something to keep.
      run.Apply({RandomValues(run.layout(), 7, 1)}, {.learning_rate = rate});
      options.freeze = FrozenSpecs();
      run.Change(options);
      const ParameterValues weights = run.weights();
      std::vector<ParameterValues> slots;
      for (const SlotKind& slot : AllSlots()) {
        slots.push_back(run.slot(slot.buffer));
      }
      for (int step = 0; step < kMaskedSteps; ++step) {
        const auto seed = static_cast<uint64_t>(10 + step);
        run.Apply({RandomValues(run.layout(), seed, 1)},
                  {.learning_rate = rate});
      }
      ExpectFrozen(frozen, weights, run.weights());
      for (size_t s = 0; s < slots.size(); ++s) {
        SCOPED_TRACE(AllSlots()[s].name);
        ExpectFrozen(frozen, slots[s], run.slot(AllSlots()[s].buffer));
      }
    }
  }
}

TEST(MaskTest, FrozenElementsLeaveTheOthersAlone) {
  for (OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdamW}) {
    OptimizerOptions options{.kind = kind, .weight_decay = 0.01};
    SmallRun free(options, kernels::CpuBackend());
    options.freeze = FrozenSpecs();
    SmallRun masked(options, kernels::CpuBackend());
    const ParameterValues before = masked.weights();
    for (uint64_t step = 0; step < 5; ++step) {
      const auto gradient = RandomValues(free.layout(), 20 + step, 1);
      free.Apply({gradient}, {.learning_rate = 0.01});
      masked.Apply({gradient}, {.learning_rate = 0.01});
    }
    const auto frozen = Frozen(FrozenSpecs(), 20000);
    ParameterValues wanted = free.weights();
    for (size_t k = 0; k < wanted.size(); ++k) {
      for (size_t i = 0; i < wanted[k].size(); ++i) {
        if (frozen[k][i]) wanted[k][i] = before[k][i];
      }
    }
    EXPECT_EQ(masked.weights(), wanted);
  }
}

TEST(MaskTest, FrozenElementsAreLeftOutOfTheNorm) {
  SmallRun run({.clip_norm = 1, .freeze = {"*"}}, kernels::CpuBackend());
  run.Apply({RandomValues(run.layout(), 1, 1)}, {});
  EXPECT_EQ(run.gradient_norm(), 0);
  // Only [69,99] of big.weight remains: 4/8 * 6 = 3.
  SmallRun one({.clip_norm = 1,
                .freeze = {"conv.*", "bn.*", "fc.*", "big.weight[:69]",
                           "big.weight[69,0:99]"}},
               kernels::CpuBackend());
  ParameterValues gradient = RandomValues(one.layout(), 1, 1);
  gradient[4].back() = 6;
  one.Apply({gradient}, {});
  EXPECT_EQ(one.gradient_norm(), 3);
}

TEST(MaskTest, AGradientOfAFrozenElementMayBeAnything) {
  for (double clip_norm : {0.0, 3.0}) {
    SmallRun run({.clip_norm = clip_norm, .freeze = {"fc.weight[2]"}},
                 kernels::CpuBackend());
    ParameterValues gradient = RandomValues(run.layout(), 1, 1);
    gradient[5][15] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(run.Apply({gradient}, {}).has_value());
    gradient[5][21] = std::numeric_limits<float>::quiet_NaN();
    const auto bad = OkValue(run.Apply({gradient}, {}));
    EXPECT_EQ(bad.rank, Rank(0));
  }
}

}  // namespace
}  // namespace cohort
