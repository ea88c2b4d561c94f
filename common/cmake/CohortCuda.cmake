# The CUDA part is built if nvcc is found. Otherwise it is left out with a
# message.
set(COHORT_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPU architectures to build for")
find_program(COHORT_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
if(COHORT_NVCC)
  set(COHORT_CUDA_AVAILABLE ON)
  # Set before the language is enabled, which would choose an architecture itself.
  set(CMAKE_CUDA_ARCHITECTURES ${COHORT_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_COMPILER ${COHORT_NVCC} CACHE FILEPATH "CUDA compiler")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # Debian's CMake does not know that nvcc speaks C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  # The runtime, for C++ that calls it. Not find_package(CUDAToolkit): that of
  # CMake 3.25 fails with CUDA 13, which has no nvToolsExt any more.
  find_package(Threads REQUIRED)
  find_library(COHORT_LIB_cudart_static cudart_static
    PATHS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} NO_DEFAULT_PATH REQUIRED)
  add_library(cohort_cudart INTERFACE)
  target_include_directories(cohort_cudart SYSTEM INTERFACE
    ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_link_libraries(cohort_cudart INTERFACE
    ${COHORT_LIB_cudart_static} Threads::Threads ${CMAKE_DL_LIBS} rt)
else()
  set(COHORT_CUDA_AVAILABLE OFF)
  message(STATUS "Cohort: nvcc not found, the CUDA part is left out")
endif()
