#include "common/flags/flag_page.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace cohort {
namespace {

constexpr absl::string_view kServerPreamble =
    R"(# Flags of cohort-server

`cohort-server --help` prints the same list, `cohort-server --help=optimizer` one subject of it. Each flag is also an environment
variable, `COHORT_` and its name in capital letters; the command line has precedence. Flags with a word in the column *live* are
settings: `cohortctl policy set` changes them during the run, either between two steps or at once. Checkpoints keep them.

This page is made from `common/flags/server_flags.inc` by `cohort-flag-pages`; a test compares the two.
)";

constexpr absl::string_view kWorkerPreamble =
    R"(# Flags of cohort-worker

`cohort-worker --help` prints the same list, `cohort-worker --help=data` one subject of it. Each flag is also an environment
variable, `COHORT_` and its name in capital letters; the command line has precedence. [README.md](README.md) describes networks,
data sets and devices.

This page is made from `common/flags/worker_flags.inc` by `cohort-flag-pages`; a test compares the two.
)";

std::string Code(absl::string_view text) {
  return text.empty() ? "" : absl::StrCat("`", text, "`");
}

// True for words that Markdown would change, or that are typed as they stand:
// "--lease", "conv2.weight[:,0:2,-1]", "layer4.*".
bool IsTyped(absl::string_view word) {
  return word.find_first_of("*[_|<") != word.npos || word.substr(0, 2) == "--";
}

// The text with typed words marked as code, without punctuation behind them.
std::string Prose(absl::string_view text) {
  std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  return absl::StrJoin(words, " ",
                       [](std::string* out, absl::string_view word) {
                         const size_t end = word.find_last_not_of(".,;:)");
                         const size_t begin = word.find_first_not_of('(');
                         const absl::string_view bare =
                             end == word.npos || begin >= end
                                 ? ""
                                 : word.substr(begin, end + 1 - begin);
                         if (!IsTyped(bare)) {
                           absl::StrAppend(out, word);
                           return;
                         }
                         absl::StrAppend(out, word.substr(0, begin), Code(bare),
                                         word.substr(end + 1));
                       });
}

absl::string_view LiveText(FlagChange change) {
  constexpr absl::string_view kTexts[] = {"", "between steps", "at once"};
  return kTexts[static_cast<size_t>(change)];
}

std::string ValuesText(const FlagInfo& flag) {
  const std::string limits = flag.limits.ToString();
  return limits.empty() ? std::string(flag.type) : limits;
}

}  // namespace

std::string FlagTablesMarkdown(absl::Span<const FlagInfo> flags) {
  const bool live =
      std::any_of(flags.begin(), flags.end(),
                  [](const FlagInfo& flag) { return flag.is_setting(); });
  std::string text;
  absl::string_view heading;
  for (const FlagInfo& flag : flags) {
    if (flag.heading != heading) {
      heading = flag.heading;
      absl::StrAppend(&text, "\n## ", heading,
                      "\n\n| flag | default | values |", live ? " live |" : "",
                      " meaning |\n|---|---|---|", live ? "---|" : "",
                      "---|\n");
    }
    absl::StrAppend(&text, "| `--", flag.name, "` | ", Code(flag.default_text),
                    " | ", ValuesText(flag), " | ");
    if (live) absl::StrAppend(&text, LiveText(flag.change), " | ");
    absl::StrAppend(&text, Prose(flag.help), " |\n");
  }
  return text;
}

FlagPage ServerFlagPage() {
  return {.path = "server/FLAGS.md",
          .markdown = absl::StrCat(kServerPreamble,
                                   FlagTablesMarkdown(ServerFlagTable()))};
}

FlagPage WorkerFlagPage() {
  return {.path = "worker/FLAGS.md",
          .markdown = absl::StrCat(kWorkerPreamble,
                                   FlagTablesMarkdown(WorkerFlagTable()))};
}

}  // namespace cohort
