// The entry points that libFuzzer calls, for the target that the build names.

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <ios>
#include <string>

#include "absl/strings/strip.h"
#include "tests/fuzz/target.h"

namespace {

// Writes the target's seeds, one a file, for libFuzzer to start from.
int WriteSeeds(const std::string& folder) {
  int number = 0;
  for (const std::string& seed : cohort::fuzz::COHORT_FUZZ_TARGET().seeds()) {
    std::ofstream file(absl::StrCat(folder, "/seed-", number++),
                       std::ios::binary);
    file << seed;
    if (!file.good()) return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace

// libFuzzer passes over flags that begin with two hyphens.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    absl::string_view argument = (*argv)[i];
    if (absl::ConsumePrefix(&argument, "--write_seeds=")) {
      std::exit(WriteSeeds(cohort::fuzz::Text(argument)));
    }
    if (argument == "--input_bytes_max") {
      std::printf("%d\n", cohort::fuzz::COHORT_FUZZ_TARGET().input_bytes_max);
      std::exit(EXIT_SUCCESS);
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Looked up once, because every input comes through here.
  static const cohort::fuzz::Target target = cohort::fuzz::COHORT_FUZZ_TARGET();
  target.run(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
