# The CUDA part is built where nvcc is found and left out elsewhere, said so.
set(COHORT_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPU architectures to build for")
find_program(COHORT_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
if(COHORT_NVCC)
  set(COHORT_CUDA_AVAILABLE ON)
  # Before the language is enabled, which would choose an architecture itself.
  set(CMAKE_CUDA_ARCHITECTURES ${COHORT_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_COMPILER ${COHORT_NVCC} CACHE FILEPATH "CUDA compiler")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # Debian's CMake does not know that nvcc speaks C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
else()
  set(COHORT_CUDA_AVAILABLE OFF)
  message(STATUS "Cohort: nvcc not found, the CUDA part is left out")
endif()
