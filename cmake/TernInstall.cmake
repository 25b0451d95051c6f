# The installed package: headers, libraries, command, and what find_package(tern) reads. It holds no
# absolute path, so the installed tree can be moved.

include(CMakePackageConfigHelpers)

set(tern_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tern")

install(TARGETS tern tern_fake_cuda EXPORT ternTargets)
if(TERN_BUILD_TOOLS)
  install(TARGETS tern_tool)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/tern" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(EXPORT ternTargets NAMESPACE tern:: DESTINATION "${tern_package_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/ternConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/ternConfig.cmake" INSTALL_DESTINATION "${tern_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ternConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/ternConfig.cmake" "${PROJECT_BINARY_DIR}/ternConfigVersion.cmake"
  DESTINATION "${tern_package_dir}")
