#include "server/ctl/server_target.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/cli/environment.h"
#include "common/security/small_file.h"
#include "common/status_macros.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

constexpr absl::string_view kServerDefault = "127.0.0.1:7070";

// The file that a flag of kCredentialFlags sets.
std::string& CredentialOf(ServerTarget& target, const std::string& flag) {
  if (flag == "tls_cert") return target.tls.cert;
  if (flag == "tls_key") return target.tls.key;
  if (flag == "tls_ca") return target.tls.ca;
  return target.token_file;
}

}  // namespace

absl::StatusOr<std::string> TokenOf(const ServerTarget& target) {
  if (target.token_file.empty()) return "";
  if (!target.tls.encrypted()) {
    return absl::InvalidArgumentError(
        "--token_file: got a token, want --tls_ca too: without encryption "
        "others can read it");
  }
  COHORT_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile("--token_file", target.token_file));
  return std::string(absl::StripAsciiWhitespace(text));
}

ServerTarget TargetOf(const Arguments& arguments, const CtlIo& io) {
  const auto value = [&](const std::string& flag, absl::string_view fallback) {
    const absl::string_view variable = ValueIn(
        io.environment, absl::StrCat("COHORT_", absl::AsciiStrToUpper(flag)));
    return arguments.Value(flag).value_or(
        std::string(variable.empty() ? fallback : variable));
  };
  ServerTarget target{.server = value("server", kServerDefault)};
  for (const char* flag : kCredentialFlags) {
    CredentialOf(target, flag) = value(flag, "");
  }
  return target;
}

}  // namespace cohort
