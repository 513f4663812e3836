"""A real browser for tests, or a clear word that they were skipped."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")


def need_browser() -> Any:
    """selenium's webdriver; without it or without Chromium the tests of the calling module are skipped."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(
            "Chromium and its driver are not installed (Debian: apt install chromium chromium-driver)",
            allow_module_level=True,
        )
    return pytest.importorskip("selenium.webdriver", reason="selenium is not installed")


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium without a window, its console kept."""
    webdriver = need_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()
