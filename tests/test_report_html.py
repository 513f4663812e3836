"""Reports: what stands in them, that no text becomes markup, what is refused, and how a browser shows them."""

import json
import math
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.cli import main
from realmlm.config import JointOptim, Loop, Pretrain, Refresh
from realmlm.corpus.store import Corpus
from realmlm.report.html import piece
from realmlm.report.predictions import Prediction, Read, amount, compare
from realmlm.report.sources import Points, bundle, names_of
from realmlm.train.pretrain import run_pretrain

EVIL = "</script><img src=x onerror=\"document.title='taken'\">"


def score(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 1.5, "high": value + 1.5}


def evaluation(**changed: Any) -> dict[str, Any]:
    known = {"questions": 1200, "retriever": "learned", "read": 4, "exact_match": score(60.0), "f1": None, "nats": {}}
    return {**known, "recall_definition": "dpr", "recall": {"1": score(40.25)}, "gold_recall": {}, "seconds": 1.0, **changed}


def prediction(
    number: int, *, passage: str = "Nothing.", title: str = "", at: int = 7, rank: int | None = None, **changed: Any
) -> dict[str, Any]:
    evidence = [
        {
            "passage_id": None,
            "title": "",
            "passage": "",
            "start": None,
            "end": None,
            "retrieval_probability": 0.2,
            "reading_probability": 0.1,
        },
        {
            "passage_id": at,
            "title": title,
            "passage": passage,
            "start": None,
            "end": None,
            "retrieval_probability": 0.8,
            "reading_probability": 0.5,
        },
    ]
    asked = {
        "id": str(number),
        "question": f"Question {number}?",
        "answers": [f"answer {number}"],
        "correct": False,
        "f1": 0.0,
        "log_p": None,
    }
    return {
        **asked,
        "utility": None,
        "first_passage_with_answer": rank,
        "answer": "wrong",
        "probability": 0.4,
        "evidence": evidence,
        "others": [],
        **changed,
    }


