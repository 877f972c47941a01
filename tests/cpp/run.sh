#!/bin/sh
# run.sh BUILD_DIR: build and run the C++ unit tests. They need GoogleTest (Debian's libgtest-dev),
# which is installed where that is allowed; where it is not, this says what is left out.
set -eu
build=$1
has_gtest() { echo '#include <gtest/gtest.h>' | c++ -E -x c++ - >/dev/null 2>&1; }

if ! has_gtest && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "installing libgtest-dev"
  { apt-get update && apt-get install -y libgtest-dev; } >"${TMPDIR:-/tmp}/gtest-install.log" 2>&1 ||
    tail -n 3 "${TMPDIR:-/tmp}/gtest-install.log"
fi
if ! has_gtest; then
  echo "LEFT OUT: the C++ unit tests, because GoogleTest is missing: apt-get install libgtest-dev"
  exit 0
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DDISCO_FUSE_BUILD_TESTS=ON -DDISCO_FUSE_WERROR=ON -DPython_EXECUTABLE="$(command -v python)" >/dev/null
cmake --build "$build" --parallel 2
ctest --test-dir "$build" --output-on-failure
