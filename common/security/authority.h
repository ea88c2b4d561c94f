#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/formats/file_system.h"
#include "common/security/identity.h"
#include "common/security/tls_files.h"

namespace cohort {

// A certificate authority in a folder, for trials and small sites: its key is
// as safe as the folder. Keys are on the curve P-256.
//
// Layout: ca.crt and ca.key, and for each identity a folder such as worker-3 or
// operator with tls.crt, tls.key and ca.crt, the names that cert-manager uses
// in Secrets.
class Authority {
 public:
  // Makes a folder with a new authority for a trust domain.
  // Errors: FailedPrecondition: the folder has one already; those of
  //   FileSystem.
  static absl::StatusOr<Authority> Create(FileSystem& files,
                                          const std::string& folder,
                                          const std::string& domain,
                                          absl::Duration lifetime);
  // Errors: FailedPrecondition: the folder has none; InvalidArgument: its files
  //   are damaged.
  static absl::StatusOr<Authority> Open(FileSystem& files,
                                        const std::string& folder);
  Authority(Authority&&) noexcept;
  Authority& operator=(Authority&&) noexcept;
  ~Authority();

  const std::string& domain() const { return domain_; }

  // Issues a certificate and a new key, and writes both; an older one of the
  // same identity is replaced.
  // Errors: InvalidArgument: the lifetime goes beyond the authority's own;
  //   those of FileSystem.
  absl::StatusOr<TlsFiles> Issue(const Identity& identity,
                                 absl::Duration lifetime) const;

  // Checks that Issue would replace no files of another run or domain. Files of
  // the same identity are there to be renewed.
  // Errors: FailedPrecondition with the identity whose files are there, or the
  //   file that cannot be read.
  absl::Status CheckFree(const Identity& identity) const;

  // The files that Issue writes for an identity.
  TlsFiles FilesOf(const Identity& identity) const;

 private:
  struct Keys;

  Authority(FileSystem& files, std::string folder, std::string domain,
            std::unique_ptr<Keys> keys);

  FileSystem* files_;
  std::string folder_;
  std::string domain_;
  std::unique_ptr<Keys> keys_;
};

}  // namespace cohort
