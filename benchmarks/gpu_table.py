"""The table of benchmarks/gpu.py: what each row was before the work on speed, and what it is to reach."""

import json
from dataclasses import dataclass
from pathlib import Path

QUERIES = (1, 64, 512)


@dataclass(frozen=True)
class Line:
    """A line of the table: what a row measured under a name, before, and what to reach."""

    work: str
    row: str
    name: str
    before: str
    reach: float
    unit: str

    @property
    def is_time(self) -> bool:
        """Less is better."""
        return self.unit in ("ms", "s", "GiB")


def asking(queries: int) -> str:
    """What a row of searches calls so many queries."""
    return "1 query" if queries == 1 else f"{queries} queries"


def _search_lines(row: str, work: str, before: list[str], reach: list[float]) -> list[Line]:
    names = [asking(queries) for queries in QUERIES]
    return [
        Line(f"{work}, {name}", row, name, was, want, "ms")
        for name, was, want in zip(names, before, reach, strict=True)
    ]


_SIX = "joint training, six layers of 384 (k = 8, passages of 128, pointing, compiled)"
_BASE = "joint training, BERT-base (k = 8, passages of 288, pointing), batch 64"
TABLE = [
    *_search_lines(
        "search-13m",
        "exact top 8 of 13,353,718 × 128, float16",
        ["13.6", "23.9", "143"],
        [1.6, 1.6, 6.0],
    ),
    Line("the same, peak memory", "search-13m", "peak", "8.6", 4.0, "GiB"),
    *_search_lines("search-801k", "801,031 × 384, float16", ["2.4", "3.3", "11"], [0.4, 0.5, 1.5]),
    Line(f"{_SIX}, BERT, batch 128", "joint-six-128", "sentences/s", "350–395", 2000, "/s"),
    Line("BERT, batch 512", "joint-six-512", "sentences/s", "550", 2000, "/s"),
    Line("ModernBERT, batch 128", "joint-modernbert-128", "sentences/s", "350–395", 2000, "/s"),
    Line("ModernBERT, batch 512", "joint-modernbert-512", "sentences/s", "550", 2000, "/s"),
    Line(f"{_BASE}, eager", "joint-base-eager", "sentences/s", "160", 230, "/s"),
    Line("the same, compiled", "joint-base-compiled", "sentences/s", "187", 230, "/s"),
    Line("a refresh, BERT-base: the trainer stands still", "refresh", "stall", "2", 0.1, "s"),
    Line("the trainer's speed beside it, one GPU", "refresh", "beside", "50", 70, "%"),
    Line("reader warm-up, MPNet-base's size, batch 128", "warmup", "pairs/s", "400", 2400, "/s"),
    Line("embedding 801,031 passages, six layers of 384", "embed-six", "passages/s", "26,000", 100_000, "/s"),
    Line("embedding passages, MPNet-base's size", "embed-mpnet", "passages/s", "7,000", 20_000, "/s"),
    Line("embedding blocks of 288, BERT-base", "embed-blocks", "passages/s", "–", 10_000, "/s"),
    Line("`evaluate`, six layers of 384, 20 passages read", "evaluate", "questions/s", "95–115", 1500, "/s"),
    Line("`serve`, 64 clients, six layers of 384, 5 passages", "serve", "questions/s", "263–296", 1500, "/s"),
    Line("the same, p99", "serve", "p99", "249–492", 120, "ms"),
    Line("locating answers of 58,428 questions in 801,031 passages", "answers", "seconds", "244", 20, "s"),
]


def floor(line: Line, measured: dict[str, float], limits: dict[str, float]) -> float | None:
    """The least time, or the highest rate, that the machine's limits allow; None: not counted."""
    if line.unit == "GiB":
        return measured["bytes"] / 2**30
    if "flops" not in measured:
        return None
    seconds = max(measured["flops"] / limits["product"], measured.get("bytes", 0.0) / limits["copy"])
    return 1000 * seconds if line.unit == "ms" else 1 / seconds


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(file: Path) -> str:
    """The table of a file of results, the last of each row, as Markdown."""
    records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    last = {record["row"]: record for record in records}
    limits = {name: cell["value"] for name, cell in last["machine"]["found"].items()}
    lines = [
        f"{last['machine']['date']}, {last['machine']['hardware']}: copies {limits['copy'] / 1e12:.3g} TB/s, "
        f"bfloat16 products {limits['product'] / 1e12:.3g} TFLOP/s.",
        "",
        "| work | before | now | floor | of the floor | reach | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in TABLE:
        record = last.get(line.row)
        if record is None:
            continue
        unit = line.unit if line.unit.startswith(("/", "%")) else f" {line.unit}"
        cells = [line.work, f"{line.before}{unit}"]
        sign = "≤" if line.is_time else "≥"
        if "error" in record:
            cells += [record["error"], "", "", f"{sign} {number(line.reach)}{unit}", "failed"]
        else:
            measured = record["found"][line.name]
            value = measured["value"]
            least = floor(line, measured, limits)
            share = ""
            if least and value:
                share = f"{(least / value if line.is_time else value / least):.0%}"
            met = value <= line.reach if line.is_time else value >= line.reach
            cells += [f"{number(value)}{unit}", "–" if least is None else f"{number(least)}{unit}", share]
            cells += [f"{sign} {number(line.reach)}{unit}", "met" if met else "not met"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
