#include "server/ctl/completion.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/flags/flag_table.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

// A word that may come next, such as "policy" or "--rank=".
struct Choice {
  std::string word;
  std::string help;
  // For a flag: the values that may follow its "="; empty for a file or free
  // text.
  std::vector<std::string> values = {};
};

// Choices by the words before them, without flags: "", "policy", "policy set".
using Choices = std::map<std::string, std::vector<Choice>>;

void Add(std::vector<Choice>& choices, absl::string_view word,
         absl::string_view help) {
  const auto same = [word](const Choice& choice) {
    return choice.word == word;
  };
  if (std::any_of(choices.begin(), choices.end(), same)) return;
  choices.push_back({.word = std::string(word), .help = std::string(help)});
}

void AddFlags(absl::Span<const FlagSpec> flags, std::vector<Choice>& choices) {
  for (const FlagSpec& flag : flags) {
    Add(choices, absl::StrCat("--", flag.name, flag.value.empty() ? "" : "="),
        flag.help);
  }
}

// The values that may follow the "=" of a flag.
std::vector<std::string> ValuesOf(const FlagInfo& flag) {
  if (flag.is_switch()) return {"true", "false"};
  std::vector<std::string> values;
  for (const auto& words : {flag.limits.words, flag.limits.entries}) {
    for (absl::string_view word : words) values.emplace_back(word);
  }
  return values;
}

void AddRows(absl::Span<const FlagInfo> flags, bool settings_only,
             std::vector<Choice>& choices) {
  for (const FlagInfo& flag : flags) {
    if (settings_only && !flag.is_setting()) continue;
    const size_t before = choices.size();
    Add(choices, absl::StrCat("--", flag.name, "="), flag.help);
    if (choices.size() > before) choices.back().values = ValuesOf(flag);
  }
}

// Adds the words of a choice: "[debug|info]" and "bash|zsh", but not "FILE...".
void AddWords(absl::string_view words, std::vector<Choice>& choices) {
  if (!absl::StrContains(words, '|')) return;
  for (absl::string_view word : absl::StrSplit(
           absl::StripSuffix(absl::StripPrefix(words, "["), "]"), '|')) {
    Add(choices, word, "");
  }
}

Choices AllChoices() {
  Choices all;
  Add(all[""], "help", "explains cohortctl, or a verb");
  for (const Verb& verb : Verbs()) {
    const std::pair<absl::string_view, absl::string_view> words =
        absl::StrSplit(verb.name, absl::MaxSplits(' ', 1));
    if (words.second.empty()) {
      Add(all[""], verb.name, verb.summary);
    } else {
      Add(all[""], words.first, absl::StrCat("see: help ", words.first));
      Add(all[std::string(words.first)], words.second, verb.summary);
    }
    std::vector<Choice>& own = all[std::string(verb.name)];
    AddWords(verb.words, own);
    AddFlags(verb.flags, own);
    for (const FlagSpec& flag : CommonFlags()) {
      if (Takes(verb, flag.name)) AddFlags({flag}, own);
    }
    if (verb.takes_settings) AddRows(ServerFlagTable(), true, own);
    if (verb.takes_program_flags) {
      AddRows(ServerFlagTable(), false, own);
      AddRows(WorkerFlagTable(), false, own);
    }
  }
  return all;
}

std::string WordsOf(const std::vector<Choice>& choices) {
  return absl::StrJoin(choices, " ",
                       [](std::string* out, const Choice& choice) {
                         absl::StrAppend(out, choice.word);
                       });
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", R"('\'')"}}), "'");
}

// Lines of a shell's `case` over the typed words, a bar and the flag. They set
// `values` to words between `open` and `close`.
std::string ValueCases(const Choices& all, absl::string_view open,
                       absl::string_view close) {
  std::string cases;
  for (const auto& [typed, choices] : all) {
    for (const Choice& choice : choices) {
      if (choice.values.empty()) continue;
      const absl::string_view flag = absl::StripSuffix(choice.word, "=");
      absl::StrAppend(&cases, "      ", Quoted(absl::StrCat(typed, "|", flag)),
                      ") values=", open, absl::StrJoin(choice.values, " "),
                      close, " ;;\n");
    }
  }
  return cases;
}

