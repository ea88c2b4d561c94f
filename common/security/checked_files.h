#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/tls_files.h"

namespace cohort {

// Files in memory that hold the newest checked TLS content, for a library that
// reads files by path and checks nothing. Certificate and key share one file
// and are replaced together, so a reader never sees one without the other.
// Thread safety: safe, but only one thread may replace.
class CheckedFiles {
 public:
  // Errors: Unavailable if the system has no memory files.
  static absl::StatusOr<std::unique_ptr<CheckedFiles>> Create(
      const TlsContent& content);

  // Paths that stay valid until the process ends: a library's reader may
  // outlive this object. No certificate: that path is empty.
  std::string cert_and_key_path() const { return PathOf(cert_and_key_); }
  std::string ca_path() const { return PathOf(ca_); }

  // The next reader of a path gets the new content.
  // Errors: Unavailable; all files keep their content.
  absl::Status Replace(const TlsContent& content);

 private:
  CheckedFiles() = default;

  static std::string PathOf(int descriptor);

  // Descriptors that are never closed; -1 if there is none.
  int cert_and_key_ = -1;
  int ca_ = -1;
};

}  // namespace cohort
