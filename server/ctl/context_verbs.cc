#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/formats/file_system.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "server/ctl/contexts.h"
#include "server/ctl/json_line.h"
#include "server/ctl/table.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

// Errors: FailedPrecondition: the environment names no place for the file.
absl::StatusOr<std::string> PathFor(const Context& context) {
  std::string path = ContextsPath(context.io.environment);
  if (!path.empty()) return path;
  return absl::FailedPreconditionError(
      "neither HOME nor COHORT_CONFIG is set, so there is no place for "
      "contexts\nSet COHORT_CONFIG to the path of a file");
}

// Name to address.
std::map<std::string, std::string> ServersOf(const Contexts& contexts) {
  std::map<std::string, std::string> servers;
  for (const auto& [name, target] : contexts.servers) {
    servers[name] = target.server;
  }
  return servers;
}

// The path of an existing file from the root: contexts are used from other
// folders too.
std::string FromRoot(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  return error ? path : whole.string();
}

absl::Status RunContextList(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const std::string path, PathFor(context));
  COHORT_ASSIGN_OR_RETURN(const Contexts contexts,
                          ReadContexts(RealFileSystem(), path));
  if (context.json) {
    context.io.out << JsonLine({{"path", path},
                                {"current", contexts.current},
                                {"contexts", ServersOf(contexts)}});
    return absl::OkStatus();
  }
  Table table({"context", "server", "encrypted", "in use"});
  for (const auto& [name, target] : contexts.servers) {
    table.Add({Printable(name), Printable(target.server),
               target.tls.encrypted() ? "yes" : "",
               name == contexts.current ? "yes" : ""});
  }
  context.io.out << table.ToString(context.io.color);
  return absl::OkStatus();
}

absl::Status RunContextUse(Context& context) {
  if (context.words.size() != 1) {
    return absl::NotFoundError(
        "want the name of one context\n`cohortctl context list` shows them");
  }
  COHORT_ASSIGN_OR_RETURN(const std::string path, PathFor(context));
  COHORT_ASSIGN_OR_RETURN(Contexts contexts,
                          ReadContexts(RealFileSystem(), path));
  COHORT_ASSIGN_OR_RETURN(const ServerTarget target,
                          ServerOf(contexts, context.words[0]));
  contexts.current = context.words[0];
  COHORT_RETURN_IF_ERROR(WriteContexts(RealFileSystem(), path, contexts));
  context.io.err << "calls go to " << target.server << " now" << std::endl;
  return absl::OkStatus();
}

absl::Status RunContextSet(Context& context) {
  if (context.words.size() != 2 || context.words[0].empty() ||
      context.words[1].empty()) {
    return absl::NotFoundError(
        "want a name and an address\nAs in `cohortctl context set lab "
        "10.0.0.1:7070`");
  }
  COHORT_ASSIGN_OR_RETURN(const std::string path, PathFor(context));
  COHORT_ASSIGN_OR_RETURN(Contexts contexts,
                          ReadContexts(RealFileSystem(), path));
  ServerTarget target{.server = context.words[1]};
  for (const char* flag : kCredentialFlags) {
    const auto file = context.arguments.Value(flag);
    if (file.has_value()) CredentialOf(target, flag) = FromRoot(*file);
  }
  COHORT_RETURN_IF_ERROR(CheckTlsFlags(target.tls));
  // A wrong path would otherwise be found at the next call, from elsewhere.
  COHORT_RETURN_IF_ERROR(ReadTlsFiles(target.tls, absl::Now()).status());
  COHORT_RETURN_IF_ERROR(TokenOf(target).status());
  target.ops = context.arguments.Value("ops").value_or("");
  if (!target.ops.empty()) {
    COHORT_RETURN_IF_ERROR(ParseHostPort("--ops", target.ops).status());
  }
  contexts.servers[context.words[0]] = target;
  if (contexts.current.empty()) contexts.current = context.words[0];
  COHORT_RETURN_IF_ERROR(WriteContexts(RealFileSystem(), path, contexts));
  context.io.err << "context '" << context.words[0] << "' is in " << path
                 << (contexts.current == context.words[0] ? ", and in use" : "")
                 << std::endl;
  return absl::OkStatus();
}

}  // namespace

Verb ContextListVerb() {
  return {.name = "context list",
          .summary = "lists the servers that have a name",
          .local = true,
          .examples = {"cohortctl context list"},
          .run = &RunContextList};
}

Verb ContextSetVerb() {
  return {.name = "context set",
          .summary = "gives a server a name",
          .words = "NAME ADDRESS",
          .flags = {{.name = "ops",
                     .value = "HOST:PORT",
                     .help = "its operations port, for health, doctor and "
                             "support-bundle"}},
          .local = true,
          .examples = {"cohortctl context set lab 10.0.0.1:7070",
                       "cohortctl context set here unix:/run/cohort/socket",
                       "cohortctl context set lab 10.0.0.1:7070 "
                       "--tls_cert=certs/operator/tls.crt "
                       "--tls_key=certs/operator/tls.key "
                       "--tls_ca=certs/operator/ca.crt"},
          .run = &RunContextSet};
}

Verb ContextUseVerb() {
  return {.name = "context use",
          .summary = "makes a named server the default of all verbs",
          .words = "NAME",
          .local = true,
          .examples = {"cohortctl context use lab"},
          .run = &RunContextUse};
}

}  // namespace cohort
