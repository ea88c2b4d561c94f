#include "server/ctl/ctl.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/build_info.h"
#include "common/cli/environment.h"
#include "common/flags/flag_table.h"
#include "common/status_macros.h"
#include "server/ctl/help.h"
#include "server/ctl/server_target.h"

namespace cohort {
namespace {

constexpr absl::Duration kTimeoutDefault = absl::Minutes(1);

// The flags of all verbs. A flag means the same for every verb, so it is parsed
// the same way everywhere.
std::vector<const FlagSpec*> AllFlags() {
  std::vector<const FlagSpec*> all;
  for (const FlagSpec& flag : CommonFlags()) all.push_back(&flag);
  for (const Verb& verb : Verbs()) {
    for (const FlagSpec& flag : verb.flags) all.push_back(&flag);
  }
  return all;
}

// The first words of all verbs of two words.
std::vector<std::string> Nouns() {
  std::vector<std::string> nouns;
  for (const Verb& verb : Verbs()) {
    const size_t blank = verb.name.find(' ');
    if (blank != absl::string_view::npos) {
      nouns.emplace_back(verb.name.substr(0, blank));
    }
  }
  return nouns;
}

absl::Status UnknownVerb(absl::Span<const std::string> words) {
  // A name has two words at most; others are its operands.
  const std::string got = absl::StrJoin(words.subspan(0, 2), " ");
  std::vector<std::string> names;
  std::vector<std::string> of_noun;
  for (const Verb& verb : Verbs()) {
    names.emplace_back(verb.name);
    if (absl::StartsWith(verb.name, absl::StrCat(words[0], " "))) {
      of_noun.emplace_back(verb.name);
    }
  }
  std::string text = absl::StrCat("unknown verb '", got, "'");
  const std::string nearest = NearestWord(got, names);
  if (!nearest.empty()) {
    absl::StrAppend(&text, "; did you mean '", nearest, "'?");
  } else if (!of_noun.empty()) {
    absl::StrAppend(&text, "; there are '", absl::StrJoin(of_noun, "', '"),
                    "'");
  } else if (const std::string noun = NearestWord(words[0], Nouns());
             !noun.empty()) {
    absl::StrAppend(&text, "; did you mean '", noun, " ...'?");
  }
  return absl::NotFoundError(
      absl::StrCat(text, "\n`cohortctl help` lists all verbs"));
}

// The error for extra words after a verb that takes none.
absl::Status SurplusWords(const Verb& verb,
                          absl::Span<const std::string> words) {
  // For a verb such as "run", which "run drain" begins with too.
  const std::string got = absl::StrJoin(words, " ");
  for (const Verb& other : Verbs()) {
    if (other.name == words.back() ||
        (absl::StartsWith(other.name, absl::StrCat(verb.name, " ")) &&
         NearestWord(got, {std::string(other.name)}) == other.name)) {
      return absl::NotFoundError(
          absl::StrCat("unknown verb '", got, "'; did you mean '", other.name,
                       "'?\n`cohortctl help` lists all verbs"));
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "got '", words.back(), "' after '", verb.name,
      "', want only flags\n`cohortctl help ", verb.name, "` lists them"));
}

// Removes the words that name the verb from `words`.
absl::StatusOr<const Verb*> FindVerb(absl::Span<const std::string>& words) {
  const std::string name = absl::StrJoin(words, " ");
  // The longest name wins: "run drain" is not "run".
  const Verb* found = nullptr;
  for (const Verb& verb : Verbs()) {
    if (absl::StartsWith(absl::StrCat(name, " "),
                         absl::StrCat(verb.name, " ")) &&
        (found == nullptr || verb.name.size() > found->name.size())) {
      found = &verb;
    }
  }
  if (found == nullptr) return UnknownVerb(words);
  if (found->name != name && found->words.empty()) {
    return SurplusWords(*found, words);
  }
  words.remove_prefix(1 + static_cast<size_t>(std::count(
                              found->name.begin(), found->name.end(), ' ')));
  return found;
}

bool Holds(absl::Span<const FlagSpec> flags, absl::string_view name) {
  return std::any_of(flags.begin(), flags.end(), [name](const FlagSpec& flag) {
    return flag.name == name;
  });
}

absl::Status UnknownFlag(const Verb& verb, const std::string& name) {
  std::vector<std::string> known;
  for (const auto& flags : {absl::MakeConstSpan(verb.flags), CommonFlags()}) {
    for (const FlagSpec& flag : flags) known.emplace_back(flag.name);
  }
  const std::string nearest = NearestWord(name, known);
  return absl::NotFoundError(
      absl::StrCat("'", verb.name, "' has no flag --", name,
                   nearest.empty() ? "" : "; did you mean --", nearest,
                   nearest.empty() ? "" : "?", "\n`cohortctl help ", verb.name,
                   "` lists its flags"));
}

// Why a common flag has no effect on the verb.
absl::string_view WhyWithout(const Verb& verb, absl::string_view flag) {
  if (flag == "output" || flag == "json") return "prints no JSON";
  if (verb.takes_program_flags && IsCredential(flag)) {
    return "gives each process a different certificate, made by --tls";
  }
  return verb.contacts == Contacts::kOperationsPort
             ? "contacts only an operations port"
             : "contacts no running server";
}

// Other errors in how a verb is used.
absl::Status CheckUse(const Verb& verb, const Arguments& arguments) {
  for (const auto& [name, value] : arguments.flags) {
    if (Takes(verb, name)) continue;
    return absl::NotFoundError(
        absl::StrCat("'", verb.name, "' ", WhyWithout(verb, name), ": --", name,
                     " means nothing here\n`cohortctl help ", verb.name,
                     "` lists its flags"));
  }
  if (verb.rest.empty() && arguments.rest.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("got '--', want nothing behind the flags of '", verb.name,
                     "'\n`cohortctl help ", verb.name, "` lists them"));
  }
  return absl::OkStatus();
}

// Passes on the flags that cohortctl does not read itself. Unknown ones go to
// the server, which may be of a newer release; it refuses flags that it does
// not know.
absl::Status SortFlags(const Verb& verb, Context& context) {
  for (const auto& [name, value] : context.arguments.flags) {
    if (Holds(verb.flags, name) || Holds(CommonFlags(), name)) continue;
    if (!verb.takes_settings && !verb.takes_program_flags) {
      return UnknownFlag(verb, name);
    }
    if (verb.takes_program_flags && IsForWorkersOnly(name)) {
      context.worker_flags[name] = value;
    } else {
      context.settings[name] = value;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> Timeout(const Arguments& arguments) {
  const std::optional<std::string> text = arguments.Value("timeout");
  if (!text.has_value()) return kTimeoutDefault;
  absl::Duration timeout;
  if (absl::ParseDuration(*text, &timeout) && timeout > absl::ZeroDuration()) {
    return timeout;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--timeout: got '", *text, "', want a duration such as 30s or 5m"));
}

// Errors: InvalidArgument naming --output.
absl::StatusOr<bool> WantsJson(const Arguments& arguments) {
  const std::string name = arguments.Value("output").value_or(
      arguments.Has("json") ? "json" : "table");
  if (name == "table") return false;
  if (name == "json") return true;
  return absl::InvalidArgumentError(
      absl::StrCat("--output: got '", name, "', want table or json"));
}

// Returns the exit code of a verb that ran without an error.
absl::StatusOr<int> CallVerb(const Verb& verb, const Arguments& arguments,
                             absl::Span<const std::string> words, CtlIo& io) {
  COHORT_RETURN_IF_ERROR(CheckUse(verb, arguments));
  COHORT_ASSIGN_OR_RETURN(const absl::Duration timeout, Timeout(arguments));
  COHORT_ASSIGN_OR_RETURN(const bool json, WantsJson(arguments));
  AdminClient server(TargetOf(arguments, io), timeout);
  Context context{.server = server,
                  .arguments = arguments,
                  .words = words,
                  .timeout = timeout,
                  .json = json,
                  .io = io};
  COHORT_RETURN_IF_ERROR(SortFlags(verb, context));
  COHORT_RETURN_IF_ERROR(CheckVariables(io.environment));
  COHORT_RETURN_IF_ERROR(verb.run(context));
  return context.exit_code;
}

// `io` with --quiet and --no_color applied.
CtlIo IoFor(const Arguments& arguments, const CtlIo& io,
            std::ostream& nowhere) {
  return {.out = io.out,
          .err = arguments.Has("quiet") ? nowhere : io.err,
          .clock = io.clock,
          .program = io.program,
          .pause = io.pause,
          .signal = io.signal,
          .terminal = io.terminal,
          .color = io.color && !arguments.Has("no_color"),
          .environment = io.environment,
          .keys = io.keys,
          .screen = io.screen};
}

ExitCode Fail(ExitCode code, const absl::Status& status, CtlIo& io) {
  io.err << "cohortctl: " << status.message() << std::endl;
  return code;
}

}  // namespace

std::string OperatorName(absl::Span<const std::string> environment) {
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  absl::string_view user = ValueIn(environment, "USER");
  if (user.empty()) user = ValueIn(environment, "LOGNAME");
  return user.empty() ? host : absl::StrCat(user, "@", host);
}

absl::Status WithNext(const absl::Status& status, absl::StatusCode code,
                      absl::string_view next) {
  if (status.code() != code) return status;
  return absl::Status(code, absl::StrCat(status.message(), "\n", next));
}

ExitCode ExitCodeForVerb(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kNotFound:
      return kExitUsage;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return kExitConfig;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitDenied;
    case absl::StatusCode::kUnavailable:
      return kExitUnreachable;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitWaitTimeout;
    default:
      return kExitFailure;
  }
}

int RunCtl(absl::Span<const std::string> arguments, CtlIo& io) {
  absl::StatusOr<Arguments> read = ReadArguments(arguments, AllFlags());
  if (!read.ok()) return Fail(kExitUsage, read.status(), io);
  if (read->Has("version")) {
    io.out << VersionText("cohortctl") << std::endl;
    return kExitOk;
  }
  std::vector<std::string>& words = read->words;
  bool help = read->Has("help");
  if (!words.empty() && words[0] == "help") {
    help = true;
    words.erase(words.begin());
  }
  if (words.empty() && (help || read->flags.empty())) {
    io.out << (help ? FullHelp() : ShortHelp()) << std::flush;
    return kExitOk;
  }
  if (words.empty()) {
    return Fail(kExitUsage,
                absl::NotFoundError(
                    "got no verb, want one such as 'status'\n`cohortctl help` "
                    "lists all verbs"),
                io);
  }
  const bool is_verb =
      std::any_of(Verbs().begin(), Verbs().end(),
                  [&](const Verb& verb) { return verb.name == words[0]; });
  if (help && words.size() == 1 && !is_verb) {
    const std::string group = GroupHelp(words[0]);
    if (!group.empty()) {
      io.out << group << std::flush;
      return kExitOk;
    }
  }
  absl::Span<const std::string> operands = words;
  const absl::StatusOr<const Verb*> verb = FindVerb(operands);
  if (!verb.ok()) return Fail(kExitUsage, verb.status(), io);
  if (help) {
    io.out << VerbHelp(**verb) << std::flush;
    return kExitOk;
  }
  std::ostream nowhere(nullptr);
  CtlIo verb_io = IoFor(*read, io, nowhere);
  const absl::StatusOr<int> code = CallVerb(**verb, *read, operands, verb_io);
  io.out << std::flush;
  if (code.ok()) return *code;
  return Fail(ExitCodeForVerb(code.status()), code.status(), io);
}

}  // namespace cohort
