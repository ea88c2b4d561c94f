#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/ctl/doctor/check.h"

namespace cohort {

// Checks whether this process, and so a server or worker started beside it, may
// open enough files.
Check CheckOpenFiles();
// The same check for a known limit.
Check CheckOpenFiles(uint64_t soft, uint64_t hard);

// Checks whether a folder can be written or created and whether its disk has
// room, by writing a file there and removing it. `flag` is the server's flag
// for it.
Check CheckFolder(const std::string& flag, const std::string& folder);
// The same check for known disk space.
Check CheckRoom(const std::string& flag, const std::string& folder,
                uint64_t free_bytes);

// Memory use of this process's control group, version 1 or 2.
struct MemoryUse {
  uint64_t used_bytes = 0;
  // Absent if there is no limit.
  std::optional<uint64_t> limit_bytes;
};
// `root` is "/", except in tests. Absent if the system does not report it.
std::optional<MemoryUse> ReadMemoryUse(const std::string& root);
Check CheckMemory(const std::optional<MemoryUse>& use);

}  // namespace cohort
