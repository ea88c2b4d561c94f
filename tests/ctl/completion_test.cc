#include "server/ctl/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/flags/flag_table.h"
#include "server/ctl/cluster/child_process.h"
#include "server/ctl/verb.h"
#include "tests/ctl/ctl_harness.h"

namespace cohort {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

// The words that bash offers for the last of these words.
std::vector<std::string> BashOffers(const std::vector<std::string>& words) {
  std::string quoted;
  for (const std::string& word : words) {
    absl::StrAppend(&quoted, " '", word, "'");
  }
  const std::string script =
      absl::StrCat(*CompletionScript("bash"), "COMP_WORDS=(cohortctl", quoted,
                   ")\nCOMP_CWORD=", words.size(),
                   "\n_cohortctl\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
  auto bash = ChildProcess::Start({"/bin/bash", "-c", script});
  if (!bash.ok()) return {std::string(bash.status().message())};
  std::vector<std::string> offers;
  const auto keep = [&](absl::string_view line) { offers.emplace_back(line); };
  while (!(*bash)->TryReap(keep).has_value()) (*bash)->ReadLines(keep);
  return offers;
}

TEST(CompletionTest, BashOffersVerbsThenTheirFlags) {
  EXPECT_THAT(BashOffers({""}),
              IsSupersetOf({"run", "watch", "policy", "workers", "help"}));
  EXPECT_THAT(BashOffers({"po"}), ElementsAre("policy"));
  EXPECT_THAT(BashOffers({"policy", ""}),
              IsSupersetOf({"get", "set", "history"}));
  EXPECT_THAT(BashOffers({"policy", "set", "--dr"}), ElementsAre("--dry_run"));
  // Flags may come first, with their values.
  EXPECT_THAT(BashOffers({"--server", "=", "a:1", "workers", "e"}),
              ElementsAre("evict"));
  // "run" is a verb, and also the beginning of another one.
  EXPECT_THAT(BashOffers({"run", ""}), IsSupersetOf({"drain", "--workers="}));
  EXPECT_THAT(BashOffers({"log", "level", "d"}), ElementsAre("debug"));
  EXPECT_THAT(BashOffers({"completion", ""}),
              IsSupersetOf({"bash", "zsh", "fish"}));
  EXPECT_THAT(BashOffers({"run", "--log_d"}), ElementsAre("--log_dir="));
}

TEST(CompletionTest, BashOffersSettingsAndTheirWords) {
  EXPECT_THAT(BashOffers({"policy", "set", "--agg"}),
              ElementsAre("--aggregation="));
  EXPECT_THAT(BashOffers({"policy", "set", "--aggregation", "="}),
              ElementsAre("sync", "bounded", "async"));
  EXPECT_THAT(BashOffers({"policy", "set", "--aggregation", "=", "b"}),
              ElementsAre("bounded"));
  EXPECT_THAT(BashOffers({"policy", "set", "--bn_mixture_variance", "="}),
              ElementsAre("true", "false"));
  EXPECT_THAT(BashOffers({"--server", "=", "a:1", "policy", "set",
                          "--on_worker_loss", "=", "c"}),
              ElementsAre("continue"));
  // A verb that changes nothing does not offer it.
  EXPECT_THAT(BashOffers({"policy", "get", "--"}),
              Not(Contains("--aggregation=")));
}

TEST(CompletionTest, BashOffersFlagsOfServerAndWorkersToAVerbThatStartsThem) {
  EXPECT_THAT(BashOffers({"run", "--bat"}),
              ElementsAre("--batch_size=", "--batch_size_max="));
  EXPECT_THAT(BashOffers({"run", "--sched"}), ElementsAre("--schedule="));
  EXPECT_THAT(BashOffers({"run", "--precision", "=", "b"}),
              ElementsAre("bfloat16"));
  // `study` has its own flag of this name.
  EXPECT_THAT(BashOffers({"study", "--or"}), ElementsAre("--order="));
  EXPECT_THAT(BashOffers({"status", "--"}), Not(Contains("--batch_size=")));
}

TEST(CompletionTest, EveryShellKnowsEveryFlagOfEveryProgram) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = *CompletionScript(shell);
    for (const FlagTable* flags : {&ServerFlagTable(), &WorkerFlagTable()}) {
      for (const FlagInfo& flag : *flags) {
        EXPECT_THAT(script, HasSubstr(std::string(flag.name))) << shell;
        EXPECT_THAT(script, HasSubstr(absl::StrJoin(flag.limits.entries, " ")))
            << shell;
      }
    }
  }
}

TEST(CompletionTest, EveryShellKnowsEveryVerbAndFlag) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    CtlHarness ctl;
    const CtlResult result = ctl.RunPlain(absl::StrCat("completion ", shell));
    EXPECT_EQ(result.code, 0);
    for (const Verb& verb : Verbs()) {
      for (absl::string_view word : absl::StrSplit(verb.name, ' ')) {
        EXPECT_THAT(result.out, HasSubstr(std::string(word)));
      }
      for (const FlagSpec& flag : verb.flags) {
        EXPECT_THAT(result.out, HasSubstr(std::string(flag.name)));
      }
    }
  }
}

}  // namespace
}  // namespace cohort
