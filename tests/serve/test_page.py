"""The page in a real browser: each view, an error, a slow answer, an edit that changes an answer."""

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser import need_browser

need_browser()
uvicorn = pytest.importorskip("uvicorn", reason="the service is not installed: pip install 'realmlm[serve]'")

from selenium.webdriver import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

from realmlm.corpus.store import Corpus  # noqa: E402
from realmlm.engine import Engine  # noqa: E402
from realmlm.log import progress  # noqa: E402
from realmlm.reading.answer import Answer, Evidence, Words  # noqa: E402
from realmlm.serve import suggestions  # noqa: E402
from realmlm.serve.around import Doors  # noqa: E402
from realmlm.serve.front import Front  # noqa: E402
from realmlm.serve.http import Running, create_app  # noqa: E402


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one training run."""
    folder = tmp_path_factory.mktemp("training") / "runs"
    make_run(folder / "joint")
    return folder


def make_run(folder: Path) -> None:
    folder.mkdir(parents=True)
    rows = [{"step": 10 * n, "loss": 5 - n / 2, "utility": n / 3, "index_age": n % 3} for n in range(1, 8)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def address(
    tiny_model_folder: Path, knowledge: Corpus, runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A running service. What it answers is read off the passage itself, so that an edit shows; the model is
    untrained."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(knowledge.folder, folder / "corpus", ignore=shutil.ignore_patterns("index", "answers"))
    engine = Engine(tiny_model_folder, folder / "corpus", device="cpu")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(
        engine, "ask", lambda questions, *, read: [_read_off(engine, question) for question in questions]
    )
    monkeypatch.setattr(
        engine, "ask_without_reading", lambda questions: [_guess(question) for question in questions]
    )
    with served(engine, runs=[runs]) as place:
        yield place


@contextmanager
def served(
    engine: Engine, *, runs: Sequence[Path] = (), token: str | None = None, token_reads: bool = False
) -> Iterator[str]:
    """The address of a service while it runs."""
    app = create_app(engine, runs=runs, token=token, running=Running(token_reads=token_reads))
    with running(app) as place:
        yield place


@contextmanager
def running(app: Any) -> Iterator[str]:
    """The address of an application while it runs."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(20)


def _read_off(engine: Engine, question: str) -> Answer:
    """The last word of passage 0."""
    if "slowly" in question:
        time.sleep(1.0)
    text = engine.corpus[0].text
    match = list(re.finditer(r"\w+", text))[-1]
    evidence = Evidence(0, engine.corpus[0].title, text, match.start(), match.end(), 0.8, 0.5)
    more = (
        [Evidence(n, "", "little", None, None, p, 0.0) for n, p in ((1, 0.19), (2, 0.006), (3, 0.004))]
        if "many" in question
        else []
    )
    return Answer(
        match[0],
        0.4,
        (evidence, *more),
        (Words("another", 0.0001 if "surely" in question else 0.1),),
        caution="unsure: …" if "unsaid" in question else "",
        sure="likely" if "surely" in question else "",
        confidence=0.83 if "surely" in question else None,
    )


def _guess(question: str) -> Answer:
    return Answer("a guess", 0.009 if "many" in question else 0.011, ())


