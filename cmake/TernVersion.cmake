# Reads the version from the header programs see, which is the only place that states it.

set(tern_version_header "${CMAKE_CURRENT_LIST_DIR}/../include/tern/core/version.hpp")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${tern_version_header}")
file(READ "${tern_version_header}" tern_version_text)

set(tern_version_parts "")
foreach(part IN ITEMS MAJOR MINOR PATCH)
  if(NOT tern_version_text MATCHES "#define TERN_VERSION_${part} ([0-9]+)")
    message(FATAL_ERROR "${tern_version_header} does not define TERN_VERSION_${part} as a number.")
  endif()
  list(APPEND tern_version_parts "${CMAKE_MATCH_1}")
endforeach()
list(JOIN tern_version_parts "." TERN_HEADER_VERSION)

if(NOT tern_version_text MATCHES "#define TERN_VERSION \"${TERN_HEADER_VERSION}\"")
  message(FATAL_ERROR "${tern_version_header}: TERN_VERSION is not \"${TERN_HEADER_VERSION}\", "
                      "which is what its three numbers say.")
endif()
