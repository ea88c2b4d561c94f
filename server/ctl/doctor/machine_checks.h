#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/ctl/doctor/check.h"

namespace cohort {

// Whether this process, and so a server or worker started beside it, may open
// enough files.
Check CheckOpenFiles();
// The same of a limit that is known.
Check CheckOpenFiles(uint64_t soft, uint64_t hard);

// Whether a folder can be written, or be made, and its disk has room: writes a
// file there and removes it. `flag` is the server's for it.
Check CheckFolder(const std::string& flag, const std::string& folder);
// The same of a disk's room that is known.
Check CheckRoom(const std::string& flag, const std::string& folder,
                uint64_t free_bytes);

// Of the control group that this process is in, on version 1 or 2 of them.
struct MemoryUse {
  uint64_t used_bytes = 0;
  // Absent: there is no limit.
  std::optional<uint64_t> limit_bytes;
};
// `root` is "/", but in tests. Absent: the system does not tell.
std::optional<MemoryUse> ReadMemoryUse(const std::string& root);
Check CheckMemory(const std::optional<MemoryUse>& use);

}  // namespace cohort
