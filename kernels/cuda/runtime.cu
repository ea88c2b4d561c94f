#include <cuda_runtime.h>

#include "kernels/cuda/runtime.h"

namespace cohort::kernels::cuda {

int AllocatePinned(int64_t bytes, void** memory) {
  return cudaHostAlloc(memory, static_cast<size_t>(bytes),
                       cudaHostAllocDefault);
}

int FreePinned(void* memory) { return cudaFreeHost(memory); }

int AllocateOnDevice(int64_t bytes, void** memory) {
  return cudaMalloc(memory, static_cast<size_t>(bytes));
}

int FreeOnDevice(void* memory) { return cudaFree(memory); }

int CountMemory(int64_t& free_bytes, int64_t& total_bytes) {
  size_t free_memory = 0;
  size_t total_memory = 0;
  const cudaError_t error = cudaMemGetInfo(&free_memory, &total_memory);
  free_bytes = static_cast<int64_t>(free_memory);
  total_bytes = static_cast<int64_t>(total_memory);
  return error;
}

int NewStream(CUstream_st** stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
}

int DestroyStream(CUstream_st* stream) { return cudaStreamDestroy(stream); }

int NewEvent(CUevent_st** event) {
  return cudaEventCreateWithFlags(event, cudaEventDisableTiming);
}

int DestroyEvent(CUevent_st* event) { return cudaEventDestroy(event); }

int RecordEvent(CUevent_st* event, CUstream_st* stream) {
  return cudaEventRecord(event, stream);
}

int WaitForEvent(CUstream_st* stream, CUevent_st* event) {
  return cudaStreamWaitEvent(stream, event, 0);
}

int AwaitEvent(CUevent_st* event) { return cudaEventSynchronize(event); }

int QueryEvent(CUevent_st* event, bool& happened) {
  const cudaError_t error = cudaEventQuery(event);
  happened = error == cudaSuccess;
  return error == cudaErrorNotReady ? cudaSuccess : error;
}

int CopyInStream(void* to, const void* from, int64_t bytes,
                 CUstream_st* stream) {
  return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                         cudaMemcpyDefault, stream);
}

}  // namespace cohort::kernels::cuda
