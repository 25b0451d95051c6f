# The installed package: headers, libraries, command, and what find_package(tern) and pkg-config read.
# It holds no absolute path, so the installed tree can be moved.
#
# The components of the install step, and the packages that cpack makes of them:
#   runtime       the shared library                       libtern0.2 (only if the library is shared)
#   development   headers, static libraries, package files libtern-dev
#   tools         the tern command                         tern-tools

include(CMakePackageConfigHelpers)

set(tern_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tern")

install(TARGETS tern EXPORT ternTargets
  RUNTIME COMPONENT runtime
  LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE COMPONENT development)
install(TARGETS tern_fake_cuda EXPORT ternTargets ARCHIVE COMPONENT development)
if(TERN_BUILD_TOOLS)
  install(TARGETS tern_tool RUNTIME COMPONENT tools)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/tern" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT development FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(EXPORT ternTargets NAMESPACE tern:: DESTINATION "${tern_package_dir}" COMPONENT development)

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/ternConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/ternConfig.cmake" INSTALL_DESTINATION "${tern_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ternConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/ternConfig.cmake" "${PROJECT_BINARY_DIR}/ternConfigVersion.cmake"
  DESTINATION "${tern_package_dir}" COMPONENT development)

# pkg-config finds the prefix from the place of the file. A static library needs more of the system.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}"
  OUTPUT_VARIABLE tern_include_dir)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}"
  OUTPUT_VARIABLE tern_library_dir)
cmake_path(SET tern_pkgconfig_dir NORMALIZE "${tern_library_dir}/pkgconfig")
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
  BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}/${tern_pkgconfig_dir}" OUTPUT_VARIABLE tern_prefix)
set(tern_static_libraries "-pthread")
if(CMAKE_DL_LIBS)
  string(APPEND tern_static_libraries " -l${CMAKE_DL_LIBS}")
endif()
if(BUILD_SHARED_LIBS)
  set(tern_public_libraries "")
else()
  set(tern_public_libraries " ${tern_static_libraries}")
  set(tern_static_libraries "")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/tern.pc.in" "${PROJECT_BINARY_DIR}/tern.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/tern.pc" DESTINATION "${tern_pkgconfig_dir}"
  COMPONENT development)

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_PACKAGE_NAME tern)
  set(CPACK_PACKAGE_VENDOR "The Tern authors")
  set(CPACK_PACKAGE_CONTACT "The Tern authors <maintainers@tern.invalid>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
  set(CPACK_PACKAGING_INSTALL_PREFIX "/usr")
  set(CPACK_STRIP_FILES ON)
  set(CPACK_COMPONENTS_ALL development)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtern-dev)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
  set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Headers, libraries and package files of Tern.")
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libc6-dev, libstdc++-12-dev | libstdc++-dev")
  if(BUILD_SHARED_LIBS)
    set(tern_runtime_package "libtern${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
    list(APPEND CPACK_COMPONENTS_ALL runtime)
    set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME "${tern_runtime_package}")
    set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS "libc6, libstdc++6")
    set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "The shared library of Tern.")
    string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
      ", ${tern_runtime_package} (= ${PROJECT_VERSION})")
  endif()
  if(TERN_BUILD_TOOLS)
    list(APPEND CPACK_COMPONENTS_ALL tools)
    set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME tern-tools)
    set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
    set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libc6, libstdc++6")
    set(CPACK_COMPONENT_TOOLS_DESCRIPTION "The tern command: reports, checks, replays, benchmarks.")
    if(BUILD_SHARED_LIBS)
      string(APPEND CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS
        ", ${tern_runtime_package} (= ${PROJECT_VERSION})")
    endif()
  endif()
  set(CPACK_GENERATOR DEB)
  include(CPack)
endif()
