#pragma once

namespace cohort {

// Turns off Abseil's search for locks that are taken in different orders, which
// builds of it without NDEBUG, such as Debian's, make at every lock of gRPC,
// under one lock of the process. Our own locks are not Abseil's, and the search
// finds nothing in gRPC that a user could mend. No-op with other builds.
//
// For programs, not for libraries inside the program of someone else.
// Thread safety: safe; call it before gRPC is used.
void TurnOffLockChecks();

}  // namespace cohort
