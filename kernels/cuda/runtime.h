#pragma once

#include <cstdint>

// The part of the CUDA runtime that moves numbers between the host and a
// device, for callers that include none of its headers. Plain data in; out
// comes a cudaError_t as a number, 0 for success. Only AwaitEvent blocks.
struct CUstream_st;
struct CUevent_st;

namespace cohort::kernels::cuda {

// Page-locked memory of the host, which the device reaches too.
int AllocatePinned(int64_t bytes, void** memory);
int FreePinned(void* memory);
int AllocateOnDevice(int64_t bytes, void** memory);
int FreeOnDevice(void* memory);
// Free and total memory of the calling thread's device.
int CountMemory(int64_t& free_bytes, int64_t& total_bytes);

// A stream that waits for no other unless it is made to.
int NewStream(CUstream_st** stream);
int DestroyStream(CUstream_st* stream);

// An event without a time.
int NewEvent(CUevent_st** event);
int DestroyEvent(CUevent_st* event);
// The event happens when all that the stream was given so far is done.
int RecordEvent(CUevent_st* event, CUstream_st* stream);
// Work given to the stream from now on begins after the event.
int WaitForEvent(CUstream_st* stream, CUevent_st* event);
// Blocks the calling thread until the event has happened.
int AwaitEvent(CUevent_st* event);
// Whether it has happened.
int QueryEvent(CUevent_st* event, bool& happened);

// In the order of the stream; either side may be pinned or the device's.
int CopyInStream(void* to, const void* from, int64_t bytes,
                 CUstream_st* stream);

}  // namespace cohort::kernels::cuda
