#!/bin/sh
# install_browser.sh: the browser of the tests of pages, where it may be installed (Debian, as root).
# Where it may not, those tests are skipped and say why.
set -eu
has_browser() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }

if ! has_browser && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "installing chromium and chromium-driver"
  { apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver; } \
    >"${TMPDIR:-/tmp}/browser-install.log" 2>&1 || tail -n 3 "${TMPDIR:-/tmp}/browser-install.log"
fi
has_browser || echo "LEFT OUT: the tests in a browser, because chromium or chromedriver is missing"
