#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/formats/file_system.h"
#include "common/security/authority.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {

// An authority of the domain example.org and what it issues, in a folder that
// ends with the object.
class TestAuthority {
 public:
  TestAuthority()
      : authority_(Authority::Create(RealFileSystem(), dir_.File("pki"),
                                     "example.org", absl::Hours(48))) {
    EXPECT_TRUE(authority_.ok()) << authority_.status();
  }

  // The files of "worker/3", say, of a run. A negative lifetime: expired.
  TlsFiles Issue(const std::string& role, const std::string& run = "demo",
                 absl::Duration lifetime = absl::Hours(24)) {
    const absl::StatusOr<Identity> identity =
        ParseIdentity("spiffe://example.org/cohort/" + run + "/" + role);
    EXPECT_TRUE(identity.ok()) << identity.status();
    absl::StatusOr<TlsFiles> files = authority_->Issue(*identity, lifetime);
    EXPECT_TRUE(files.ok()) << files.status();
    return *files;
  }

  const Authority& authority() const { return *authority_; }
  std::string File(const std::string& name) const { return dir_.File(name); }

 private:
  const TempDir dir_;
  absl::StatusOr<Authority> authority_;
};

}  // namespace cohort
