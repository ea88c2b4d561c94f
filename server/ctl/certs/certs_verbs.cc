#include <algorithm>
#include <cstdint>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/byte_rope.h"
#include "common/dns_label.h"
#include "common/formats/file_system.h"
#include "common/printable.h"
#include "common/security/authority.h"
#include "common/security/certificate.h"
#include "common/security/small_file.h"
#include "common/security/tokens.h"
#include "common/status_macros.h"
#include "server/ctl/connection_text.h"
#include "server/ctl/json_line.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

constexpr absl::string_view kFolderDefault = "certs";
constexpr absl::string_view kDomainDefault = "cohort.local";
constexpr int64_t kAuthorityDays = 3650;
constexpr int32_t kCertificateDays = 365;
constexpr int32_t kDaysMax = 36500;
constexpr int kTokensMode = 0600;

std::string FolderOf(const Context& context) {
  return context.arguments.Value("dir").value_or(std::string(kFolderDefault));
}

// Errors: InvalidArgument naming --days.
absl::StatusOr<absl::Duration> Lifetime(const Context& context) {
  COHORT_ASSIGN_OR_RETURN(const int32_t days,
                          NumberOf(context.arguments, "days", kCertificateDays,
                                   {.min = 1, .max = kDaysMax}));
  return absl::Hours(24 * days);
}

absl::StatusOr<std::string> RunName(const Context& context) {
  const std::optional<std::string> run = context.arguments.Value("run");
  if (!run.has_value()) {
    return absl::InvalidArgumentError(
        "--run: want the name of the run that the certificates are for");
  }
  COHORT_RETURN_IF_ERROR(CheckDnsLabel("--run", *run));
  return *run;
}

// "worker/3" of the run and domain given.
absl::StatusOr<Identity> IdentityFrom(const Authority& authority,
                                      const std::string& run,
                                      const std::string& word) {
  absl::StatusOr<Identity> identity = ParseIdentity(absl::StrCat(
      "spiffe://", authority.domain(), "/cohort/", run, "/", word));
  if (identity.ok()) return identity;
  return absl::InvalidArgumentError(
      absl::StrCat("got '", word,
                   "', want server/0 (data shards: server/1 and so on), "
                   "worker/RANK, worker/any, viewer or operator"));
}

absl::Status IssueAll(Context& context, const Authority& authority,
                      const std::string& run,
                      absl::Span<const std::string> words,
                      absl::Duration lifetime) {
  std::vector<Identity> identities;
  for (const std::string& word : words) {
    COHORT_ASSIGN_OR_RETURN(identities.emplace_back(),
                            IdentityFrom(authority, run, word));
  }
  // All are checked before the first is written.
  for (const Identity& identity : identities) {
    if (context.arguments.Has("replace")) break;
    COHORT_RETURN_IF_ERROR(WithNext(
        authority.CheckFree(identity), absl::StatusCode::kFailedPrecondition,
        "Use another --dir for this run, or --replace to lose the "
        "files that are there"));
  }
  for (const Identity& identity : identities) {
    COHORT_ASSIGN_OR_RETURN(const TlsFiles files,
                            authority.Issue(identity, lifetime));
    if (context.json) {
      context.io.out << JsonLine({{"identity", identity.Uri()},
                                  {"cert", files.cert},
                                  {"key", files.key},
                                  {"ca", files.ca}});
    } else {
      context.io.out << identity.Uri() << "  " << files.cert << "\n";
    }
  }
  return absl::OkStatus();
}

absl::Status RunCertsInit(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const std::string run, RunName(context));
  COHORT_ASSIGN_OR_RETURN(const absl::Duration lifetime, Lifetime(context));
  const std::string domain =
      context.arguments.Value("domain").value_or(std::string(kDomainDefault));
  COHORT_ASSIGN_OR_RETURN(
      const Authority authority,
      Authority::Create(RealFileSystem(), FolderOf(context), domain,
                        std::max(lifetime, absl::Hours(24 * kAuthorityDays)) +
                            absl::Hours(24)));
  const std::vector<std::string> words = {"server/0", "worker/any", "operator",
                                          "viewer"};
  COHORT_RETURN_IF_ERROR(IssueAll(context, authority, run, words, lifetime));
  const std::string folder = FolderOf(context);
  context.io.err << "start the server with --run_name=" << run
                 << " --tls_cert=" << folder
                 << "/server-0/tls.crt --tls_key=" << folder
                 << "/server-0/tls.key --tls_ca=" << folder
                 << "/server-0/ca.crt; give workers and cohortctl theirs; keep "
                 << folder << "/ca.key secret" << std::endl;
  return absl::OkStatus();
}

absl::Status RunCertsIssue(Context& context) {
  if (context.words.empty()) {
    return absl::NotFoundError(
        "want identities\nAs in `cohortctl certs issue --run=demo worker/0 "
        "worker/1`");
  }
  COHORT_ASSIGN_OR_RETURN(const std::string run, RunName(context));
  COHORT_ASSIGN_OR_RETURN(const absl::Duration lifetime, Lifetime(context));
  COHORT_ASSIGN_OR_RETURN(const Authority authority,
                          Authority::Open(RealFileSystem(), FolderOf(context)));
  return IssueAll(context, authority, run, context.words, lifetime);
}

std::string DateText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

