#include "worker/python/loader_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace cohort {
namespace {

void EndIfAskedByParent(int /*number*/, siginfo_t* info, void* /*context*/) {
  if (info->si_code == SI_USER && info->si_pid == getppid()) _exit(0);
}

}  // namespace

void BindLoaderProcess(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before that took effect.
  if (getppid() != parent) _exit(1);
  struct sigaction action = {};
  action.sa_sigaction = EndIfAskedByParent;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace cohort
