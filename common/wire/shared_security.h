#pragma once

#include <memory>

namespace cohort {

class Security;
// The security of a process's connections (common/wire/security.h), for headers
// that only pass it on. Plaintext if null.
using SharedSecurity = std::shared_ptr<const Security>;

}  // namespace cohort
