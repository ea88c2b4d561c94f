# Links each file of the package FROM into TO, and cohort_study beside it.
file(GLOB sources RELATIVE ${FROM} ${FROM}/*.py ${FROM}/*.pyi ${FROM}/py.typed)
foreach(source ${sources})
  file(CREATE_LINK ${FROM}/${source} ${TO}/${source} SYMBOLIC)
endforeach()
file(CREATE_LINK ${FROM}/../cohort_study.py ${TO}/../cohort_study.py SYMBOLIC)
