#include "server/ctl/ctl.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/build_info.h"
#include "common/status_macros.h"
#include "server/ctl/help.h"

namespace cohort {
namespace {

constexpr absl::string_view kServerDefault = "127.0.0.1:7070";
constexpr absl::Duration kTimeoutDefault = absl::Minutes(1);

// All that any verb reads: a flag means the same everywhere, so it is read the
// same way wherever it stands.
std::vector<const FlagSpec*> AllFlags() {
  std::vector<const FlagSpec*> all;
  for (const FlagSpec& flag : CommonFlags()) all.push_back(&flag);
  for (const Verb& verb : Verbs()) {
    for (const FlagSpec& flag : verb.flags) all.push_back(&flag);
  }
  return all;
}

absl::Status UnknownVerb(absl::Span<const std::string> words) {
  const std::string got = absl::StrJoin(words, " ");
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
  }
  return absl::NotFoundError(
      absl::StrCat(text, "\n`cohortctl help` lists all verbs"));
}

// `words` loses those that name the verb.
absl::StatusOr<const Verb*> FindVerb(absl::Span<const std::string>& words) {
  const std::string name = absl::StrJoin(words, " ");
  for (const Verb& verb : Verbs()) {
    if (verb.name != name &&
        !absl::StartsWith(name, absl::StrCat(verb.name, " "))) {
      continue;
    }
    if (verb.name == name || !verb.words.empty()) {
      words.remove_prefix(1 + static_cast<size_t>(std::count(
                                  verb.name.begin(), verb.name.end(), ' ')));
      return &verb;
    }
    // Of this one positions mean nothing.
    return absl::NotFoundError(absl::StrCat(
        "got '", words.back(), "' after '", verb.name,
        "', want only flags\n`cohortctl help ", verb.name, "` lists them"));
  }
  return UnknownVerb(words);
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

// Settings are all flags that nobody else reads.
absl::Status SortFlags(const Verb& verb, const Arguments& arguments,
                       std::map<std::string, std::string>& settings) {
  for (const auto& [name, value] : arguments.flags) {
    if (Holds(verb.flags, name) || Holds(CommonFlags(), name)) continue;
    if (!verb.takes_settings) return UnknownFlag(verb, name);
    settings[name] = value;
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

absl::Status RunVerb(const Verb& verb, const Arguments& arguments,
                     absl::Span<const std::string> words, CtlIo& io) {
  std::map<std::string, std::string> settings;
  COHORT_RETURN_IF_ERROR(SortFlags(verb, arguments, settings));
  COHORT_ASSIGN_OR_RETURN(const absl::Duration timeout, Timeout(arguments));
  AdminClient server(
      arguments.Value("server").value_or(std::string(kServerDefault)), timeout);
  Context context{.server = server,
                  .arguments = arguments,
                  .words = words,
                  .settings = std::move(settings),
                  .timeout = timeout,
                  .json = arguments.Has("json"),
                  .io = io};
  return verb.run(context);
}

ExitCode Fail(ExitCode code, const absl::Status& status, CtlIo& io) {
  io.err << "cohortctl: " << status.message() << std::endl;
  return code;
}

}  // namespace

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
    case absl::StatusCode::kUnavailable:
      return kExitUnreachable;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitWaitTimeout;
    default:
      return kExitFailure;
  }
}

ExitCode RunCtl(absl::Span<const std::string> arguments, CtlIo& io) {
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
  absl::Span<const std::string> operands = words;
  const absl::StatusOr<const Verb*> verb = FindVerb(operands);
  if (!verb.ok()) return Fail(kExitUsage, verb.status(), io);
  if (help) {
    io.out << VerbHelp(**verb) << std::flush;
    return kExitOk;
  }
  const absl::Status status = RunVerb(**verb, *read, operands, io);
  io.out << std::flush;
  if (status.ok()) return kExitOk;
  return Fail(ExitCodeForVerb(status), status, io);
}

}  // namespace cohort
