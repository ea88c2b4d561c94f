#include <algorithm>

#include "server/ctl/verb.h"

namespace cohort {

absl::Span<const FlagSpec> CommonFlags() {
  static constexpr FlagSpec kFlags[] = {
      {"server", "ADDRESS",
       "address of the server, HOST:PORT or unix:/path (default: "
       "COHORT_SERVER, or 127.0.0.1:7070)"},
      {"tls_cert", "FILE", "your certificate, PEM (default: COHORT_TLS_CERT)"},
      {"tls_key", "FILE", "private key of --tls_cert, PEM"},
      {"tls_ca", "FILE",
       "authorities of the server's certificate, PEM; without it the "
       "connection is not encrypted"},
      {"token_file", "FILE", "token of a viewer, in place of --tls_cert"},
      {"output", "FORMAT", "or -o: table (default), or json (one line each)"},
      {"json", "", "the same as --output=json"},
      {"timeout", "T", "longest wait for an answer or a change (default 1m)"},
      {"quiet", "", "or -q: no messages except errors; results as usual"},
      {"no_color", "", "no colours, as with NO_COLOR in the environment"},
      {"help", "", "explain the verb"},
      {"version", "", "print version and commit"}};
  return kFlags;
}

bool Takes(const Verb& verb, absl::string_view common_flag) {
  if (common_flag == "output" || common_flag == "json") {
    return verb.prints_json;
  }
  if (common_flag == "timeout" || common_flag == "tls_cert" ||
      common_flag == "tls_key" || common_flag == "tls_ca") {
    return verb.contacts != Contacts::kNothing;
  }
  if (common_flag == "server" || common_flag == "token_file") {
    return verb.contacts == Contacts::kServer;
  }
  return true;
}

// Each verb is a function, in a separate file, that returns its
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
