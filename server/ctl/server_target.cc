#include "server/ctl/server_target.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/cli/environment.h"
#include "common/formats/file_system.h"
#include "common/security/small_file.h"
#include "common/status_macros.h"
#include "server/ctl/contexts.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

constexpr absl::string_view kServerDefault = "127.0.0.1:7070";

// The target of the context that flags name, or else of the one in use.
absl::StatusOr<ServerTarget> FromContexts(
    const std::optional<std::string>& named, const CtlIo& io) {
  const std::string path = ContextsPath(io.environment);
  Contexts contexts;
  if (!path.empty()) {
    COHORT_ASSIGN_OR_RETURN(contexts, ReadContexts(RealFileSystem(), path));
  }
  const std::string name = named.value_or(contexts.current);
  if (!name.empty()) return ServerOf(contexts, name);
  return ServerTarget{.server = std::string(kServerDefault)};
}

}  // namespace

std::string& CredentialOf(ServerTarget& target, const std::string& flag) {
  if (flag == "tls_cert") return target.tls.cert;
  if (flag == "tls_key") return target.tls.key;
  if (flag == "tls_ca") return target.tls.ca;
  return target.token_file;
}

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

void ReadCredentials(const Arguments& arguments, const CtlIo& io,
                     ServerTarget& target) {
  for (const char* flag : kCredentialFlags) {
    const absl::string_view set = ValueIn(
        io.environment, absl::StrCat("COHORT_", absl::AsciiStrToUpper(flag)));
    std::string& file = CredentialOf(target, flag);
    if (!set.empty()) file = std::string(set);
    if (auto value = arguments.Value(flag)) file = *std::move(value);
  }
}

absl::StatusOr<ServerTarget> TargetOf(const Arguments& arguments,
                                      const CtlIo& io) {
  const std::optional<std::string> given = arguments.Value("server");
  const std::optional<std::string> named = arguments.Value("context");
  const absl::string_view variable = ValueIn(io.environment, "COHORT_SERVER");
  ServerTarget target;
  if (given.has_value()) {
    target.server = *given;
  } else if (!named.has_value() && !variable.empty()) {
    target.server = std::string(variable);
  } else {
    COHORT_ASSIGN_OR_RETURN(target, FromContexts(named, io));
  }
  ReadCredentials(arguments, io, target);
  return target;
}

}  // namespace cohort
