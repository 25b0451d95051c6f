# Each example is one file, one program and one test. It links what a user's program would link: with
# the fake CUDA driver, because it may be told to use `cuda:0?driver=sim`.

file(GLOB tern_examples CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/*.cpp")
add_custom_target(tern_examples)
foreach(source IN LISTS tern_examples)
  cmake_path(GET source STEM name)
  add_executable(tern_example_${name} "${source}")
  tern_configure_target(tern_example_${name})
  target_link_libraries(tern_example_${name} PRIVATE tern::tern tern::fake_cuda)
  set_target_properties(tern_example_${name} PROPERTIES
    OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
  add_dependencies(tern_examples tern_example_${name})
endforeach()
