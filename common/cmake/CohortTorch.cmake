# LibTorch, from Debian's 1.13 (CPU) to 2.x (CUDA too), as target cohort_torch.
#
# COHORT_TORCH_DIR names the folder of a Python package `torch`, whose libraries
# are used directly, because its own configuration requires all of CUDA's
# development files. If it is not set, find_package finds LibTorch.
#
# Debian's Torch config requires libraries of backends that a CPU worker does
# not use; they come with libtorch-dev. LibTorch's headers are not warning-free,
# so they are system headers.
set(COHORT_TORCH_DIR "" CACHE PATH "Folder of a Python package torch to build against")
add_library(cohort_torch INTERFACE)
if(COHORT_TORCH_DIR)
  foreach(name torch torch_cpu c10)
    find_library(COHORT_LIB_${name} ${name} PATHS ${COHORT_TORCH_DIR}/lib NO_DEFAULT_PATH REQUIRED)
    list(APPEND cohort_torch_libraries ${COHORT_LIB_${name}})
  endforeach()
  foreach(name torch_cuda c10_cuda)
    find_library(COHORT_LIB_${name} ${name} PATHS ${COHORT_TORCH_DIR}/lib NO_DEFAULT_PATH)
    if(COHORT_LIB_${name})
      list(APPEND cohort_torch_libraries ${COHORT_LIB_${name}})
    endif()
  endforeach()
  set(cohort_torch_includes ${COHORT_TORCH_DIR}/include
      ${COHORT_TORCH_DIR}/include/torch/csrc/api/include)
  # Kernels register themselves, so no symbol of theirs is referenced. The
  # libraries find their own dependencies by their own paths, at run time.
  # The C++ library comes first: PyPI's libtorch.so exports its own
  # std::filesystem, parts of which are null pointers.
  target_link_options(cohort_torch INTERFACE
    -Wl,--no-as-needed -lstdc++ -Wl,--allow-shlib-undefined)
  file(STRINGS ${COHORT_TORCH_DIR}/version.py cohort_torch_version REGEX "^__version__")
  string(REGEX REPLACE ".*'(.*)'.*" "\\1" Torch_VERSION "${cohort_torch_version}")
else()
  find_package(Torch CONFIG REQUIRED)
  set(cohort_torch_libraries ${TORCH_LIBRARIES})
  set(cohort_torch_includes ${TORCH_INCLUDE_DIRS})
  find_library(COHORT_LIB_c10_cuda c10_cuda PATHS ${TORCH_INSTALL_PREFIX}/lib NO_DEFAULT_PATH)
  separate_arguments(cohort_torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(cohort_torch INTERFACE ${cohort_torch_flags})
endif()
target_link_libraries(cohort_torch INTERFACE ${cohort_torch_libraries})
target_include_directories(cohort_torch SYSTEM INTERFACE ${cohort_torch_includes})
if(COHORT_LIB_c10_cuda)
  set(COHORT_TORCH_HAS_CUDA ON)
else()
  set(COHORT_TORCH_HAS_CUDA OFF)
endif()
# In C++20 Clang instantiates std::vector<IValue> where 1.13's headers have only
# declared IValue; this header makes it see the definition first.
target_compile_options(cohort_torch INTERFACE
  "$<$<CXX_COMPILER_ID:Clang>:SHELL:-include torch/library.h>")
message(STATUS "Cohort: LibTorch ${Torch_VERSION}, CUDA ${COHORT_TORCH_HAS_CUDA}")
