"""The plan for sizes that we do not have, held against what we measured."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.test_docs import load_tool

ROOT = Path(__file__).parents[1]
WITHIN = 0.25


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("plan")


@pytest.fixture(scope="module")
def measured(tool: ModuleType) -> Any:
    return tool.Measured()


def off(predicted: float, value: float) -> float:
    return abs(predicted - value) / value


def predictions(tool: ModuleType, measured: Any) -> dict[str, tuple[float, float]]:
    """What is predicted and what was measured, for the rows that nothing was fitted to."""
    found: dict[str, tuple[float, float]] = {}

    def rows(kind: str) -> list[dict[str, Any]]:
        return [row for row in measured.rows[kind] if not row.get("fit")]

    for row in rows("search"):
        seconds = measured.search_s(row["passages"], row["dim"], row["queries"])
        found[f"search {row['passages']} for {row['queries']}"] = (1000 * seconds, row["ms"])
    for row in rows("embed"):
        rate = measured.embedded_per_s(row["encoder"], measured.text[row["length"]])
        found[f"embed {row['encoder']} {row['length']}"] = (rate, row["per_s"])
    for row in rows("learn"):
        rate = measured.learned_per_s(row["encoder"], measured.text[row["length"]], k=8)
        found[f"learn {row['encoder']}"] = (rate, row["per_s"])
    for row in rows("growth"):
        for what in ("publish", "corpus", "index"):
            found[f"{what} of {row['passages']}"] = (measured.grown(what, row["passages"]), row[what])
        found[f"ivf of {row['passages']}"] = (measured.ivf_s(row["passages"]), row["ivf"])
    for row in rows("ranks"):
        found[f"{row['ranks']} ranks"] = (measured.part_ms(row["ranks"]), row["ms"])
    return found


def test_rows_that_nothing_was_fitted_to_are_predicted(tool: ModuleType, measured: Any) -> None:
    found = predictions(tool, measured)
    assert len(found) == 14
    wrong = {name: pair for name, pair in found.items() if off(*pair) > WITHIN}
    assert wrong == {}


def test_rows_that_constants_were_fitted_to_come_out_again(measured: Any) -> None:
    for row in measured.fitted("search"):
        seconds = measured.search_s(row["passages"], row["dim"], row["queries"])
        assert 1000 * seconds == pytest.approx(row["ms"], rel=1e-6)
    for row in measured.fitted("embed"):
        rate = measured.embedded_per_s(row["encoder"], measured.text[row["length"]])
        assert rate == pytest.approx(row["per_s"])


def test_its_rows_stand_in_the_tables(measured: Any) -> None:
    tables = (ROOT / "docs" / "speed.md").read_text("utf-8") + (ROOT / "docs" / "scale.md").read_text("utf-8")
    cells = {cell.strip() for line in tables.splitlines() if line.startswith("|") for cell in line.split("|")}
    for row in measured.rows["search"]:
        assert f"{row['ms']} ms" in cells
    for row in measured.rows["embed"] + measured.rows["learn"]:
        assert f"{row['per_s']:,}/s" in cells
    for row in measured.rows["ranks"]:
        assert str(row["ms"]) in cells
    assert f"{100 * measured.rows['beside']['speed']:g}%" in cells
    assert f"{measured.rows['machine']['product'] / 1e12:g} TFLOP/s" in tables


def test_operations_are_counted_as_the_benchmark_counts_them(tool: ModuleType, measured: Any) -> None:
    """The floors of the table: what a GPU would do at the rate of large products."""
    product = measured.machine["product"]
    text = measured.text
    floors = {
        294_197: tool.ENCODERS["six"].forward(text["passage"]),
        37_978: tool.ENCODERS["base"].forward(text["passage"]),
        17_059: tool.ENCODERS["base"].forward(text["block"]),
        10_185: 3 * tool.ENCODERS["base"].forward(text["passage"] + text["sentence"]),
        6_091: tool.ENCODERS["six"].joint(text["passage"], text["sentence"], 8),
    }
    for floor, operations in floors.items():
        assert product / operations == pytest.approx(floor, rel=0.03)


def test_a_plan_adds_up(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*flags: str) -> dict[str, str]:
        monkeypatch.setattr("sys.argv", ["plan.py", *flags])
        tool.main()
        return dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())

    def numbers(text: str) -> list[float]:
        return [
            float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?", text)
        ]

    small = plan("--passages", "13353718", "--gpus", "80", "--dollars", "2")
    large = plan("--passages", "1e9", "--gpus", "80", "--dollars", "2")
    assert numbers(small["GPUs that train"])[0] == 64  # the paper's
    assert numbers(small["GPUs that refresh"]) == [16]
    assert numbers(small["vectors"]) == [3.53]
    assert numbers(large["vectors"]) == [264]
    *_, hours = numbers(large["all steps"])
    assert numbers(large["dollars"])[0] == pytest.approx(2 * hours, rel=0.01)
    assert numbers(large["a refresh"])[0] == pytest.approx(numbers(small["a refresh"])[0] * 74.9, rel=0.02)
    alone = plan("--passages", "1e9", "--gpus", "1")
    assert "DOES NOT FIT" in alone["GPUs that train"]
    assert "DOES NOT FIT" not in large["GPUs that train"]
    assert numbers(alone["network per step"])[0] == 0
    assert alone["dollars"] == "give --dollars"
    with pytest.raises(SystemExit):
        plan("--passages", "1e6", "--gpus", "2", "--refreshers", "2")
