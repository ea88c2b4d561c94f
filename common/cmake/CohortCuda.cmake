# The CUDA part is built where nvcc is found and left out elsewhere, said so.
set(COHORT_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPU architectures to build for")
find_program(COHORT_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
if(COHORT_NVCC)
  set(COHORT_CUDA_AVAILABLE ON)
else()
  set(COHORT_CUDA_AVAILABLE OFF)
  message(STATUS "Cohort: nvcc not found, the CUDA part is left out")
endif()