// bash treats '=' as a separate word, which the value follows.
std::string BashScript(const Choices& all) {
  std::string script =
      R"sh(# To be read by bash: eval "$(cohortctl completion bash)"
_cohortctl() {
  local current=${COMP_WORDS[COMP_CWORD]} typed="" word is_value="" words=""
  local flag values=""
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    if [[ $word == "=" ]]; then
      is_value=yes
    elif [[ -n $is_value ]]; then
      is_value=""
    elif [[ $word != -* ]]; then
      typed+=${typed:+ }$word
    fi
  done
  if [[ -n $is_value || $current == "=" ]]; then
    flag=${COMP_WORDS[COMP_CWORD-1]}
    if [[ -n $is_value ]]; then
      flag=${COMP_WORDS[COMP_CWORD-2]}
    fi
    case "$typed|$flag" in
)sh";
  absl::StrAppend(&script, ValueCases(all, "'", "'"),
                  R"sh(    esac
    if [[ -n $values ]]; then
      COMPREPLY=($(compgen -W "$values" -- "${current#=}"))
    else
      COMPREPLY=($(compgen -f -- "${current#=}"))
    fi
    return
  fi
  case "$typed" in
)sh");
  for (const auto& [typed, choices] : all) {
    absl::StrAppend(&script, "    ", Quoted(typed),
                    ") words=", Quoted(WordsOf(choices)), " ;;\n");
  }
  absl::StrAppend(&script, R"sh(  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ ${#COMPREPLY[@]} -eq 0 ]]; then
    COMPREPLY=($(compgen -f -- "$current"))
  elif [[ ${COMPREPLY[0]} == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
}
complete -F _cohortctl cohortctl
)sh");
  return script;
}

std::string ZshScript(const Choices& all) {
  std::string script = R"sh(#compdef cohortctl
# To be read by zsh: source <(cohortctl completion zsh)
_cohortctl() {
  local typed="${(j: :)${(@)words[2,CURRENT-1]:#-*}}"
  local -a choices values
  if [[ $words[CURRENT] == --*=* ]]; then
    case "$typed|${words[CURRENT]%%=*}" in
)sh";
  absl::StrAppend(&script, ValueCases(all, "(", ")"),
                  R"sh(    esac
    compset -P '*='
    if (( $#values )); then
      compadd -- $values
    else
      _files
    fi
    return
  fi
  case "$typed" in
)sh");
  for (const auto& [typed, choices] : all) {
    absl::StrAppend(&script, "    ", Quoted(typed), ") choices=(",
                    WordsOf(choices), ") ;;\n");
  }
  absl::StrAppend(&script, R"sh(  esac
  if (( $#choices )); then
    compadd -S '' -- ${(M)choices:#*=}
    compadd -- ${choices:#*=}
  else
    _files
  fi
}
compdef _cohortctl cohortctl
)sh");
  return script;
}

std::string FishLine(absl::string_view typed, const Choice& choice) {
  std::string line = absl::StrCat(
      "complete -c cohortctl -n '__cohortctl_typed \"", typed, "\"' ");
  absl::string_view word = choice.word;
  if (absl::ConsumePrefix(&word, "--")) {
    const bool takes_value = absl::ConsumeSuffix(&word, "=");
    absl::StrAppend(&line, "-l ", word, takes_value ? " -r" : "");
    if (!choice.values.empty()) {
      absl::StrAppend(&line, " -f -a ",
                      Quoted(absl::StrJoin(choice.values, " ")));
    }
  } else {
    absl::StrAppend(&line, "-a ", word);
  }
  if (!choice.help.empty()) {
    absl::StrAppend(&line, " -d ",
                    Quoted(absl::StrReplaceAll(choice.help, {{"'", "’"}})));
  }
  return absl::StrCat(line, "\n");
}

std::string FishScript(const Choices& all) {
  std::string script =
      R"sh(# To be read by fish: cohortctl completion fish | source
function __cohortctl_typed
  set -l words (commandline -opc)
  set -e words[1]
  test "$argv[1]" = (string match -v -- '-*' $words | string join ' ' | string collect -a)
end
complete -c cohortctl -f
)sh";
  for (const auto& [typed, choices] : all) {
    for (const Choice& choice : choices) {
      absl::StrAppend(&script, FishLine(typed, choice));
    }
  }
  return script;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(absl::string_view shell) {
  const Choices all = AllChoices();
  if (shell == "bash") return BashScript(all);
  if (shell == "zsh") return ZshScript(all);
  if (shell == "fish") return FishScript(all);
  return absl::NotFoundError(
      absl::StrCat("got shell '", shell,
                   "', want bash, zsh or fish\n`cohortctl help completion` "
                   "shows how it is used"));
}

}  // namespace cohort
