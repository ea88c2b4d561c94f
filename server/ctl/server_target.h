#pragma once

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/security/tls_files.h"
#include "server/ctl/arguments.h"

namespace cohort {

struct CtlIo;

// A server, and how cohortctl identifies itself there.
struct ServerTarget {
  // host:port.
  std::string server;
  // Empty: plaintext.
  TlsFiles tls;
  // File of a viewer's token; none if empty.
  std::string token_file;
  // host:port of the server's operations port, from a context; empty if it has
  // none.
  std::string ops;

  friend bool operator==(const ServerTarget&, const ServerTarget&) = default;
};

// The flags of ServerTarget that are files, as every verb has them.
inline constexpr const char* kCredentialFlags[] = {"tls_cert", "tls_key",
                                                   "tls_ca", "token_file"};

inline bool IsCredential(absl::string_view flag) {
  return std::find(std::begin(kCredentialFlags), std::end(kCredentialFlags),
                   flag) != std::end(kCredentialFlags);
}

// The file that a flag of kCredentialFlags sets.
std::string& CredentialOf(ServerTarget& target, const std::string& flag);

// The token in the target's file; empty without one.
// Errors: InvalidArgument: the file cannot be read, or the connection is not
//   encrypted.
absl::StatusOr<std::string> TokenOf(const ServerTarget& target);

// Sets the files that flags and variables name.
void ReadCredentials(const Arguments& arguments, const CtlIo& io,
                     ServerTarget& target);

// The server that the command line names. Flags take precedence over variables,
// as in the other programs, and those over the context in use, whose files
// belong to its server only.
// Errors: NotFound: no such context; those of ReadContexts.
absl::StatusOr<ServerTarget> TargetOf(const Arguments& arguments,
                                      const CtlIo& io);

}  // namespace cohort
