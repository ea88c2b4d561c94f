#include "server/local/local_socket.h"

#include <sys/random.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/folder_lock.h"
#include "common/local/packet_socket.h"

namespace cohort {
namespace {

constexpr absl::string_view kSocketPrefix = "cohort-socket-";
constexpr size_t kDigits = 16;

}  // namespace

std::string RandomHex(size_t digits) {
  std::string bytes(digits / 2, '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t n =
        getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (n > 0) filled += static_cast<size_t>(n);
  }
  return absl::BytesToHexString(bytes);
}

void RemoveLeftSockets(const std::string& directory) {
  if (directory.empty()) return;
  // A socket that another server is just making is refused, too, before it
  // listens. Without the lock everything stays as it is: the process that then
  // listens there reports why.
  const absl::StatusOr<FolderLock> lock = FolderLock::Take(directory);
  if (!lock.ok()) return;
  std::error_code unused;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory, unused)) {
    const std::string path = entry.path().string();
    // The kernel refuses before it compares the types of two sockets.
    if (absl::StartsWith(entry.path().filename().string(), kSocketPrefix) &&
        entry.is_socket(unused) && !PacketSocket::Connect(path).ok() &&
        errno == ECONNREFUSED) {
      unlink(path.c_str());
    }
  }
}

std::string NewSocketName(const std::string& directory) {
  if (directory.empty()) return absl::StrCat("@cohort-", RandomHex(kDigits));
  // Workers may have another working folder.
  std::error_code error;
  const std::filesystem::path whole =
      std::filesystem::absolute(directory, error);
  return absl::StrCat(error ? directory : whole.string(), "/", kSocketPrefix,
                      RandomHex(kDigits));
}

}  // namespace cohort
