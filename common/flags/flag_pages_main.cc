// cohort-flag-pages SOURCE_DIR: writes server/FLAGS.md and worker/FLAGS.md.

#include <fstream>
#include <iostream>
#include <string>

#include "common/flags/flag_page.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: cohort-flag-pages SOURCE_DIR\n";
    return 2;
  }
  for (const cohort::FlagPage& page :
       {cohort::ServerFlagPage(), cohort::WorkerFlagPage()}) {
    const std::string path = std::string(argv[1]) + "/" + page.path;
    std::ofstream file(path);
    file << page.markdown << std::flush;
    if (!file) {
      std::cerr << "cohort-flag-pages: cannot write " << path << "\n";
      return 1;
    }
  }
  return 0;
}
