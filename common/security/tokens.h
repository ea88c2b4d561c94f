#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace cohort {

// The tokens with which viewers identify themselves, from a file of lines
// "NAME HASH": a DNS label, and the SHA-256 of the token in hexadecimal. Empty
// lines and lines that begin with # are skipped. The file is read again when it
// changes; one that cannot be used changes nothing and is reported by
// `Refresh`.
//
// Tokens are long and random, so a plain hash cannot be searched.
// Thread safety: safe.
class Tokens {
 public:
  // Reads `path`. No tokens if it is empty.
  // Errors: InvalidArgument naming --viewer_tokens, the file and the line.
  static absl::StatusOr<std::unique_ptr<Tokens>> Load(const std::string& path);

  // True if there is a file of tokens.
  bool any() const { return !path_.empty(); }

  // The name of a token; empty if it is unknown. Takes the same time for every
  // token.
  std::string NameOf(absl::string_view token) const ABSL_LOCKS_EXCLUDED(mu_);

  // Reads the file again if it has changed. Called every few seconds, by one
  // thread.
  // Errors: as Load.
  absl::Status Refresh() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit Tokens(std::string path) : path_(std::move(path)) {}

  const std::string path_;

  // Used by Refresh only: the text that was read last.
  std::string text_;
  // Whether a file was read completely.
  bool loaded_ = false;

  mutable Mutex mu_;
  // Hash to name.
  std::map<std::string, std::string> names_ ABSL_GUARDED_BY(mu_);
};

// The SHA-256 of `token` in lower-case hexadecimal, as a line of the file has
// it.
std::string TokenHash(absl::string_view token);

// A new random token of 43 letters, digits, - and _ (256 bits).
// Errors: Internal: no randomness.
absl::StatusOr<std::string> NewToken();

}  // namespace cohort
