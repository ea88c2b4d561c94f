#pragma once

#include <sys/types.h>

namespace cohort {

// Makes this process, a data loader, end with the process that reads from it,
// and not before: the kernel kills it when `parent` ends, however that ends,
// and SIGINT and SIGTERM count only from `parent`. (A terminal and a batch
// system send them to all processes of a job at once, and the worker needs its
// loaders until its step is over.)
//
// `parent` must have been this process's parent at its start; its thread that
// started this process must live as long as it reads.
void BindLoaderProcess(pid_t parent);

}  // namespace cohort
