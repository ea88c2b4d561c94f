#include <cuda_runtime.h>

#include <cstring>

#include "kernels/cuda/launch.h"

namespace cohort::kernels::cuda {

int CountDevices(int32_t& devices) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  devices = count;
  return error;
}

int32_t CudaVersion() { return CUDART_VERSION; }

int SetDevice(int32_t device) { return cudaSetDevice(device); }

int DescribeDevice(int32_t device, DeviceFacts& facts) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  static_assert(sizeof(facts.name) == sizeof(properties.name));
  std::memcpy(facts.name, properties.name, sizeof(facts.name));
  facts.multiprocessors = properties.multiProcessorCount;
  facts.capability = properties.major * 10 + properties.minor;
  facts.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  return cudaSuccess;
}

const char* ErrorName(int error) {
  return cudaGetErrorName(static_cast<cudaError_t>(error));
}

const char* ErrorMeaning(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

bool IsOutOfMemory(int error) { return error == cudaErrorMemoryAllocation; }

bool IsWithoutCode(int error) {
  return error == cudaErrorNoKernelImageForDevice ||
         error == cudaErrorInvalidDeviceFunction ||
         error == cudaErrorUnsupportedPtxVersion;
}

bool IsWithoutDevice(int error) {
  return error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
         error == cudaErrorInvalidDevice;
}

}  // namespace cohort::kernels::cuda
