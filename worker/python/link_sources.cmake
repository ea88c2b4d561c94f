# Links each file of the package FROM into TO.
file(GLOB sources RELATIVE ${FROM} ${FROM}/*.py ${FROM}/*.pyi ${FROM}/py.typed)
foreach(source ${sources})
  file(CREATE_LINK ${FROM}/${source} ${TO}/${source} SYMBOLIC)
endforeach()