void ShowCertificate(Context& context, const std::string& path,
                     const Certificate& certificate, absl::Time now) {
  std::ostream& out = context.io.out;
  if (context.json) {
    out << JsonLine({{"file", path},
                     {"kind", "certificate"},
                     {"uris", certificate.uris},
                     {"subject", certificate.subject},
                     {"issuer", certificate.issuer},
                     {"not_before", absl::FormatTime(certificate.not_before)},
                     {"not_after", absl::FormatTime(certificate.not_after)},
                     {"sha256", certificate.sha256}});
    return;
  }
  out << Printable(path) << "\n";
  if (!certificate.uris.empty()) {
    out << "  identity  " << Printable(absl::StrJoin(certificate.uris, " "))
        << "\n";
  }
  out << "  subject   " << Printable(certificate.subject) << "\n"
      << "  issuer    " << Printable(certificate.issuer) << "\n"
      << "  valid     " << DateText(certificate.not_before) << " to "
      << DateText(certificate.not_after) << ", "
      << (certificate.not_after > now ? "ends " : "")
      << EndText(certificate.not_after, now) << "\n"
      << "  SHA-256   " << certificate.sha256 << "\n";
}

absl::Status RunCertsShow(Context& context) {
  if (context.words.empty()) {
    return absl::NotFoundError(
        "want files\nAs in `cohortctl certs show certs/server-0/tls.crt`");
  }
  const absl::Time now = absl::Now();
  for (const std::string& path : context.words) {
    COHORT_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, path));
    const absl::StatusOr<std::vector<Certificate>> certificates =
        ParseCertificates(path, text);
    // Such a file is named by a pattern such as certs/*/*, too.
    const bool has_key = absl::StrContains(text, "PRIVATE KEY-----");
    if (!certificates.ok() && !has_key) return certificates.status();
    if (certificates.ok()) {
      for (const Certificate& certificate : *certificates) {
        ShowCertificate(context, path, certificate, now);
      }
    }
    if (!has_key) continue;
    if (context.json) {
      context.io.out << JsonLine({{"file", path}, {"kind", "private key"}});
    } else {
      context.io.out << Printable(path) << "\n  private key; keep it secret\n";
    }
  }
  return absl::OkStatus();
}

absl::Status RunCertsToken(Context& context) {
  const std::optional<std::string> name = context.arguments.Value("name");
  if (!name.has_value()) {
    return absl::InvalidArgumentError(
        "--name: want a name for the token, such as grafana");
  }
  COHORT_RETURN_IF_ERROR(CheckDnsLabel("--name", *name));
  const std::string path =
      context.arguments.Value("tokens").value_or("viewer_tokens");
  std::string lines;
  const absl::StatusOr<ByteRope> before =
      RealFileSystem().ReadFile(path, int64_t{1} << 20);
  if (before.ok()) {
    lines = before->ToString();
  } else if (!absl::IsNotFound(before.status())) {
    return before.status();
  }
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    if (!absl::StartsWith(line, absl::StrCat(*name, " "))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--name: ", path, " has a token of the name ", *name,
                     " already\nTake another name, or remove its line first"));
  }
  if (!lines.empty() && lines.back() != '\n') lines += '\n';
  COHORT_ASSIGN_OR_RETURN(const std::string token, NewToken());
  absl::StrAppend(&lines, *name, " ", TokenHash(token), "\n");
  COHORT_RETURN_IF_ERROR(
      WriteFileAtomically(RealFileSystem(), path, kTokensMode, lines));
  context.io.out << token << "\n";
  context.io.err << "its hash is in " << path
                 << "; the token itself is shown only now" << std::endl;
  return absl::OkStatus();
}

constexpr FlagSpec kDirFlag = {"dir", "DIR",
                               "folder of the authority (default certs)"};
constexpr FlagSpec kRunFlag = {
    "run", "NAME", "the run's name, as in --run_name of the server"};
constexpr FlagSpec kDaysFlag = {"days", "N",
                                "lifetime of the certificates (default 365)"};

}  // namespace

Verb CertsInitVerb() {
  return {.name = "certs init",
          .summary = "creates an authority and certificates for a trial",
          .flags = {kDirFlag,
                    kRunFlag,
                    {"domain", "DOMAIN", "trust domain (default cohort.local)"},
                    kDaysFlag},
          .contacts = Contacts::kNothing,
          .examples = {"cohortctl certs init --run=demo",
                       "cohortctl certs init --dir=pki --run=demo "
                       "--domain=example.org"},
          .run = &RunCertsInit};
}

Verb CertsIssueVerb() {
  return {.name = "certs issue",
          .summary = "creates certificates with an authority of certs init",
          .words = "IDENTITY...",
          .flags = {kDirFlag,
                    kRunFlag,
                    kDaysFlag,
                    {"replace", "",
                     "also replace files of another run; those of --run are "
                     "always renewed"}},
          .contacts = Contacts::kNothing,
          .examples = {"cohortctl certs issue --run=demo worker/0 worker/1"},
          .run = &RunCertsIssue};
}

Verb CertsShowVerb() {
  return {
      .name = "certs show",
      .summary = "shows identity, issuer, dates and SHA-256 of certificates",
      .words = "FILE...",
      .contacts = Contacts::kNothing,
      .examples = {"cohortctl certs show certs/*/tls.crt"},
      .run = &RunCertsShow};
}

Verb CertsTokenVerb() {
  return {.name = "certs token",
          .summary = "creates a token for a viewer, and writes its hash",
          .flags = {{"name", "NAME", "name of the token in logs"},
                    {"tokens", "FILE",
                     "file to add to, as in --viewer_tokens of the server "
                     "(default viewer_tokens)"}},
          .contacts = Contacts::kNothing,
          .prints_json = false,
          .examples = {"cohortctl certs token --name=grafana "
                       "--tokens=viewer_tokens"},
          .run = &RunCertsToken};
}

}  // namespace cohort
