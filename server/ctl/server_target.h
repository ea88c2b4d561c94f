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
  friend bool operator==(const ServerTarget&, const ServerTarget&) = default;
};

// The flags of ServerTarget that are files, as every verb has them.
inline constexpr const char* kCredentialFlags[] = {"tls_cert", "tls_key",
                                                   "tls_ca", "token_file"};

inline bool IsCredential(absl::string_view flag) {
  return std::find(std::begin(kCredentialFlags), std::end(kCredentialFlags),
                   flag) != std::end(kCredentialFlags);
}

// The token in the target's file; empty without one.
// Errors: InvalidArgument: the file cannot be read, or the connection is not
//   encrypted.
absl::StatusOr<std::string> TokenOf(const ServerTarget& target);

// The server that the command line names. Flags take precedence over variables,
// as in the other programs.
ServerTarget TargetOf(const Arguments& arguments, const CtlIo& io);

}  // namespace cohort
