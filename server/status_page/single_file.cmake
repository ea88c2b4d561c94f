# Makes one HTML file of the page: style, Chart.js and all modules stand in it,
# and the status that it shows replaces the marker <!-- DATA -->.
#
#   cmake -DOUTPUT=report.html -DPAGE_DIR=. -DCHART=chart.min.js -DSCRIPTS=a.js;b.js
#         -P single_file.cmake
#
# SCRIPTS are ES modules, each after those that it imports. A browser loads no
# module from a file on disk, so each becomes a function that returns its
# exports. They import and export by name, one statement each.
cmake_policy(VERSION 3.25)
set(script "'use strict';\nconst modules = {};\n")
foreach(name IN LISTS SCRIPTS)
  file(READ "${PAGE_DIR}/${name}" source)
  string(REGEX MATCHALL "from '\\./[a-z_]+\\.js'" imports "${source}")
  foreach(import IN LISTS imports)
    string(REGEX REPLACE "from '\\./(.*)'" "\\1" wanted "${import}")
    if(NOT wanted IN_LIST known)
      message(FATAL_ERROR "${name} imports ${wanted}, which is not before it in SCRIPTS")
    endif()
  endforeach()
  string(REGEX REPLACE "import ({[^}]*}) from '\\./([a-z_]+\\.js)'"
    "const \\1 = modules['\\2']" source "${source}")
  string(REGEX MATCHALL "export (const|function|class) [A-Za-z_]+" exports "${source}")
  list(TRANSFORM exports REPLACE "export [a-z]+ " "")
  list(JOIN exports ", " exports)
  string(REGEX REPLACE "export (const|function|class) " "\\1 " source "${source}")
  if(source MATCHES "\n(import|export) ")
    message(FATAL_ERROR "${name} has an import or export that this script does not read")
  endif()
  string(APPEND script
    "modules['${name}'] = (() => {\n${source}return {${exports}};\n})();\n")
  list(APPEND known "${name}")
endforeach()

file(READ "${PAGE_DIR}/page.html" page)
file(READ "${PAGE_DIR}/page.css" style)
file(READ "${CHART}" chart)
# Replaces exactly one occurrence, so that a changed page.html is noticed.
function(replace old new)
  string(FIND "${page}" "${old}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "page.html lacks ${old}")
  endif()
  string(REPLACE "${old}" "${new}" changed "${page}")
  set(page "${changed}" PARENT_SCOPE)
endfunction()
replace("<link rel=\"stylesheet\" href=\"/page.css\">"
  "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">
<style>\n${style}</style>")
replace("<script defer src=\"/chart.js\"></script>\n" "")
replace("<script type=\"module\" src=\"/page.js\"></script>\n" "")
# At the end, because an inline script cannot be deferred.
replace("</body>"
  "<!-- DATA -->\n<script>\n${chart}\n</script>\n<script>\n${script}</script>\n</body>")
file(WRITE ${OUTPUT} "${page}")
