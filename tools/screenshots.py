"""Pictures of the page's views, for the documents: `make demo SERVE=1` in one terminal, in another

python tools/screenshots.py http://127.0.0.1:8460 docs/images
"""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

QUESTION = "Where in Italy did Stradivari build his violins?"
SENTENCE = "The Eiffel Tower stands in [MASK]."
SEARCH = "Cremona"


def open_browser(*, width: int, height: int, dark: bool) -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size={width},{height}",
    ):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    return browser


def look(browser: Any, view: str, prepare: Callable[[Any], None], shown: str, file: Path) -> None:
    """Open a view, do something there, wait for what it shows, take the picture."""
    browser.find_element(By.ID, f"tab-{view}").click()
    prepare(browser)
    until = time.monotonic() + 60
    while not browser.find_elements(By.CSS_SELECTOR, shown):
        if time.monotonic() > until:
            raise SystemExit(f"{view}: {shown} did not appear")
        time.sleep(0.2)
    time.sleep(1)
    browser.save_screenshot(str(file))
    print(file)


def typed(selector: str, text: str) -> Callable[[Any], None]:
    return lambda browser: browser.find_element(By.CSS_SELECTOR, selector).send_keys(text, Keys.ENTER)


def main(address: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    views: dict[str, tuple[str, Callable[[Any], None], str]] = {
        "start": ("ask", lambda browser: None, "#offered li"),
        "ask": ("ask", typed("#question", QUESTION), "#ask .card"),
        "fill": ("fill", typed("#sentence", SENTENCE), "#fill .card"),
        "knowledge": ("knowledge", typed("#find-text", SEARCH), "#found .card"),
        "training": ("training", lambda browser: None, "#curves svg"),
    }
    for suffix, size, dark in (
        ("", (900, 860), False),
        ("-dark", (900, 860), True),
        ("-phone", (390, 800), False),
    ):
        browser = open_browser(width=size[0], height=size[1], dark=dark)
        browser.get(address)
        for name, (view, prepare, shown) in views.items():
            if not suffix or name == "ask":
                look(browser, view, prepare, shown, folder / f"{name}{suffix}.png")
        browser.quit()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
