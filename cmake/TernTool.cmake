# The tern command: tools/ holds its subcommands, bench/ the cases of `tern bench`. All but main()
# are objects, so that tests/tools can link them; whoever does brings the library.

tern_require_cli11()
tern_require_nlohmann_json()

file(GLOB tern_tool_sources CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/tools/*.cpp" "${PROJECT_SOURCE_DIR}/tools/formats/*.cpp"
     "${PROJECT_SOURCE_DIR}/tools/report/*.cpp"
     "${PROJECT_SOURCE_DIR}/tools/top/*.cpp" "${PROJECT_SOURCE_DIR}/tools/check/*.cpp"
     "${PROJECT_SOURCE_DIR}/tools/doctor/*.cpp" "${PROJECT_SOURCE_DIR}/tools/replay/*.cpp" "${PROJECT_SOURCE_DIR}/tools/rehearse/*.cpp"
     "${PROJECT_SOURCE_DIR}/bench/*.cpp")
list(FILTER tern_tool_sources EXCLUDE REGEX "/tools/main\\.cpp$")

# The files of the report page become arrays in the program: the scripts, in the order of
# scripts.txt, become one. Compilers bound the length of a string literal, but not that of an array.
set(tern_page_folder "${PROJECT_SOURCE_DIR}/tools/report/page")
set(tern_page_source "${PROJECT_BINARY_DIR}/page_parts.cpp")
set(tern_page_text "#include \"tools/report/page_parts.hpp\"\n\nnamespace tern::tools {\n")
file(STRINGS "${tern_page_folder}/scripts.txt" tern_page_js)
set(tern_page_html page.html)
set(tern_page_css page.css)
set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  "${tern_page_folder}/scripts.txt")
foreach(part IN ITEMS html css js)
  set(text "")
  foreach(name IN LISTS tern_page_${part})
    set(file "${tern_page_folder}/${name}")
    set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(READ "${file}" digits HEX)
    string(APPEND text "${digits}")
  endforeach()
  string(LENGTH "${text}" digits)
  math(EXPR bytes "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," text "${text}")
  string(APPEND tern_page_text "static constexpr char ${part}_bytes[] = {${text}};\n"
    "const std::string_view page_${part}(${part}_bytes, ${bytes});\n")
endforeach()
string(APPEND tern_page_text "}  // namespace tern::tools\n")
file(CONFIGURE OUTPUT "${tern_page_source}" CONTENT "${tern_page_text}" @ONLY)

add_library(tern_tool_objects OBJECT ${tern_tool_sources} "${tern_page_source}")
tern_configure_target(tern_tool_objects)
if(TERN_SANITIZE STREQUAL "address")
  # Like the library: the tour touches megabytes one by one, and programs run by the thousand.
  set_source_files_properties("${PROJECT_SOURCE_DIR}/tools/tour.cpp"
    "${PROJECT_SOURCE_DIR}/tools/device_program.cpp" PROPERTIES COMPILE_OPTIONS -O1)
endif()
target_include_directories(tern_tool_objects PUBLIC
  "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
# The shapes of the driver's calls, for the cases that compare with it, and what counts copies.
target_include_directories(tern_tool_objects PRIVATE "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(tern_tool_objects PUBLIC
  Threads::Threads ${CMAKE_DL_LIBS} tern_dependency::cli11 tern_dependency::nlohmann_json tern_dependency::fmt)
# {fmt} and the standard library only: g++ takes longer to load more than it saves.
tern_precompile_headers(tern_tool_objects)
# Only what compiles together: elsewhere, several sources of a folder have one name for different things.
if(TERN_QUICK_BUILD STREQUAL "all")
  set(tern_tool_alone ${tern_tool_sources})
  list(FILTER tern_tool_alone INCLUDE REGEX
    "/bench/|/tools/(device_program|rehearse|replay|tour|formats/pytorch_snapshot_writer|report/(page_facts|text)|replay/recorded_allocations|top/shared_tenants)\\.cpp")
  tern_compile_together(tern_tool_objects ${tern_tool_alone} "${tern_page_source}")
endif()
target_compile_options(tern_tool_objects PRIVATE "SHELL:--param ggc-min-heapsize=524288")

# Made of the library's objects, as the unit tests are: bench measures functions that a shared
# library hides.
add_executable(tern_tool "${PROJECT_SOURCE_DIR}/tools/main.cpp")
tern_configure_target(tern_tool)
target_link_libraries(tern_tool PRIVATE tern_tool_objects tern_objects tern_fake_cuda_objects)
set_target_properties(tern_tool PROPERTIES
  OUTPUT_NAME tern
  RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