@pytest.fixture
def browser(chromium: Any, address: str) -> Iterator[Any]:
    """The page in a tab of its own, in a browser that remembers nothing of it."""
    first = chromium.current_window_handle
    chromium.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": address, "storageTypes": "all"})
    chromium.switch_to.new_window("tab")
    chromium.get(address)
    yield chromium
    severe = [entry["message"] for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
    chromium.close()
    chromium.switch_to.window(first)
    assert [message for message in severe if "Failed to load resource" not in message] == []


def wait(condition: Callable[[], Any], *, seconds: float = 20) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if found := condition():
                return found
        except Exception as error:
            if "stale element" not in str(error) and "no such element" not in str(error):
                raise
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def one(browser: Any, selector: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, selector)


def ask(browser: Any, question: str) -> None:
    one(browser, "#tab-ask").click()
    field = one(browser, "#question")
    field.clear()
    field.send_keys(question, Keys.ENTER)


def test_a_question_shows_answer_evidence_and_on_request_numbers(browser: Any) -> None:
    ask(browser, "What is last?")
    assert (
        wait(lambda: one(browser, "#ask .answer + .note")).text == "probability 40%"
    )  # there is no word for how sure
    answer = one(browser, "#ask .answer").text
    assert one(browser, "#ask article.card:has(mark) + .answer")  # the passage first, then the answer in it
    assert one(browser, "#ask mark").text == answer
    numeric = browser.find_elements(By.CSS_SELECTOR, "#ask .numeric")
    assert len(numeric) == 4  # of another answer, bars, what is said without reading, words for all this
    assert not any(part.is_displayed() for part in numeric)
    one(browser, "#ask .switch").click()
    assert all(part.is_displayed() for part in numeric)
    numbers = [number.text for number in browser.find_elements(By.CSS_SELECTOR, "#ask .card .number")]
    assert numbers == ["80%", "50%", "100%"]
    filled, track = (one(browser, f"#ask .card .track{inner}").size["width"] for inner in (" span", ""))
    assert filled == pytest.approx(0.8 * track, abs=1)
    assert "another 10%" in one(browser, "#ask .others").text
    assert one(browser, "#ask .card.null h3").text == "Without reading anything"
    legend = one(browser, "#ask .words")
    explained = {
        row.text: row.find_element(By.CSS_SELECTOR, "[title]").get_attribute("title")
        for row in browser.find_elements(By.CSS_SELECTOR, "#ask .bars dt")
    }
    assert explained == {
        "fits the question": "p(z|x)",
        "says this answer": "p(y|z,x)",
        "part in the answer": "p(z|x) · p(y|z,x) / p(y|x)",
    }
    assert all(f"{words}:" in legend.text for words in (*explained, "probability"))
    assert one(browser, "#ask .p").get_attribute("title").startswith("p(y|x) = Σ")
    browser.refresh()  # the question is in the address, and the switch stays as it was
    assert wait(lambda: one(browser, "#ask .bars").is_displayed())


def test_how_sure_an_answer_is_stands_beside_it_in_a_word(browser: Any) -> None:
    ask(browser, "What is surely last?")
    sure = wait(lambda: one(browser, "#ask .sure"))
    assert sure.text == "likely"
    assert "83%" in sure.get_attribute("title")
    assert not one(browser, "#ask .p").is_displayed()
    assert not browser.find_elements(By.CSS_SELECTOR, "#ask .others"), "what hardly counts is no other answer"


def test_where_the_documents_may_not_say_it_the_page_does(browser: Any) -> None:
    ask(browser, "What is unsaid?")
    assert wait(lambda: one(browser, "#ask .caution")).text == "unsure: …"
    ask(browser, "What is last?")
    assert wait(lambda: not browser.find_elements(By.CSS_SELECTOR, "#ask .caution"))


def test_an_answer_from_a_former_state_is_said_to_be_one(
    browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(lambda: one(browser, "#health").text.endswith("passages"))
    with monkeypatch.context() as behind:
        behind.setattr(Engine, "up_to_date", False)
        ask(browser, "What is last?")
        assert wait(lambda: one(browser, "#health").text.endswith("passages, not up to date"))
    ask(browser, "What is last?")
    assert wait(lambda: one(browser, "#health").text.endswith("passages"))


def test_what_hardly_counts_is_folded_into_one_line(browser: Any) -> None:
    def shown() -> list[Any]:
        return [card for card in browser.find_elements(By.CSS_SELECTOR, "#ask .card") if card.is_displayed()]

    one(browser, "#ask .switch").click()
    ask(browser, "What is last of many?")
    line = wait(lambda: one(browser, "#ask .result summary"))
    assert line.text == "2 more passages were read"
    assert ["Passage 1" in card.text for card in shown()] == [False, True]
    line.send_keys(Keys.ENTER)
    assert ["little" in card.text for card in shown()] == [False, True, True, True]
    assert not browser.find_elements(By.CSS_SELECTOR, "#ask .card.null")


def test_a_slow_answer_says_that_it_is_read(browser: Any) -> None:
    ask(browser, "What is last, slowly?")
    assert wait(lambda: one(browser, "#ask .note").text == "Reading …")
    assert one(browser, "#ask form button").get_attribute("disabled")
    assert wait(lambda: one(browser, "#ask .answer"))
    assert not one(browser, "#ask form button").get_attribute("disabled")


def test_a_sentence_is_filled_in_with_and_without_retrieval(browser: Any) -> None:
    one(browser, "#tab-fill").click()
    one(browser, "#sentence").send_keys("the town shows a [MASK]", Keys.ENTER)
    heads = [head.text for head in wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#fill th"))]
    assert heads == ["with retrieval", "", "without", ""]
    assert len(browser.find_elements(By.CSS_SELECTOR, "#fill .card")) == 6
    right_of, left_of = (f"document.querySelectorAll('#fill td')[{cell}].firstChild" for cell in (1, 2))
    edges = (
        "const r = document.createRange(), edge = (text, side) => (r.selectNode(text), "
        "r.getBoundingClientRect()[side]);"
    )
    gap = browser.execute_script(f"{edges} return edge({left_of}, 'left') - edge({right_of}, 'right')")
    assert gap >= 40  # px: the columns do not run together


def test_an_error_is_shown_as_text(browser: Any) -> None:
    one(browser, "#tab-fill").click()
    field = one(browser, "#sentence")
    field.send_keys("<b>nothing</b> is hidden", Keys.ENTER)
    said = wait(lambda: one(browser, "#fill .wrong")).text
    assert "nothing to fill in" in said
    assert "<b>" in said
    assert not browser.find_elements(By.CSS_SELECTOR, "#fill .wrong b")


def test_an_edit_changes_the_answer(browser: Any) -> None:
    one(browser, "#tab-knowledge").click()
    card = wait(lambda: one(browser, "#found .card"))
    assert "(0)" in card.text
    card.find_element(By.XPATH, ".//button[text()='Edit']").click()
    text = one(browser, "#found textarea")
    text.clear()
    text.send_keys("The arms show a quince")
    card.find_element(By.XPATH, ".//button[text()='Save']").click()
    assert wait(lambda: "ask again" in one(browser, "#said").text)
    assert browser.switch_to.active_element.text == "Edit"
    ask(browser, "What is last?")
    assert wait(lambda: one(browser, "#ask .answer").text == "quince")


def test_passages_are_found_added_and_removed(browser: Any) -> None:
    one(browser, "#tab-knowledge").click()
    one(browser, "#new summary").click()
    one(browser, "#add-title").send_keys("Nerrow")
    one(browser, "#add-text").send_keys("The people of Nerrow carve pipes.")
    one(browser, "#add button").click()
    assert wait(lambda: "Added as" in one(browser, "#said").text)
    one(browser, "#find-text").send_keys("carve PIPES", Keys.ENTER)
    wait(lambda: len(browser.find_elements(By.CSS_SELECTOR, "#found .card")) == 1)
    assert one(browser, "#found .card .file").text == "written here"
    one(browser, "#found .card").find_element(By.XPATH, ".//button[text()='Remove']").click()
    assert browser.switch_to.active_element.text == "Really remove?"
    one(browser, "#find-text").click()  # a second thought
    assert "Remove" in one(browser, "#found .card").text
    assert "Really" not in one(browser, "#found .card").text
    button = one(browser, "#found .card").find_element(By.XPATH, ".//button[text()='Remove']")
    ActionChains(browser).double_click(button).perform()
    assert button.text == "Really remove?"
    assert wait(lambda: button.text == "Remove", seconds=10)  # after some seconds
    assert "Nerrow" in one(browser, "#found .card").text
    button.send_keys(Keys.ENTER)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert wait(lambda: "was removed" in one(browser, "#said").text)


def test_where_a_token_is_needed_its_field_opens(
    browser: Any, tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    shutil.copytree(knowledge.folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("index", "answers"))
    with served(
        Engine(tiny_model_folder, tmp_path / "corpus", device="cpu"), token="a long secret"
    ) as address:
        browser.get(f"{address}#knowledge")
        cards = wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#found .card"))
        cards[0].find_element(By.XPATH, ".//button[text()='Edit']").click()
        cards[0].find_element(By.XPATH, ".//button[text()='Save']").click()
        assert wait(lambda: one(browser, "#said").text) == "Enter the service's token below"
        assert wait(lambda: browser.switch_to.active_element.get_attribute("id") == "token")
        assert one(browser, "#said").location["y"] < one(browser, "#token").location["y"]
        browser.switch_to.active_element.send_keys("a long secret")
        cards[0].find_element(By.XPATH, ".//button[text()='Save']").click()
        assert wait(lambda: "was changed" in one(browser, "#said").text)


def test_where_reading_needs_the_token_the_page_asks_for_it(
    browser: Any, tiny_model_folder: Path, knowledge: Corpus
) -> None:
    engine = Engine(tiny_model_folder, knowledge, device="cpu")
    with served(engine, token="a long secret", token_reads=True) as address:
        browser.get(address)
        door = wait(lambda: (found := one(browser, "#door-token")).is_displayed() and found)
        door.send_keys("a wrong secret", Keys.ENTER)
        assert wait(lambda: "token" in one(browser, "#health").text)
        assert door.is_displayed()
        door.send_keys("a long secret", Keys.ENTER)
        assert wait(lambda: "passages" in one(browser, "#health").text)
        assert not door.is_displayed()
        one(browser, "#tab-knowledge").click()
        assert wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#found .card"))
        ask(browser, "Which bird?")
        assert wait(lambda: one(browser, "#ask .answer")).text


def test_passages_of_documents_are_shown_without_what_would_change_them(
    browser: Any, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offered() -> list[str]:
        wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#found .card"))
        return [
            part.text
            for part in browser.find_elements(By.CSS_SELECTOR, "#new, #found .card:first-child button")
            if part.is_displayed()
        ]

    one(browser, "#tab-knowledge").click()
    assert wait(lambda: offered() == ["Add a passage", "Edit", "Remove"])
    assert not one(browser, "#why").is_displayed()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "heron.txt").write_text("The heron is the bird of the town.")
    with served(Engine(tiny_model_folder, docs=tmp_path / "heron.txt", device="cpu")) as address:
        browser.get(f"{address}#knowledge")
        assert "Change the files" in wait(lambda: one(browser, "#why").text)
        assert offered() == []
        assert "The heron" in one(browser, "#found .card").text
        assert (
            one(browser, "#found .card .file").text == "heron.txt"
        )  # without the checksum that the source has


def test_the_views_first_field_has_the_focus(browser: Any, address: str) -> None:
    def focused() -> str:
        return str(browser.switch_to.active_element.get_attribute("id"))

    assert wait(lambda: focused() == "question")
    browser.get("about:blank")
    browser.get(f"{address}#fill")
    assert wait(lambda: focused() == "sentence")
    time.sleep(0.5)
    assert focused() == "sentence"  # and it stays
    one(browser, "#tab-fill").send_keys(Keys.END)
    assert focused() == "tab-training"
    one(browser, "#tab-training").send_keys(Keys.HOME)
    assert focused() == "tab-ask"
    assert one(browser, "#question").is_displayed()


# --- the start, the address, where a passage stands --------------------------------------------------------


def links(browser: Any, selector: str) -> list[str]:
    found = browser.find_elements(By.CSS_SELECTOR, f"{selector} a")
    return [link.text for link in found if link.is_displayed()]


def test_an_empty_start_shows_what_is_loaded_and_what_can_be_asked(
    browser: Any, tiny_model_folder: Path, knowledge: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = ["What is <b>bold</b>?", "Which bird?"]
    asked: list[str] = []

    def slowly(corpus: Corpus, ask: Callable[[list[str]], list[Answer]]) -> list[str]:
        time.sleep(0.5)
        asked.extend(answer.answer for answer in ask(offered))
        return offered

    monkeypatch.setattr(suggestions, "suggest", slowly)
    with served(Engine(tiny_model_folder, knowledge, device="cpu")) as address:
        browser.get(address)
        assert wait(lambda: links(browser, "#offered") == offered)
        assert len(asked) == 2  # the model was there to be asked
        assert one(browser, "#loaded").text == "Answers come from 300 passages of corpus."
        assert not browser.find_elements(By.CSS_SELECTOR, "#offered b")
        browser.find_element(By.LINK_TEXT, offered[1]).click()
        assert wait(lambda: one(browser, "#ask .answer"))
        assert one(browser, "#question").get_attribute("value") == offered[1]
        assert not one(browser, "#start").is_displayed()
        assert browser.title == f"{offered[1]} · realmlm"
        assert browser.switch_to.active_element == one(browser, "#ask .result")


def test_a_question_is_in_the_address_and_can_be_gone_back_to(browser: Any, address: str) -> None:
    def question() -> str:
        return str(one(browser, "#question").get_attribute("value"))

    for text in ("What is last & first?", "What is <i>last</i> of many?"):
        ask(browser, text)
        assert wait(lambda: one(browser, "#ask .answer"))
    shared = browser.current_url
    browser.back()
    assert wait(lambda: question() == "What is last & first?" and one(browser, "#ask .answer"))
    browser.back()
    assert wait(lambda: one(browser, "#start").is_displayed())
    assert (question(), browser.find_elements(By.CSS_SELECTOR, "#ask .answer")) == ("", [])
    browser.forward()
    assert wait(lambda: question() == "What is last & first?" and one(browser, "#ask .answer"))
    browser.get("about:blank")
    browser.get(shared)
    assert wait(lambda: one(browser, "#ask .answer"))
    assert question() == "What is <i>last</i> of many?"


def test_an_answer_that_comes_too_late_is_not_shown(browser: Any) -> None:
    ask(browser, "What is last, slowly?")
    assert wait(lambda: one(browser, "#ask .note").text == "Reading …")
    browser.back()
    assert wait(lambda: one(browser, "#start").is_displayed())
    time.sleep(1.3)
    assert not browser.find_elements(By.CSS_SELECTOR, "#ask .answer")
    assert not one(browser, "#ask form button").get_attribute("disabled")


def test_the_last_questions_stay_in_the_browser_until_they_are_cleared(browser: Any, address: str) -> None:
    assert links(browser, "#asked") == []
    for number in (*range(9), 5):
        question = f"What is last, {number}?"
        ask(browser, question)
        assert wait(lambda question=question: links(browser, "#asked")[:1] == [question])  # type: ignore[misc]
    expected = [f"What is last, {number}?" for number in (5, 8, 7, 6, 4, 3, 2, 1)]
    assert links(browser, "#asked") == expected
    browser.get(address)
    assert links(browser, "#asked") == expected
    browser.find_element(By.LINK_TEXT, "What is last, 3?").click()
    assert wait(lambda: one(browser, "#ask .answer"))
    one(browser, "#asked button").click()
    assert links(browser, "#asked") == []
    browser.execute_script("localStorage.setItem('asked', '{\"not\": [1, \"a list\"')")
    browser.get(address)
    ask(browser, "What is last?")
    assert wait(lambda: links(browser, "#asked") == ["What is last?"])


def test_a_passage_leads_to_where_it_stands(browser: Any, address: str) -> None:
    ask(browser, "What is last?")
    wait(lambda: one(browser, "#ask .card .file a")).click()
    here = wait(lambda: one(browser, "#found .card.here"))
    assert "(0)" in here.text
    numbers = [card.text.split("(")[1][0] for card in browser.find_elements(By.CSS_SELECTOR, "#found .card")]
    assert numbers == list("012345")
    assert "Passage 0 where it stands in" in one(browser, "#place").text
    assert browser.switch_to.active_element == here
    browser.find_elements(By.CSS_SELECTOR, "#found .card .file a")[4].click()
    assert wait(lambda: "(4)" in one(browser, "#found .card.here").text)
    browser.back()
    assert wait(lambda: "(0)" in one(browser, "#found .card.here").text)
    browser.back()
    assert wait(lambda: one(browser, "#ask .answer").is_displayed())  # asked once, shown again
    browser.get(f"{address}?passage=0#knowledge")
    wait(lambda: one(browser, "#place a")).click()
    assert wait(lambda: len(browser.find_elements(By.CSS_SELECTOR, "#found .card")) == 30)
    assert not one(browser, "#place").is_displayed()
    browser.get(f"{address}?passage=nowhere%3Cb%3E#knowledge")
    assert wait(lambda: one(browser, "#said.wrong")).text


def test_a_file_name_and_a_passage_with_markup_stay_text(
    browser: Any, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = "<img src=x onerror=alert(1)>.txt"
    (tmp_path / name).write_text(
        "The heron <b onclick='alert(2)'>is</b> the bird of <script>alert(3)</script>."
    )
    with served(Engine(tiny_model_folder, docs=tmp_path / name, device="cpu")) as address:
        browser.get(f"{address}?q=Which+<i>bird</i>?#ask")
        assert wait(lambda: one(browser, "#ask .card .file")).text == name
        assert name in one(browser, "#loaded").get_attribute("textContent")
        one(browser, "#ask .card .file a").click()
        assert name in wait(lambda: one(browser, "#place").text)
        assert "<script>alert(3)" in one(browser, "#found .card.here").text
        assert not browser.find_elements(By.CSS_SELECTOR, "main img, main i, main script, .card b")


def test_while_it_starts_its_progress_is_there_and_a_question_waits(
    browser: Any, tiny_model_folder: Path, knowledge: Corpus
) -> None:
    go = threading.Event()

    def load() -> Any:
        with progress("embedding", 400, unit="passages") as bar:
            bar.advance(100)
            assert go.wait(60)
        return create_app(Engine(tiny_model_folder, knowledge, device="cpu"))

    with running(Front(load, doors=Doors(), log=None)) as address:
        browser.get(f"{address}?q=Which+bird%3F")
        assert wait(lambda: "100/400 (25%) passages" in one(browser, "#starting p").text)
        assert float(one(browser, "#starting progress").get_attribute("value")) == 0.25
        assert wait(lambda: "as soon as the service is ready" in one(browser, "#ask .result").text)
        go.set()
        assert wait(lambda: one(browser, "#ask .answer"))
        assert not one(browser, "#starting").is_displayed()


def test_training_curves_and_the_keyboard(browser: Any) -> None:
    tab = one(browser, "#tab-ask")
    tab.send_keys(Keys.ARROW_LEFT)
    assert browser.switch_to.active_element.get_attribute("id") == "tab-training"
    assert wait(lambda: one(browser, "[id='run-joint']")).is_selected()  # the only one
    titles = wait(
        lambda: [caption.text for caption in browser.find_elements(By.CSS_SELECTOR, "#curves figcaption")]
    )
    assert titles == ["loss", "retrieval utility, nats", "age of the index, steps"]


def test_runs_of_one_name_stay_apart_while_they_are_watched(browser: Any, runs: Path) -> None:
    one(browser, "#tab-training").click()
    assert wait(lambda: one(browser, "[id='run-joint']")).is_selected()
    make_run(runs / "again" / "joint")
    try:
        labels = wait(
            lambda: [label.text for label in browser.find_elements(By.CSS_SELECTOR, "#runs label")][1:]
        )
        assert labels == ["runs/joint"]
        assert not one(browser, "[id='run-again/joint']").is_selected()
        for name in ("again/joint", "runs/joint"):
            one(browser, f"[id='run-{name}']").click()
        legend = "#curves figure:first-child .legend li"
        assert wait(
            lambda: (
                [item.text for item in browser.find_elements(By.CSS_SELECTOR, legend)]
                == ["again/joint 1.5", "runs/joint 1.5"]
            )
        )
    finally:
        shutil.rmtree(runs / "again")


@pytest.mark.parametrize("width", [360, 1000])
def test_nothing_is_wider_than_the_screen(browser: Any, width: int) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    ask(browser, "What is last?")
    wait(lambda: one(browser, "#ask .answer"))
    for view in ("ask", "fill", "knowledge", "training"):
        one(browser, f"#tab-{view}").click()
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, view
