#pragma once

#include <cstddef>
#include <string>

namespace cohort {

// `digits` random hexadecimal digits, for secrets. `digits` is even.
std::string RandomHex(size_t digits);

// Removes the sockets that killed servers have left in `directory`; no-op if
// that is empty. Connects to those of live ones, which notice it.
void RemoveLeftSockets(const std::string& directory);

// A name that no other socket has: a path in `directory`, or, if that is empty,
// "@" and an abstract name.
std::string NewSocketName(const std::string& directory);

}  // namespace cohort
