#include "server/ctl/help.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cohort {
namespace {

constexpr absl::string_view kSummary =
    "cohortctl: starts, observes and changes runs\n";

void AddFlags(absl::Span<const FlagSpec> flags, std::string& text) {
  for (const FlagSpec& flag : flags) {
    const std::string spelled = absl::StrCat(
        "--", flag.name, flag.value.empty() ? "" : "=", flag.value);
    absl::StrAppendFormat(&text, "  %-17s  %s\n", spelled, flag.help);
  }
}

// `prefix`: of the names of those to list.
std::string VerbList(absl::string_view prefix = "") {
  size_t width = 0;
  for (const Verb& verb : Verbs()) {
    if (!absl::StartsWith(verb.name, prefix)) continue;
    width = std::max(width, verb.name.size());
  }
  std::string text = "Verbs:\n";
  for (const Verb& verb : Verbs()) {
    if (!absl::StartsWith(verb.name, prefix)) continue;
    absl::StrAppendFormat(&text, "  %-*s  %s\n", static_cast<int>(width),
                          verb.name, verb.summary);
  }
  return text;
}

}  // namespace

std::string ShortHelp() {
  return absl::StrCat(
      kSummary,
      "\nExamples:\n"
      "  cohortctl run --workers=4\n"
      "  cohortctl watch --server=127.0.0.1:7070\n"
      "  cohortctl policy set --aggregation=async\n\n",
      VerbList(),
      "\n`cohortctl help` lists flags and exit codes, `cohortctl help VERB` "
      "explains a verb.\n");
}

std::string FullHelp() {
  std::string text = absl::StrCat(
      kSummary,
      "\nExamples:\n"
      "  cohortctl run --workers=4 --epochs=3 --model=resnet20\n"
      "  cohortctl watch --server=127.0.0.1:7070\n"
      "  cohortctl doctor\n"
      "  cohortctl policy set --aggregation=async --reason='one slow node'\n"
      "  cohortctl policy set --learning_rate=0.01 --dry_run\n"
      "  cohortctl workers evict --rank=1\n\n",
      VerbList(), "\nFlags of all verbs:\n");
  AddFlags(CommonFlags(), text);
  absl::StrAppend(
      &text,
      "\nResults go to stdout, messages to stderr. Exit codes: 0 done; 1 "
      "failure;\n2 wrong use; 3 refused by the server; 4 denied: unknown "
      "certificate or token, or a\nrole without permission; 5 server "
      "unreachable; 6 timed out waiting; 7 a checkpoint is\ndamaged. `run` "
      "ends with the code of the server.\n");
  return text;
}

std::string GroupHelp(absl::string_view noun) {
  const std::string prefix = absl::StrCat(noun, " ");
  const Verb* first = nullptr;
  for (const Verb& verb : Verbs()) {
    if (first == nullptr && absl::StartsWith(verb.name, prefix)) first = &verb;
  }
  if (first == nullptr) return "";
  return absl::StrCat(VerbList(prefix), "\n`cohortctl help ", first->name,
                      "` has its flags and examples.\n");
}

std::string VerbHelp(const Verb& verb) {
  std::string text = absl::StrCat(
      "cohortctl ", verb.name, verb.words.empty() ? "" : " ", verb.words,
      verb.rest.empty() ? "" : " [-- ", verb.rest, verb.rest.empty() ? "" : "]",
      ": ", verb.summary, "\n\nExamples:\n");
  for (absl::string_view example : verb.examples) {
    absl::StrAppend(&text, "  ", example, "\n");
  }
  absl::StrAppend(&text, "\nFlags:\n");
  AddFlags(verb.flags, text);
  if (verb.takes_settings) {
    absl::StrAppendFormat(&text, "  %-17s  %s\n", "--SETTING=VALUE",
                          "a setting of the run, by the name of the server's "
                          "flag");
  }
  if (verb.takes_program_flags) {
    absl::StrAppendFormat(
        &text, "  %-17s  %s\n  %-17s  %s\n", "--FLAG=VALUE",
        "a flag of cohort-server or cohort-worker, whose --help lists them;",
        "", "a flag of both goes to the server, after -- to the workers");
  }
  for (const FlagSpec& flag : CommonFlags()) {
    if (Takes(verb, flag.name)) AddFlags({flag}, text);
  }
  return text;
}

}  // namespace cohort
