#include <algorithm>

#include "server/ctl/verb.h"

namespace cohort {

absl::Span<const FlagSpec> CommonFlags() {
  static constexpr FlagSpec kFlags[] = {
      {.name = "server",
       .value = "ADDRESS",
       .help = "address of the server, HOST:PORT or unix:/path (default: "
               "COHORT_SERVER, or 127.0.0.1:7070)"},
      {.name = "tls_cert",
       .value = "FILE",
       .help = "own certificate, PEM (default: COHORT_TLS_CERT)"},
      {.name = "tls_key",
       .value = "FILE",
       .help = "private key of --tls_cert, PEM"},
      {.name = "tls_ca",
       .value = "FILE",
       .help = "authorities of the server's certificate, PEM; without it the "
               "connection is not encrypted"},
      {.name = "token_file",
       .value = "FILE",
       .help = "token of a viewer, in place of --tls_cert"},
      {.name = "output",
       .value = "FORMAT",
       .help = "or -o: table (default), or json (one line each)"},
      {.name = "json", .value = "", .help = "the same as --output=json"},
      {.name = "timeout",
       .value = "T",
       .help = "longest wait for an answer or a change (default 1m)"},
      {.name = "quiet",
       .value = "",
       .help = "or -q: no messages except errors; results as usual"},
      {.name = "no_color",
       .value = "",
       .help = "no colours, as with NO_COLOR in the environment"},
      {.name = "help", .value = "", .help = "explain the verb"},
      {.name = "version", .value = "", .help = "print version and commit"}};
  return kFlags;
}

// Each verb is a function, in a file of its own, that returns its
// specification. To add a verb, add a line here.
#define COHORT_VERBS(VERB)    \
  VERB(RunVerb)               \
  VERB(StudyVerb)             \
  VERB(RunsVerb)              \
  VERB(StatusVerb)            \
  VERB(WatchVerb)             \
  VERB(DoctorVerb)            \
  VERB(SupportBundleVerb)     \
  VERB(HealthVerb)            \
  VERB(PolicyGetVerb)         \
  VERB(PolicySetVerb)         \
  VERB(PolicyRevertVerb)      \
  VERB(PolicyHistoryVerb)     \
  VERB(WorkersListVerb)       \
  VERB(WorkersDrainVerb)      \
  VERB(WorkersEvictVerb)      \
  VERB(RunDrainVerb)          \
  VERB(CheckpointSaveVerb)    \
  VERB(CheckpointListVerb)    \
  VERB(CheckpointVerifyVerb)  \
  VERB(StatisticsCollectVerb) \
  VERB(ExportVerb)            \
  VERB(LogLevelVerb)          \
  VERB(TraceMergeVerb)        \
  VERB(CertsInitVerb)         \
  VERB(CertsIssueVerb)        \
  VERB(CertsShowVerb)         \
  VERB(CertsTokenVerb)        \
  VERB(SuperviseVerb)         \
  VERB(CompletionVerb)

#define COHORT_DECLARE_VERB(name) Verb name();
COHORT_VERBS(COHORT_DECLARE_VERB)
#undef COHORT_DECLARE_VERB

absl::Span<const Verb> Verbs() {
  // Built once and never changed. Leaked, so that the order of destruction does
  // not matter.
#define COHORT_CALL_VERB(name) name(),
  static const std::vector<Verb>& verbs =
      *new std::vector<Verb>{COHORT_VERBS(COHORT_CALL_VERB)};
#undef COHORT_CALL_VERB
  return verbs;
}

const Verb& VerbNamed(absl::string_view name) {
  const absl::Span<const Verb> verbs = Verbs();
  return *std::find_if(verbs.begin(), verbs.end(),
                       [name](const Verb& verb) { return verb.name == name; });
}

}  // namespace cohort
