# Run at each build: writes OUTPUT from INPUT with the commit that is checked
# out now, and leaves the file alone if it is already up to date.
set(COHORT_BUILD_COMMIT "${COHORT_COMMIT}")
if(COHORT_BUILD_COMMIT STREQUAL "")
  execute_process(
    COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE COHORT_BUILD_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)
    set(COHORT_BUILD_COMMIT unknown)
  endif()
endif()
configure_file(${INPUT} ${OUTPUT} @ONLY)
