"""Reports as a browser shows them."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.made import EVIL, make_run, report, rows


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    yield chromium
    assert chromium.get_log("browser") == []


def all_of(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def test_the_curves_are_drawn_and_tell_their_values(browser: Any, tmp_path: Path) -> None:
    gap = [{**row, "loss": math.nan if row["step"] == 40 else row["loss"]} for row in rows()]
    report(
        make_run(tmp_path / "realm", rows()), make_run(tmp_path / "stale", gap), out=tmp_path / "report.html"
    )
    browser.get(f"file://{tmp_path}/report.html")
    assert [caption.text for caption in all_of(browser, "figcaption")] == [
        "loss",
        "retrieval utility, nats",
        "age of the index, steps",
    ]
    paths = [line.get_attribute("d") for line in all_of(browser, "figure:first-child .curve .line")]
    assert [(path.count("M"), path.count("L")) for path in paths] == [(1, 7), (2, 5)]
    heights = [float(point.split(",")[1]) for point in paths[0][1:].split("L")]
    assert heights == sorted(heights)  # the loss falls, and on a screen down is more
    legend = all_of(browser, "figure:first-child .legend li")
    assert [item.text for item in legend] == ["realm 2", "stale 2"]
    from selenium.webdriver.common.action_chains import ActionChains

    chart = all_of(browser, "figure:first-child .curve")[0]
    # the middle of the axis 0 … 80, less what the numbers beside it take
    ActionChains(browser).move_to_element(chart).perform()
    assert [item.text for item in legend] == ["realm 4", "stale –"]
    assert "step 40" in chart.text
    ActionChains(browser).move_to_element(all_of(browser, "h1")[0]).perform()
    assert [item.text for item in legend] == ["realm 2", "stale 2"]


def test_one_row_is_a_dot_and_many_runs_stay_apart(browser: Any, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"run-{number}", rows(1)) for number in range(7)]
    report(*runs, out=tmp_path / "report.html")
    browser.get(f"file://{tmp_path}/report.html")
    lines = all_of(browser, "figure:first-child .curve .line")
    assert all(line.get_attribute("d").endswith("h0") for line in lines)
    assert (
        len(
            {
                (line.value_of_css_property("stroke"), line.value_of_css_property("stroke-dasharray"))
                for line in lines
            }
        )
        == 7
    )


def test_a_long_run_is_drawn_as_a_line_over_its_range(browser: Any, tmp_path: Path) -> None:
    saw = [{"step": step, "index_age": step % 10} for step in range(1, 3001)]
    page = report(make_run(tmp_path / "run", saw), out=tmp_path / "report.html")
    assert "mean of every few rows" in page.text
    browser.get(f"file://{tmp_path}/report.html")
    (line,) = all_of(browser, ".curve .line")
    (band,) = all_of(browser, ".curve .band")
    assert (line.get_attribute("d").count("L"), band.get_attribute("d").count("L")) == (299, 599)
    assert band.rect["height"] > 4 * line.rect["height"]


def test_markup_in_texts_does_nothing_in_a_browser(browser: Any, evil: list[Any], tmp_path: Path) -> None:
    report(*evil, out=tmp_path / "report.html")
    browser.get(f"file://{tmp_path}/report.html")
    assert len(all_of(browser, "figure")) == 3
    assert not all_of(browser, "img")
    assert browser.title != "taken"
    assert EVIL in all_of(browser, "article mark")[0].text


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_and_follows_its_colours(
    browser: Any, evil: list[Any], tmp_path: Path, width: int, scheme: str
) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    report(*evil, out=tmp_path / "report.html")
    browser.get(f"file://{tmp_path}/report.html")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    red, green, blue = json.loads(
        f"[{all_of(browser, 'body')[0].value_of_css_property('background-color').split('(')[1].split(')')[0]}]"
    )[:3]
    assert (red + green + blue > 380) == (scheme == "light")
