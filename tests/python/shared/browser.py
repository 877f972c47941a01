"""A headless Chromium for tests of pages: Debian's, driven by selenium, cut off from the network.

``install_browser.sh`` beside this file installs both programs where that is allowed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # of no use to root, who runs the tests of CI
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    # A page that asks for anything else than this machine gets an error in its console.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
)


@contextmanager
def chromium(width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """A selenium ``WebDriver``; the test is skipped, with the reason, where there is no browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (extra dev)")
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in (*_FLAGS, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=programs[1])
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(30)
        yield driver
    finally:
        driver.quit()


def console_problems(driver: Any) -> list[str]:
    """Errors and warnings in the page's console since the last call: also what it may not load."""
    return [
        entry["message"]
        for entry in driver.get_log("browser")
        if entry["level"] in ("SEVERE", "WARNING")
    ]


def screenshot(driver: Any, name: str) -> Path:
    """Keep a picture of the page as ``build/screenshots/NAME.png``."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    assert driver.save_screenshot(str(path))
    return path
