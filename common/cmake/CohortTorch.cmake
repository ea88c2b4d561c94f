# LibTorch, from Debian's 1.13 (CPU) to 2.x, as target cohort_torch.
#
# Debian's Torch config asks for libraries of backends that a CPU worker does
# not use; they come with libtorch-dev. Its headers are not warning-free, so
# they are system headers.
find_package(Torch CONFIG REQUIRED)
add_library(cohort_torch INTERFACE)
target_link_libraries(cohort_torch INTERFACE ${TORCH_LIBRARIES})
target_include_directories(cohort_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
separate_arguments(cohort_torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(cohort_torch INTERFACE ${cohort_torch_flags})
# In C++20 Clang instantiates std::vector<IValue> where 1.13's headers have only
# declared IValue; this header leads it to the definition first.
target_compile_options(cohort_torch INTERFACE
  "$<$<CXX_COMPILER_ID:Clang>:SHELL:-include torch/library.h>")
message(STATUS "Cohort: LibTorch ${Torch_VERSION}")
