# disco_fuse_cpp_test(name source...): one GoogleTest program per folder of src/, run by ctest.
find_package(GTest REQUIRED)
include(GoogleTest)

function(disco_fuse_cpp_test name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE disco_fuse_core GTest::gtest_main)
  disco_fuse_warnings(${name})
  gtest_discover_tests(${name})
endfunction()
