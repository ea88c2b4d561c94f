# Version and commit of every binary, in one file that each build updates. A new
# commit only compiles that file and relinks the programs.
set(COHORT_COMMIT "" CACHE STRING
    "Commit that --version shows; empty: what git says at each build")
set(build_info_values ${PROJECT_BINARY_DIR}/common/build_info_values.cc)
add_custom_target(cohort_build_info_values
  BYPRODUCTS ${build_info_values}
  COMMAND ${CMAKE_COMMAND}
    -DCOHORT_VERSION=${PROJECT_VERSION} -DCOHORT_COMMIT=${COHORT_COMMIT}
    -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
    -DINPUT=${PROJECT_SOURCE_DIR}/common/cmake/build_info_values.cc.in
    -DOUTPUT=${build_info_values}
    -P ${PROJECT_SOURCE_DIR}/common/cmake/WriteBuildInfo.cmake
  COMMENT "" VERBATIM)
