#include "server/ctl/run/run_screen.h"

#include <gtest/gtest.h>

#include <sstream>

namespace cohort {
namespace {

TEST(RunScreenTest, ProgressIsOneLineOfATerminal) {
  std::ostringstream out;
  const SteadyClock clock;
  CtlIo io{.out = out, .err = out, .clock = clock, .terminal = true};
  io.screen = [] { return ScreenSize{.columns = 10}; };
  {
    RunScreen screen(io, /*json=*/false, "", 1);
    screen.ShowLine({}, "waiting for worker 0");
    screen.ShowLine({}, "waiting for worker 0");
    screen.ShowLine({}, "step 1, epoch 1");
    screen.ShowLine({}, "step 2, epoch 1");
    screen.ShowLine(ClusterProcess::Worker(0), "step 3 of mine");
    screen.ShowLine({}, "step 4");
    screen.Say("stopping");
    screen.ShowLine({}, "step 5");
  }
  const std::string clear = "\r\x1b[K";
  EXPECT_EQ(out.str(), "waiting f" + clear + "step 1, e" + clear + "step 2, e" +
                           clear + "[worker 0] step 3 of mine\n" + "step 4" +
                           clear + "run: stopping\n" + "step 5" + clear);
}

TEST(RunScreenTest, ALogKeepsEachLineOfProgress) {
  std::ostringstream out;
  const SteadyClock clock;
  CtlIo io{.out = out, .err = out, .clock = clock};
  RunScreen(io, /*json=*/false, "", 1).ShowLine({}, "step 1");
  EXPECT_EQ(out.str(), "[server]   step 1\n");
}

}  // namespace
}  // namespace cohort
