#pragma once

#include <cstddef>
#include <string>

namespace cohort {

// `digits`, an even number, of chance that nobody can foresee.
std::string RandomHex(size_t digits);

// A name that no other socket has: a path in `directory`, or, if that is empty,
// "@" and an abstract name. Removes the sockets that killed servers have left
// in `directory`.
std::string NewSocketName(const std::string& directory);

}  // namespace cohort