def write_lines(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def make_run(folder: Path, rows: list[dict[str, Any]], **config: Any) -> Path:
    write_lines(folder / "metrics.jsonl", rows)
    (folder / "run.json").write_text(json.dumps({"stage": "pretrain", "config": {"out": str(folder), **config}}))
    return folder


def rows(count: int = 8, *, pace: float = 0.5) -> list[dict[str, Any]]:
    ages = [{"step": 10 * n, "loss": 6 - pace * n, "utility": n / 3, "index_age": 10 * (n % 4)} for n in range(1, count + 1)]
    return [{**row, "seconds": {"read": 0.1}} for row in ages]


class Page(HTMLParser):
    """Tags as a browser would see them, the text of each kind of tag, and of all of the page outside scripts and styles."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(file.read_text("utf-8"))
        self.text = " ".join(" ".join(text) for tag, text in self.texts.items() if tag not in ("script", "style"))
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def cells(self) -> list[str]:
        return self.texts.get("td", [])


def report(*arguments: Any, out: Path) -> Page:
    main(["report", *map(str, arguments), "--out", str(out)])
    return Page(out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any, out: Path) -> str:
    existing = out.exists()
    with pytest.raises(SystemExit) as end:
        main(["report", *map(str, arguments), "--out", str(out)])
    assert end.value.code == 2
    assert out.exists() == existing
    assert not list(out.parent.glob(".*.part"))
    return capsys.readouterr().err


# --- contents ---------------------------------------------------------------------------------------------------------------------------


def test_a_pipeline_is_reported_from_what_its_commands_wrote(
    world: Path, knowledge: Corpus, tiny_model_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "joint"
    optim, refresh = JointOptim(steps=3, batch=4), Refresh(every_steps=2, process=False)
    loop = Loop(log_every=1, threads=1, device="cpu")
    run_pretrain(Pretrain(model=tiny_model_folder, corpus=knowledge.folder, out=run, k=3, optim=optim, refresh=refresh, loop=loop))
    for name, model in (("begin", tiny_model_folder), ("joint", run / "model")):
        files = ["--report", str(tmp_path / f"{name}.json"), "--predictions", str(tmp_path / f"{name}.jsonl")]
        asked = ["--questions", str(world / "questions-held-out.jsonl"), "--limit", "20", "--device", "cpu"]
        main(["evaluate", "--model", str(model), "--corpus", str(knowledge.folder), *asked, *files])
    predictions = ["--before", tmp_path / "begin.jsonl", "--after", tmp_path / "joint.jsonl"]
    page = report(
        run, "--evaluations", tmp_path / "begin.json", tmp_path / "joint.json", *predictions, out=tmp_path / "new" / "report.html"
    )
    (drawn,) = json.loads(page.texts["script"][0])
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert drawn["curves"]["loss"] == [[row["step"], row["loss"]] for row in metrics]
    measured = json.loads((tmp_path / "joint.json").read_text())
    assert f"{measured['exact_match']['value']:.1f}" in page.cells()
    assert "20 questions were put to begin (before) and to joint (after)" in page.text


def test_runs_lie_over_one_another_with_the_settings_in_which_they_differ(tmp_path: Path) -> None:
    one = make_run(tmp_path / "realm", rows(), refresh={"every_steps": 50}, k=5, model="/home/someone/warmup/model")
    two = make_run(tmp_path / "stale", rows(pace=0.2), refresh={"every_steps": 0}, k=5, model="/home/someone/other/model", text="/x")
    page = report(one, two, out=tmp_path / "report.html")
    drawn = json.loads(page.texts["script"][0])
    assert [(run["name"], run["place"]) for run in drawn] == [("realm", 0), ("stale", 1)]
    assert drawn[1]["curves"]["loss"][:2] == [[10, 5.8], [20, 5.6]]
    assert set(drawn[0]["curves"]) == {"loss", "utility", "index_age"}
    assert page.cells() == ["50", "0", "warmup/model", "other/model"]
    assert page.texts["h1"] == ["realm, stale"]


def test_the_parts_of_a_warm_up_and_runs_of_one_name(tmp_path: Path) -> None:
    for seed in (1, 2):
        for part in ("reader", "retriever"):
            make_run(tmp_path / f"seed-{seed}" / "warmup" / part, rows())
        (tmp_path / f"seed-{seed}" / "warmup" / "run.json").write_text("{}")
    page = report(tmp_path / "seed-1" / "warmup", tmp_path / "seed-2" / "warmup", out=tmp_path / "report.html")
    names = [run["name"] for run in json.loads(page.texts["script"][0])]
    assert names == [f"seed-{seed}/warmup/{part}" for seed in (1, 2) for part in ("reader", "retriever")]


def test_adapting_is_found_in_the_folder_that_adapt_made(tmp_path: Path) -> None:
    for name in ("first", "second"):
        make_run(tmp_path / name / "adapting", rows())
    page = report(tmp_path / "first", tmp_path / "second" / "adapting", out=tmp_path / "report.html")
    first, second = json.loads(page.texts["script"][0])
    assert (first["name"], second["name"]) == ("first", "second/adapting")
    assert first["curves"] == second["curves"]


def test_a_row_cut_off_is_left_out_and_what_is_no_number_breaks_the_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": math.nan}, {"step": 3, "loss": 1.0}])
    with open(run / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 4, "lo')
    page = report(run, out=tmp_path / "report.html")
    assert json.loads(page.texts["script"][0])[0]["curves"] == {"loss": [[1, 2.0], [2, None], [3, 1.0]]}


def test_evaluations_are_one_table_with_a_gap_where_nothing_was_measured(tmp_path: Path) -> None:
    nats = {"−log p(y|x)": {"value": 2.106, "low": 2.07, "high": 2.14}, "retrieval utility": {"value": -0.5, "low": -0.6, "high": -0.4}}
    (tmp_path / "clozes.json").write_text(json.dumps(evaluation(nats=nats, recall={"5": score(80), "1": score(40), "20": score(90)})))
    (tmp_path / "questions.json").write_text(json.dumps(evaluation(exact_match=None, retriever="bm25", gold_recall={"1": score(33)})))
    page = report("--evaluations", tmp_path / "clozes.json", tmp_path / "questions.json", out=tmp_path / "report.html")
    heads = ["answers, %", "nats", "recall of the answer string (dpr), %", "recall of the gold passage, %"]
    columns = ["exact match", "−log p(y|x)", "retrieval utility", "@1", "@5", "@20", "@1"]
    assert page.texts["th"] == [*heads, *columns, "clozes", "questions"]
    assert page.cells() == ["60.0", "2.11", "−0.50", "40.0", "80.0", "90.0", "–", "–", "–", "–", "40.2", "–", "–", "33.0"]
    assert {"1,200 questions", "bm25, 4 read", "[−0.60, −0.40]", "[38.8, 41.8]"} <= set(page.texts["small"])
    assert [attributes["colspan"] for tag, attributes in page.tags if tag == "th" and attributes] == ["1", "2", "3", "1"]


def test_examples_show_question_answers_and_passages_of_both(tmp_path: Path) -> None:
    long = "word " * 100 + "The seal shows an Answer 0, gilded. " + "more " * 100
    before = write_lines(tmp_path / "ict.jsonl", [prediction(0), prediction(1, rank=1, correct=True), prediction(2), prediction(3)])
    found = prediction(0, passage=long, title="Seals", at=3, rank=2, correct=True, answer="gold", log_p=-0.25)
    after = write_lines(tmp_path / "realm.jsonl", [found, prediction(1, rank=4), prediction(2), prediction(9)])
    page = report("--before", before, "--after", after, out=tmp_path / "report.html")
    assert "3 questions were put to ict (before) and to realm (after)" in page.text
    assert "came nearer for 1 and moved away for 1; 1 answers were right before and 1 after (1 gained, 1 lost)" in page.text
    assert page.texts["h4"] == ["Question 0?", "Question 1?"]
    assert page.texts["mark"] == ["Answer 0"]
    assert page.texts["h5"] == ["before: ict", "after: realm"] * 2
    assert page.texts["b"] == ["answer 0", "wrong", "gold", "answer 1", "wrong", "wrong"]
    assert "no passage retrieved has the answer" in page.text
    assert "log p(y|x) −0.25; first passage with the answer: 2" in page.text
    assert "nothing read (the null document)" in page.text
    assert not any(len(text) > 300 for text in page.texts["p"] if "questions were put" not in text)


def test_a_report_is_the_same_every_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows())
    for name in ("a", "b"):
        report(run, out=tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# --- parts ------------------------------------------------------------------------------------------------------------------------------


def told(*shares: float, first: int = 0, rank: int | None = None, log_p: float | None = None, answer: str = "x") -> Prediction:
    read = tuple(Read(first + number, "", "", share) for number, share in enumerate(shares))
    return Prediction("q", (answer,), "", False, log_p, rank, read)


def test_retrieval_changed_by_half_the_sum_of_all_differences() -> None:
    assert amount(told(0.5, 0.5), told(0.5, 0.5)) == (0, 0, 0)
    assert amount(told(0.75, 0.25), told(0.25, 0.75)) == (0.5, 0, 0)
    assert amount(told(0.75, 0.25), told(1.0, first=1)) == (0.75, 0, 0)
    assert amount(told(1.0, rank=2, log_p=-4.0), told(1.0, first=1, log_p=-1.0)) == (1.0, 0.5, 3.0)


def test_the_most_changed_come_first_one_for_each_answer() -> None:
    before = {number: told(1.0, answer=answer) for number, answer in enumerate("aabc")}
    after = {
        0: told(0.9, 0.1, rank=1, answer="a"),
        1: told(0.5, 0.5, rank=1, answer="a"),
        2: told(0.6, 0.4, rank=3, answer="b"),
        3: told(1.0, first=5, answer="c"),  # changed most, and still without the answer
    }
    change = compare(before, after, examples=5)
    assert [new for _, new in change.nearer] == [after[1], after[2]]
    assert (change.counts, change.further) == ((3, 0), [])
    assert [new for _, new in compare(after, before, examples=1).further] == [before[0]]


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=300), st.integers(1, 40))
def test_a_long_curve_becomes_means_with_their_range(values: list[float | None], most: int) -> None:
    points: Points = list(enumerate(values))
    bundled = bundle(points, most=most)
    assert len(bundled) <= most
    if len(points) <= most:
        assert bundled == points
        return
    begin = 0
    for step, mean, *ends in bundled:
        assert step is not None
        stretch = values[begin : int(step) + 1]
        begin = int(step) + 1
        if None in stretch:
            assert (mean, ends) == (None, [])
        else:
            assert mean == pytest.approx(sum(value for value in stretch if value is not None) / len(stretch), rel=1e-5, abs=1e-5 * 1e6)
            assert ends == [min(stretch), max(stretch)]  # type: ignore[type-var]
    assert begin == len(points)


@given(st.text("ab c.", max_size=400), st.lists(st.text("ab ", min_size=1, max_size=5), max_size=3), st.integers(20, 60))
def test_a_piece_of_a_passage_stands_in_it_and_marks_an_answer(text: str, answers: list[str], most: int) -> None:
    parts = [part if isinstance(part, str) else f"<{part.text}>" for part in piece(text, tuple(answers), most=most)]
    shown = "".join(parts).replace("… ", "", 1) if parts[0].startswith("… ") else "".join(parts)
    shown = shown.removesuffix(" …")
    assert shown.replace("<", "").replace(">", "") in " ".join(text.split())
    assert len(shown) <= most + 2 + max(map(len, answers), default=0) + most // 2
    if len(parts) > 1:
        assert parts[1][1:-1] in answers


def test_names_take_as_many_parts_as_tell_them_apart() -> None:
    assert names_of([Path("a/x.json"), Path("b/y.jsonl")]) == ["x", "y"]
    assert names_of([Path("/r/a/x"), Path("/r/b/x")]) == ["a/x", "b/x"]
    assert names_of([Path("/r/a/../v1.2")]) == ["v1.2"]
    assert names_of([Path("/x"), Path("/r/x"), Path("/r/y")]) == ["/x", "r/x", "y"]
    assert names_of([Path("/r/warmup/reader"), Path("/r/reader.json")]) == ["warmup/reader", "reader"]


# --- texts are texts ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def evil(tmp_path: Path) -> list[Any]:
    """Everything a report shows, all of it trying to be markup."""
    run = make_run(tmp_path / EVIL.replace("/", ""), [{**row, EVIL: 1} for row in rows()], masking=EVIL)
    other = make_run(tmp_path / "other", rows(pace=0.1), masking="salient")
    (tmp_path / "e.json").write_text(json.dumps(evaluation(retriever=EVIL, recall_definition=EVIL, nats={EVIL: score(1)})))
    texts: dict[str, Any] = {"question": EVIL, "answers": [EVIL], "answer": EVIL + "\ud800"}
    before = write_lines(tmp_path / "before.jsonl", [prediction(0, **texts)])
    after = write_lines(tmp_path / "after.jsonl", [prediction(0, passage=f"It is {EVIL} here.", title=EVIL, rank=1, **texts)])
    return [run, other, "--evaluations", tmp_path / "e.json", "--before", before, "--after", after]


def test_texts_never_become_markup(evil: list[Any], tmp_path: Path) -> None:
    page = report(*evil, out=tmp_path / "report.html")
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    assert tags.count("script") == 2
    assert page.text.count(EVIL) >= 10
    assert EVIL in json.loads(page.texts["script"][0])[0]["curves"]
    assert page.texts["title"] == [f"{EVIL.replace('/', '')}, other"]


def test_nothing_is_loaded_from_elsewhere(evil: list[Any], tmp_path: Path) -> None:
    page = report(*evil, out=tmp_path / "report.html")
    assert not any({"src", "href"} & set(attributes) for _, attributes in page.tags)
    (style,) = page.texts["style"]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


# --- what is refused ----------------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, run = tmp_path / "report.html", make_run(tmp_path / "run", rows())
    out.write_text("mine")
    assert "report.html already exists" in refused(capsys, run, out=out)
    assert out.read_text() == "mine"


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, run = tmp_path / "new" / "report.html", make_run(tmp_path / "run", rows())
    assert f"no run in {tmp_path}: it has no run.json; name the --out" in refused(capsys, run, tmp_path, out=out)
    assert "no run in nowhere" in refused(capsys, "nowhere", out=out)
    assert f"{run} is named twice" in refused(capsys, run, run, out=out)
    empty = make_run(tmp_path / "empty", [])
    assert f"{empty} has no metrics yet" in refused(capsys, empty, out=out)
    (run / "run.json").write_text('{"stage": ')
    assert "run.json is damaged" in refused(capsys, run, out=out)
    assert not out.parent.exists()


@pytest.mark.parametrize("line", ['{"step": 2, "los', "[1, 2]", '{"loss": 1}', '{"step": "2"}', '{"step": NaN}', '{"step": true}'])
def test_a_damaged_row_of_metrics_is_named(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", rows())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], line, *lines[2:], ""]))
    assert f"{run / 'metrics.jsonl'}:3: not a row of metrics; remove the line" in refused(capsys, run, out=tmp_path / "report.html")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", json.dumps(evaluation(recall={"one": score(1)})), json.dumps(evaluation(exact_match={"value": 1}))],
)
def test_a_report_that_is_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.json").write_text(text)
    assert "e.json is not a report; make one: realmlm evaluate" in refused(
        capsys, "--evaluations", tmp_path / "e.json", out=tmp_path / "r.html"
    )


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin.json").write_bytes(b"\xe9\xff")
    for file in ("missing.json", "latin.json", "."):
        assert "cannot be read as UTF-8 text" in refused(capsys, "--evaluations", tmp_path / file, out=tmp_path / "r.html")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "p.jsonl:2: not a prediction; make such a file"),
        ("[]", "p.jsonl:2: not a prediction"),
        (json.dumps({"question": "Who?", "answers": []}), "p.jsonl:2: nothing was read for this question; evaluate with --read 1 or more"),
        (json.dumps(prediction(1, evidence=[{"passage_id": []}])), "p.jsonl:2: not a prediction"),
        (json.dumps(prediction(1, first_passage_with_answer="first")), "p.jsonl:2: not a prediction"),
    ],
)
def test_predictions_that_are_none(row: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_lines(tmp_path / "good.jsonl", [prediction(0)])
    (tmp_path / "p.jsonl").write_text(json.dumps(prediction(0)) + "\n" + row + "\n")
    assert said in refused(capsys, "--before", good, "--after", tmp_path / "p.jsonl", out=tmp_path / "r.html")


def test_predictions_that_do_not_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write_lines(tmp_path / "1.jsonl", [prediction(1)]), write_lines(tmp_path / "2.jsonl", [prediction(2)])
    assert "no question in common; evaluate both on the same --questions" in refused(
        capsys, "--before", one, "--after", two, out=tmp_path / "r"
    )
    assert "--before FILE and --after FILE go together" in refused(capsys, "--before", one, out=tmp_path / "r")
    assert "nothing to report" in refused(capsys, out=tmp_path / "r")


# --- in a browser -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("Chromium and its driver are not installed (Debian: apt install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    yield chromium
    assert chromium.get_log("browser") == []


def all_of(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def test_the_curves_are_drawn_and_tell_their_values(browser: Any, tmp_path: Path) -> None:
    gap = [{**row, "loss": math.nan if row["step"] == 40 else row["loss"]} for row in rows()]
    report(make_run(tmp_path / "realm", rows()), make_run(tmp_path / "stale", gap), out=tmp_path / "report.html")
    browser.get(f"file://{tmp_path}/report.html")
    assert [caption.text for caption in all_of(browser, "figcaption")] == ["loss", "retrieval utility, nats", "age of the index, steps"]
    paths = [line.get_attribute("d") for line in all_of(browser, "figure:first-child .curve .line")]
    assert [(path.count("M"), path.count("L")) for path in paths] == [(1, 7), (2, 5)]
    heights = [float(point.split(",")[1]) for point in paths[0][1:].split("L")]
    assert heights == sorted(heights)  # the loss falls, and on a screen down is more
    legend = all_of(browser, "figure:first-child .legend li")
    assert [item.text for item in legend] == ["realm 2", "stale 2"]
    from selenium.webdriver.common.action_chains import ActionChains

    chart = all_of(browser, "figure:first-child .curve")[0]
    ActionChains(browser).move_to_element(chart).perform()  # the middle of the axis 0 … 80, less what the numbers beside it take
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
    assert len({(line.value_of_css_property("stroke"), line.value_of_css_property("stroke-dasharray")) for line in lines}) == 7


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
def test_it_fits_the_screen_and_follows_its_colours(browser: Any, evil: list[Any], tmp_path: Path, width: int, scheme: str) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    report(*evil, out=tmp_path / "report.html")
    browser.get(f"file://{tmp_path}/report.html")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    red, green, blue = json.loads(f"[{all_of(browser, 'body')[0].value_of_css_property('background-color').split('(')[1].split(')')[0]}]")[
        :3
    ]
    assert (red + green + blue > 380) == (scheme == "light")
