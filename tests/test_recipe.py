"""The study's recipe at a hundredth of its size, from raw text to answers."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import BertConfig, BertModel

from realmlm.cli import main, parse
from realmlm.commands import COMMANDS
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.model.realm import Realm
from realmlm.settings import Evaluate, Finetune, MakeModel, Pretrain, Warmup
from realmlm.storage.artefacts import read_manifest
from tests.calls import create_model
from tests.conftest import TINY_MODEL

RUNS = Path(__file__).resolve().parents[1] / "runs"


@pytest.fixture(scope="module")
def data(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Articles of several passages and questions in two sets, from the tiny world."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "articles").mkdir()
    (folder / "questions").mkdir()
    rows = [json.loads(line) for line in (world / "knowledge.jsonl").read_text("utf-8").splitlines()]
    by_title: dict[str, list[str]] = {}
    for row in rows:
        by_title.setdefault(row["title"], []).append(row["text"])
    articles = [
        {"title": title, "text": "\n".join(texts * 40)} for title, texts in list(by_title.items())[::8]
    ]
    (folder / "articles" / "all.jsonl").write_text(
        "".join(json.dumps(article) + "\n" for article in articles)
    )
    for kind, part in (("train", "questions-train"), ("dev", "questions-held-out")):
        lines = (world / f"{part}.jsonl").read_text("utf-8").splitlines()[:12]
        rows = [{"question": row["question"], "answer": row["answer"]} for row in map(json.loads, lines)]
        for number, name in enumerate(("nq", "webquestions")):
            (folder / "questions" / f"{name}-{kind}.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows[number::2])
            )
    return folder


def run(script: str, *arguments: str | Path, **environment: str) -> str:
    binaries = Path(sys.executable).parent
    settings = (
        os.environ
        | {"SCALE": "0.01", "PATH": f"{binaries}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "CI": "1"}
        | environment
    )
    command = [sys.executable if script.endswith(".py") else "bash", str(RUNS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr + done.stdout


@pytest.mark.scale
def test_the_warm_track_ends_with_answers_and_resumes(data: Path, world: Path, tmp_path: Path) -> None:
    pieces = Wordpieces.load(world / "tokenizer.json")
    shape = {
        "hidden_size": 384,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
    }
    BertModel(BertConfig(vocab_size=len(pieces), **shape), add_pooling_layer=False).save_pretrained(
        tmp_path / "encoder"
    )
    pieces.save(tmp_path / "encoder" / "tokenizer.json")
    out = tmp_path / "out"
    said = run("mini.sh", "warm", out, data, ENCODER=str(tmp_path / "encoder"))
    assert "already done" not in said
    reports = {file.stem: json.loads(file.read_text("utf-8")) for file in (out / "reports").glob("*.json")}
    assert len(reports) == 2 * (1 + 2 + 2)
    assert reports["pretrain-zero-shot-nq"]["exact_match"] is None
    assert reports["questions-pretrain-nq"]["exact_match"]["value"] >= 0
    assert "−log p(y|x)" in reports["pretrain-held-out"]["nats"]
    logged = [
        json.loads(line)["command"].split()[0] for line in (out / "seconds.jsonl").read_text().splitlines()
    ]
    assert logged.count("finetune") == 2
    again = run("mini.sh", "warm", out, data, ENCODER=str(tmp_path / "encoder"))
    assert again.count("already done") >= len(reports)
    arms_are_compared(out, data)


@pytest.mark.slow
def test_arms_of_reading_are_compared(data: Path, world: Path, tmp_path: Path) -> None:
    knowledge = json.loads((world / "knowledge.jsonl").read_text("utf-8").splitlines()[0])
    asked = {"question": "What is this about?", "context": knowledge["text"], "title": knowledge["title"]}
    own = tmp_path / "data"
    shutil.copytree(data, own)
    answer = knowledge["text"].split()[1]
    (own / "questions" / "own-reading.jsonl").write_text(json.dumps(asked | {"answer": [answer]}), "utf-8")
    base = tmp_path / "out"
    main(
        [
            *["corpus", f"{own}/articles", "--out", f"{base}/corpus"],
            *["--tokenizer", str(world / "tokenizer.json"), "--max-wordpieces", "128"],
        ]
    )
    how = {**TINY_MODEL, "family": "bert", "read_titles": True, "reading": "together"}
    create_model(corpus=base / "corpus", out=tmp_path / "model", **how)
    for arm in ("read-20", "all"):
        run("reading_arms.sh", base, own, arm, MODEL=str(tmp_path / "model"))
    config = read_manifest(base / "reading/all-0/questions/model", kind="model").config
    assert config["passage_logit"]
    assert config["title_answers"]
    said = run("reading_arms.sh", base, own, "compare")
    for way in (
        "all-0/predictions/best-5-of-20",
        "all-0/predictions/read-20",
        "read-20-0/predictions/read-20",
    ):
        assert said.count(f"== {way} beside") == 2  # sets of questions
    report = json.loads((base / "reading/all-0/reports/best-5-of-20/nq.json").read_text("utf-8"))
    assert (report["read"], report["rerank"]) == (5, 20)


@pytest.mark.slow
def test_the_clean_track_ends_with_answers(data: Path, tmp_path: Path) -> None:
    run("mini.sh", "clean", tmp_path / "out", data, SCALE="0.005")
    reports = {
        file.stem: json.loads(file.read_text("utf-8"))
        for file in (tmp_path / "out" / "reports").glob("*.json")
    }
    assert len(reports) == 2 * (1 + 2 + 2)
    assert "−log p(y|x)" in reports["pretrain-held-out"]["nats"]


SIDE_BY_SIDE = [("realm", "realm-reader"), ("warmup", "bm25")]  # realm-reader needs realm


def arms(base: Path, data: Path, *several: str) -> None:
    for arm in several:
        run("text_study.sh", base, data, arm, QUESTIONS="1")


def arms_are_compared(base: Path, data: Path) -> None:
    run("text_study.sh", base, data, "ict")
    assert "| ICT continued | 1 |" in run("text_table.py", base), "before any arm was taught questions"
    text = [
        "corpus",
        f"{data}/articles",
        "--out",
        f"{base}/text",
        "--tokenizer",
        f"{base}/begin",
        "--max-wordpieces",
        "128",
    ]
    main([*text, "--skip-passages", "1"])
    main(["spans", f"{base}/text"])  # from here on another text is learned from than is searched
    with ThreadPoolExecutor(2) as both:  # each arm is a process with one thread
        for arm in [both.submit(arms, base, data, *several) for several in SIDE_BY_SIDE]:
            arm.result()
    said = run("text_table.py", base)
    for row in (
        "| REALM, pointing | 1 |",
        "| baseline retriever, REALM's reader | 1 |",
        "| ICT continued | 1 |",
        "| BM25 + reader | 1 |",
    ):
        assert row in said
    assert "12 questions of the training sets" in said
    done = subprocess.run(
        ["bash", str(RUNS / "text_study.sh"), str(base), str(data), "nonsense"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no arm 'nonsense'" in done.stderr
    assert not (base / "study" / "nonsense-0").exists()


def commands_of(script: str, base: Path, data: Path, *arguments: str, **environment: str) -> list[list[str]]:
    """What a script would run: `realmlm` is replaced by a program that writes down what it was given."""
    (base / "bin").mkdir(parents=True)
    for name in ("realmlm", "python"):
        (base / "bin" / name).write_text(
            '#!/bin/sh\nif [ "$2" = - ] || [ -f "$2" ]; then cat "$2" >> "$COMMANDS"; fi\n'
        )
        (base / "bin" / name).chmod(0o755)
    settings = (
        os.environ
        | {"PATH": f"{base / 'bin'}:{os.environ['PATH']}", "COMMANDS": str(base / "commands")}
        | environment
    )
    done = subprocess.run(
        ["bash", str(RUNS / script), str(base), str(data), *arguments],
        capture_output=True,
        text=True,
        env=settings,
    )
    assert done.returncode == 0, done.stderr
    return [
        shlex.split(line)
        for line in (base / "commands").read_text().splitlines()
        if not line.startswith(("#", '"""'))
    ]


def test_shipping_and_arms_of_ones_own_are_commands_that_exist(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    for name in ("nq", "webquestions"):
        shutil.copy(
            data / "questions" / f"{name}-dev.jsonl", tmp_path / "data" / "questions" / f"{name}-test.jsonl"
        )
    shipped = commands_of("ship.sh", tmp_path / "ship", tmp_path / "data", MODEL=str(tmp_path / "model"))
    own = commands_of("text_study.sh", tmp_path / "own", tmp_path / "data", "own-wide", EXTRA="--k 20")
    for name, *arguments in shipped + own:
        parse(name, COMMANDS[name][0], arguments)
    assert [name for name, *_ in shipped] == [
        "corpus",
        "hybrid",
        "compress",
        "calibrate",
        *["evaluate"] * 4,
    ]
    assert own[0][0] == "pretrain"
    assert own[0][-2:] == ["--k", "20"]


@pytest.mark.parametrize("joint", ["0", "100"])
def test_the_small_model_is_made_by_commands_that_exist(joint: str, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "questions" / "squad-reading.jsonl").touch()
    settings = {"ENCODER": str(tmp_path), "SCALE": "0.01", "JOINT": joint}
    settings |= {"TEACHER": str(tmp_path / "large")} if joint == "0" else {}
    asked = commands_of("small.sh", tmp_path / "base", tmp_path / "data", **settings)
    given = [(name, parse(name, COMMANDS[name][0], arguments)) for name, *arguments in asked]
    answering = [settings for name, settings in given if name == "finetune"]
    of = tmp_path / "base" / ("plain-0" if joint == "0" else "realm-0")
    assert [read.model for read in answering] == [of / "hybrid", of / "reading" / "model"][: len(answering)]
    assert [read.teacher for read in answering] == ([None, tmp_path / "large"] if joint == "0" else [None])
    stages = [name for name, *_ in asked if name != "evaluate"]
    pretrained = ["warmup"] if joint == "0" else ["warmup", "pretrain"]
    made = ["corpus", "spans", "corpus", "model"]
    assert stages == [*made, *pretrained, "towers", "hybrid", *["finetune"] * len(answering)]
    # both dev sets at the start and after each reading, then the small documents too
    assert len(asked) == len(stages) + 2 + (2 + 1) * len(answering)


def test_a_model_that_has_learned_goes_on(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "questions" / "squad-reading.jsonl").touch()
    settings = {"ENCODER": str(tmp_path), "START": "mini", "STAGES": "towers hybrid reading", "JOINT": "0"}
    asked = commands_of("small.sh", tmp_path / "base", tmp_path / "data", **settings)
    assert [name for name, *_ in asked if name != "evaluate"] == ["towers", "hybrid", "finetune"]
    assert asked[0][1:3] == ["--from", "mini"]


@pytest.mark.parametrize("chosen", ["corpus model towers hybrid reading", "reading"])
def test_the_large_reader_is_made_by_commands_that_exist(chosen: str, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "questions" / "squad-reading.jsonl").touch()
    settings = {"ENCODER": str(tmp_path), "SEED": "3", "COMPILE": "1", "STAGES": chosen, "EACH": "0"}
    asked = commands_of("base.sh", tmp_path / "base", tmp_path / "data", **settings)
    given = {name: parse(name, COMMANDS[name][0], arguments) for name, *arguments in asked}
    stages = [name for name, *_ in asked if name != "evaluate"]
    made = ["corpus", "spans", "corpus", "model", "towers", "hybrid"] * (chosen != "reading")
    assert stages == [*made, "finetune"]
    assert len(asked) == len(stages) + 2 + 1  # both dev sets, and the small documents
    read = given["finetune"]
    assert (read.loop.seed, read.loop.compile, read.optim.batch, read.optim.retriever_lr) == (3, True, 32, 0)
    assert read.model == tmp_path / "base" / "base" / "plain-3" / "hybrid"


def test_the_large_reader_learns_each_set_by_itself_too(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    questions = tmp_path / "data" / "questions"
    (questions / "squad-reading.jsonl").touch()
    (questions / "nq-test.jsonl").touch()
    asked = commands_of("base.sh", tmp_path / "base", tmp_path / "data", ENCODER=str(tmp_path), EACH="7")
    given = [parse(name, COMMANDS[name][0], arguments) for name, *arguments in asked]
    together, *alone = [settings for settings in given if isinstance(settings, Finetune)]
    assert len(together.questions) == 3
    read = tmp_path / "base" / "base" / "plain-0" / "reading" / "model"
    assert {settings.model for settings in alone} == {read}
    learned = [[file.name for file in settings.questions] for settings in alone]
    assert learned == [["nq-train.jsonl"], ["webquestions-train.jsonl"]]
    assert {settings.optim.steps for settings in alone} == {7}
    asked_of = [settings for settings in given if isinstance(settings, Evaluate)]
    assert not [settings for settings in asked_of if "-test." in str(settings.questions)]  # chosen on dev
    assert {(settings.rerank, settings.read) for settings in asked_of} >= {(0, 20), (50, 20)}
    chosen = {"STAGES": "tests", "START": str(read), "JOINT": "0", "ONLY": "nq", "RERANK": "50"}
    (told,) = commands_of("small.sh", tmp_path / "told", tmp_path / "data", **chosen)
    measured = parse(told[0], COMMANDS[told[0]][0], told[1:])
    assert isinstance(measured, Evaluate)
    assert (measured.model, measured.questions) == (read, questions / "nq-test.jsonl")
    assert (measured.rerank, measured.read) == (50, 20)


def test_the_clean_track_is_made_by_commands_that_exist(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "questions" / "squad-reading.jsonl").touch()
    (tmp_path / "data" / "unseen").mkdir()
    (tmp_path / "data" / "unseen" / "nq.jsonl").touch()
    parts = (
        *("reading", "warmup", "recurring", "joint", "plain", "posterior", "frozen", "ict", "words"),
        *("without", "with", "frozen-too"),
    )
    asked = {part: commands_of("clean.sh", tmp_path / part, tmp_path / "data", part) for part in parts}
    given = {
        part: [(name, parse(name, COMMANDS[name][0], arguments)) for name, *arguments in lines]
        for part, lines in asked.items()
    }
    stages = {part: [name for name, _ in lines if name != "evaluate"] for part, lines in given.items()}
    assert stages["reading"] == ["corpus", "spans", "clozes", "model", "warmup"]
    for part, begun, objective in (
        ("warmup", "reading/model", "ict"),
        ("recurring", "reading/model", "recurring"),
        ("ict", "warmup/model", "ict"),
    ):
        assert stages[part] == ["warmup"]
        towers = dict(given[part])["warmup"]
        assert (towers.model, towers.retriever_objective) == (tmp_path / part / begun, objective)
        assert (towers.reader.steps, towers.towers_as_reader) == (0, part != "ict")
    other = commands_of("clean.sh", tmp_path / "other", tmp_path / "data", "joint", FINDING="recurring")
    starts = [line[line.index("--from") + 1] for line in other if line[0] == "pretrain"]
    assert starts == [str(tmp_path / "other" / "recurring" / "model")]
    for recipe, rate in (("as-is", 0.0), ("query", 5e-5)):
        folder = tmp_path / recipe
        lines = commands_of("clean.sh", folder, tmp_path / "data", "without", RECIPE=recipe)
        finetuned = [parse(name, COMMANDS[name][0], rest) for name, *rest in lines if name == "finetune"]
        assert "towers" not in [line[0] for line in lines]
        assert [settings.out.parts[-3] for settings in finetuned] == [f"without-{recipe}"] * 3
        for settings in finetuned:
            assert isinstance(settings, Finetune)
            assert (settings.model, settings.optim.retriever_lr) == (folder / "warmup" / "model", rate)
    short = commands_of("clean.sh", tmp_path / "short", tmp_path / "data", "recurring", TITLED="0.5")
    (towers,) = (parse(name, COMMANDS[name][0], rest) for name, *rest in short if name == "warmup")
    assert isinstance(towers, Warmup)
    assert (towers.glimpses, towers.titled) == (0.0, 0.5)
    words = {"WORDS": "384", "READER": "0"}
    for part, begun, rate in (("warmup", "begin", 3e-3), ("ict", "warmup/model", 1e-3)):
        summed = commands_of("clean.sh", tmp_path / f"summed-{part}", tmp_path / "data", part, **words)
        (towers,) = (parse(name, COMMANDS[name][0], rest) for name, *rest in summed if name == "warmup")
        assert isinstance(towers, Warmup)
        assert (towers.model, towers.towers_as_reader) == (tmp_path / f"summed-{part}" / begun, False)
        assert (towers.retriever.lr, towers.scale_lr) == (rate, 1e-2)
    made = commands_of("clean.sh", tmp_path / "made", tmp_path / "data", "reading", **words)
    assert [name for name, *_ in made] == ["corpus", "spans", "clozes", "model"]
    model = parse("model", COMMANDS["model"][0], made[-1][1:])
    assert isinstance(model, MakeModel)
    assert (model.towers, model.projection) == ("words", 384)
    told = commands_of("clean.sh", tmp_path / "told", tmp_path / "data", "joint", IN_BATCH="1", RECURRING="1")
    (joint,) = (parse(name, COMMANDS[name][0], rest) for name, *rest in told if name == "pretrain")
    assert isinstance(joint, Pretrain)
    assert (joint.in_batch, joint.recurring) == (1.0, True)
    assert stages["words"] == ["hybrid"]
    for part, after in (
        ("without", "warmup/model"),
        ("with", "with/joint/model"),
        ("frozen-too", "frozen/joint/model"),
    ):
        assert stages[part][-4:] == ["towers", *["finetune"] * 3]
        (towers,) = (settings for name, settings in given[part] if name == "towers")
        assert towers.model == tmp_path / part / after
        read = {(settings.model, settings.hybrid) for name, settings in given[part] if name == "finetune"}
        assert read == {(towers.out / "model", 0)}
    arms = {part: dict(given[part])["pretrain"] for part in ("joint", "plain", "posterior", "frozen")}
    assert [(arm.pointing, arm.optim.retriever_lr, arm.retriever_target) for arm in arms.values()] == [
        (1, 1e-4, "marginal"),
        (0, 1e-4, "marginal"),
        (1, 1e-4, "posterior"),
        (1, 0, "marginal"),
    ]
    assert [arm.refresh.every_steps for arm in arms.values()] == [400, 400, 400, 0]
    for arm in arms.values():
        assert arm.optim.steps * arm.optim.batch >= 2_000_000
        assert not arm.guard, "no question is seen"
        assert arm.hold_out is not None
    # what is measured is where the next part looks for it
    measured = {settings.model for name, settings in given["joint"] if name == "evaluate"}
    assert measured == {tmp_path / "joint" / "with" / "joint" / "model"}


def test_questions_about_tables_have_the_cell_that_answers_them(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    (tables / "data").mkdir(parents=True)
    (tables / "csv").mkdir()
    asked = ["id\tutterance\tcontext\ttargetValue"]
    for number in range(103):  # three more than are kept apart
        rows = [
            f"Heron {number},{number} reeds,Port {number}",
            f"Grebe {number},{number} oats,Cape {number}",
            f"Teal {number},{number} eels,Isle {number}",
        ]
        (tables / "csv" / f"{number:03}.csv").write_text("Bird,Food,Home\n" + "\n".join(rows) + "\n")
        place = f"csv/{number:03}.csv"
        asked += [f"q{number}\twhere does the grebe live?\t{place}\tCape {number}"]
        asked += [f"r{number}\thow many birds are there?\t{place}\t3"]
        asked += [f"s{number}\twho eats?\t{place}\tHeron {number}|Teal {number}"]
    (tables / "data" / "training.tsv").write_text("\n".join(asked) + "\n")
    command = [sys.executable, str(RUNS / "tables.py"), str(tables), str(tmp_path / "data")]
    subprocess.run(command, check=True, capture_output=True)
    parts = ("questions/tables-reading", "small/tables", "small/tables-dev")
    reading, documents, dev = (
        [json.loads(line) for line in (tmp_path / "data" / f"{part}.jsonl").read_text().splitlines()]
        for part in parts
    )
    assert len(documents) == 100
    by_people = [row["question"] for row in reading + dev if row["question"].endswith("live?")]
    assert len(by_people) == 103
    assert not any(row["question"].startswith(("how many", "who eats")) for row in reading + dev)
    assert len(reading) > 3
    for row in reading:
        (cell,) = row["answer"]
        assert row["context"][row["start"] :].startswith(cell)
        assert row["context"].count(cell) == 1


def test_an_encoder_is_renumbered_to_the_wordpieces_of_another(tmp_path: Path) -> None:
    words = ["river", "heron", "##s"]
    numbered = {
        "mpnet": ["<s>", "<pad>", "</s>", "[UNK]", "<mask>", *reversed(words), "more"],
        "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words],
    }
    for name, vocabulary in numbered.items():
        places = {word: number for number, word in enumerate(vocabulary)}
        (tmp_path / name).mkdir()
        Tokenizer(WordPiece(places, unk_token="[UNK]")).save(str(tmp_path / name / "tokenizer.json"))
    rows = torch.arange(9.0)[:, None]
    weights = {"embeddings.word_embeddings.weight": rows, "other": torch.ones(2)}
    save_file(weights, tmp_path / "mpnet" / "model.safetensors")
    (tmp_path / "mpnet" / "config.json").write_text('{"vocab_size": 9, "hidden_size": 1}')
    script = [sys.executable, str(RUNS / "renumber.py")]
    folders = [str(tmp_path / name) for name in ("mpnet", "bert", "out")]
    subprocess.run([*script, *folders], check=True)
    renumbered = load_file(tmp_path / "out" / "model.safetensors")
    assert renumbered["embeddings.word_embeddings.weight"][:, 0].tolist() == [1, 3, 0, 2, 4, 7, 6, 5]
    assert renumbered["other"].tolist() == [1, 1]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == {"vocab_size": 8, "hidden_size": 1, "pad_token_id": 0}
    back = subprocess.run(
        [*script, folders[1], folders[0], str(tmp_path / "back")], capture_output=True, text=True
    )
    assert "does not know 5 wordpieces" in back.stderr


TAUGHT = ["own", "bm25", "both", "own-fixed", "own-more", "own-again", "ict", "recurring"]
TAUGHT += ["tune", "tune-batch", "tune-posterior", "tune-perplexity", "tune-fixed"]


@pytest.mark.parametrize("arm", ["start", *TAUGHT])
def test_ways_to_teach_a_retriever_are_commands_that_exist(arm: str, data: Path, tmp_path: Path) -> None:
    asked = commands_of("towers.sh", tmp_path / "base", data, str(tmp_path / "model"), arm)
    for name, *arguments in asked:
        parse(name, COMMANDS[name][0], arguments)
    assert [name for name, *_ in asked[-2:]] == ["evaluate", "evaluate"]
    assert len(asked) == 2 + (arm in TAUGHT)


@pytest.mark.parametrize("script", ["demo.sh", "world.sh"])
def test_a_folder_that_was_named_is_never_removed(tmp_path: Path, script: str) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    done = subprocess.run(["bash", str(RUNS / script), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert (tmp_path / "letters.txt").exists()


def test_what_joint_training_is_worth_is_measured_by_commands_that_exist(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "questions" / "squad-reading.jsonl").touch()
    asked = {
        part: commands_of("joint.sh", tmp_path / part, tmp_path / "data", part)
        for part in ("without", "joint", "with")
    }
    given = {
        part: [(name, parse(name, COMMANDS[name][0], arguments)) for name, *arguments in lines]
        for part, lines in asked.items()
    }
    assert [name for name, _ in given["joint"]] == ["pretrain"]
    joint = given["joint"][0][1]
    assert (joint.model.name, joint.k, joint.pointing, joint.search_with) == ("mini", 3, 1, "index")
    for part, before in (("without", joint.model), ("with", tmp_path / "with/with/joint/model")):
        stages = [(name, settings) for name, settings in given[part] if name != "evaluate"]
        assert [name for name, _ in stages] == ["towers", "hybrid", *["finetune"] * 3]
        assert stages[0][1].model == before
        reading = [settings for name, settings in stages if name == "finetune"]
        assert {settings.model for settings in reading} == {tmp_path / part / part / "plain-0" / "hybrid"}
        assert {settings.loop.seed for settings in reading} == {0, 1, 2}
        # both dev sets as they are found at the start; then those and the small documents, three times
        assert len(given[part]) == len(stages) + 2 + 3 * (2 + 1)
    begin = tmp_path / "retriever/retriever/begin"  # what runs/splice.py makes
    begin.mkdir(parents=True)
    lines = commands_of("joint.sh", tmp_path / "retriever", tmp_path / "data", "retriever")
    reading = [parse(name, COMMANDS[name][0], arguments) for name, *arguments in lines if name == "finetune"]
    assert [settings.model for settings in reading] == [begin] * 3
    assert {settings.loop.seed for settings in reading} == {0, 1, 2}


def test_questions_about_everyday_papers_have_one_answer_each(tmp_path: Path) -> None:
    command = [sys.executable, str(RUNS / "everyday.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    parts = ("questions/everyday-reading", "small/everyday", "small/everyday-dev")
    reading, documents, dev = (
        [json.loads(line) for line in (tmp_path / f"{part}.jsonl").read_text("utf-8").splitlines()]
        for part in parts
    )
    assert len(reading) >= 10_000
    for row in reading:
        (answer,) = row["answer"]
        assert row["context"][row["start"] :].startswith(answer)
        assert len(re.findall(rf"(?<!\w){re.escape(answer)}(?!\w)", row["context"])) == 1
        assert row["title"]
    texts = [document["text"] for document in documents]
    assert all(any(row["answer"][0] in text for text in texts) for row in dev)
    # kept apart: no paper, and no person of one
    assert not {text[:80] for text in texts} & {row["context"][:80] for row in reading}
    assert not any("Lindholm" in row["context"] for row in reading)
    assert any("Lindholm" in text for text in texts)


def test_papers_hold_the_answers_of_their_questions() -> None:
    folders = sorted(questions.parent for questions in (RUNS / "papers").glob("*/*/questions.jsonl"))
    assert {folder.parent.name for folder in folders} == {"learn", "choose", "calibrate"}
    asked: set[str] = set()
    for folder in folders:
        texts = {file.name: file.read_text("utf-8") for file in (folder / "docs").iterdir()}
        for row in map(json.loads, (folder / "questions.jsonl").read_text("utf-8").splitlines()):
            assert row["answer"][0] in row["sentence"], row
            assert row["sentence"] in texts[row["file"]], row
            assert row["question"] not in asked, row
            asked.add(row["question"])
        nothing = [
            json.loads(line) for line in (folder / "unanswerable.jsonl").read_text("utf-8").splitlines()
        ]
        assert len(nothing) >= 40
        assert {row["file"] for row in nothing} <= texts.keys()
        assert not asked & {row["question"] for row in nothing}


def test_questions_about_papers_name_the_place_of_their_answer(tmp_path: Path) -> None:
    run("papers.py", tmp_path)
    made = sorted((tmp_path / "questions").glob("*-reading.jsonl"))
    rows = [json.loads(line) for file in made for line in file.read_text("utf-8").splitlines()]
    files = sorted((RUNS / "papers" / "learn").glob("*/questions.jsonl"))
    assert [f"{file.parent.name}-reading.jsonl" for file in files] == [file.name for file in made]
    assert len(rows) > 0.99 * sum(len(file.read_text("utf-8").splitlines()) for file in files)
    for row in rows:
        assert row["context"][row["start"] :].startswith(row["answer"][0])
    # the same cell stands in another row, or form: the row that is asked about counts
    (pepper,) = (
        row for row in rows if row["question"] == "What is one pepper cube worth at the end of Saltmarket?"
    )
    assert pepper["context"][: pepper["start"]].endswith("Goods: Pepper; Each cube is worth: ")


def test_papers_are_learned_in_rounds_among_what_was_learned_before(tmp_path: Path) -> None:
    folders = [folder.name for folder in sorted((RUNS / "papers" / "learn").iterdir())]
    data = tmp_path / "data"
    (data / "questions").mkdir(parents=True)
    for name in (*folders, "everyday", "tables", "squad", "nq"):
        lines = "".join(f'{{"question": "{name} {number}"}}\n' for number in range(200))
        (data / "questions" / f"{name}-reading.jsonl").write_text(lines)
    base = tmp_path / "base"
    asked = commands_of("papers.sh", base, data, MODEL="mini")
    assert [words[0] for words in asked] == ["corpus", "finetune"] * 3
    given = [parse(name, COMMANDS[name][0], arguments) for name, *arguments in asked]
    corpora, rounds = given[::2], given[1::2]
    taken = [{source.parent.name for source in settings.sources} for settings in corpora]
    assert taken[0] < taken[1] < taken[2] == set(folders)
    learned = [
        {file.name.removesuffix("-reading.jsonl") for file in settings.questions} for settings in rounds
    ]
    before = {"everyday.jsonl", "tables.jsonl", "squad.jsonl", "nq.jsonl"}
    again_too = before | {"papers.jsonl"}
    assert learned == [
        taken[0] | before,
        (taken[1] - taken[0]) | again_too,
        (taken[2] - taken[1]) | again_too,
    ]
    assert rounds[0].model.name == "mini"
    assert [settings.model for settings in rounds[1:]] == [
        base / f"{name}/model" for name in ("first", "second")
    ]
    assert len((base / "second-before" / "papers.jsonl").read_text().splitlines()) == 320
    assert len((base / "third-before" / "papers.jsonl").read_text().splitlines()) == 400
    alone = commands_of("papers.sh", tmp_path / "alone", data, MODEL=str(base), ROUNDS="third")
    assert [words[0] for words in alone] == ["corpus", "finetune"]
    assert parse("finetune", COMMANDS["finetune"][0], alone[1][1:]).model == base
    again = (base / "second-before" / "squad.jsonl").read_text()
    assert len(set(again.splitlines())) == 130
    commands_of("papers.sh", tmp_path / "again", data)
    assert (tmp_path / "again" / "second-before" / "squad.jsonl").read_text() == again


def test_the_mean_of_models_is_that_of_their_weights(knowledge: Corpus, tmp_path: Path) -> None:
    models = [
        create_model(corpus=knowledge.folder, out=tmp_path / f"{seed}", **TINY_MODEL | {"seed": seed})
        for seed in range(3)
    ]
    places = [tmp_path / f"{seed}" for seed in range(3)]
    run("average.py", tmp_path / "mean", *places)
    run("average.py", tmp_path / "same", *places[:1] * 3)
    made, same = (Realm.from_pretrained(tmp_path / name) for name in ("mean", "same"))
    for mean, again, *weights in zip(*(model.parameters() for model in (made, same, *models)), strict=True):
        torch.testing.assert_close(mean, torch.stack(weights).mean(0))
        assert torch.equal(again, weights[0]), "not a bit of what is the same changes"


def test_a_spliced_model_finds_as_one_and_reads_as_the_other(tmp_path: Path, knowledge: Corpus) -> None:
    finds, reads = (
        create_model(corpus=knowledge.folder, out=tmp_path / f"{seed}", **TINY_MODEL | {"seed": seed})
        for seed in range(2)
    )
    run("splice.py", tmp_path / "spliced", tmp_path / "0", tmp_path / "1")
    made = Realm.from_pretrained(tmp_path / "spliced")
    for part, given in (("query", finds), ("document", finds), ("reader", reads)):
        weights = getattr(given, part).state_dict()
        assert weights.keys() == getattr(made, part).state_dict().keys()
        for name, tensor in getattr(made, part).state_dict().items():
            assert torch.equal(tensor, weights[name]), (part, name)


def test_a_reader_goes_part_of_the_way_and_the_scale_is_set(tmp_path: Path, knowledge: Corpus) -> None:
    both = [
        create_model(corpus=knowledge.folder, out=tmp_path / f"{seed}", **TINY_MODEL | {"seed": seed})
        for seed in range(2)
    ]
    run("splice.py", tmp_path / "spliced", tmp_path / "0", tmp_path / "1", "--share", "0.25", "--scale", "3")
    made = Realm.from_pretrained(tmp_path / "spliced")
    assert made.query.log_scale is not None
    assert made.query.log_scale.exp().item() == pytest.approx(3)
    of_first, of_second = (model.reader.state_dict() for model in both)
    for name, tensor in made.reader.state_dict().items():
        torch.testing.assert_close(tensor, 0.25 * of_first[name] + 0.75 * of_second[name])


def test_readers_of_other_shapes_are_not_spliced(tmp_path: Path, knowledge: Corpus) -> None:
    create_model(corpus=knowledge.folder, out=tmp_path / "small", **TINY_MODEL)
    create_model(corpus=knowledge.folder, out=tmp_path / "large", **TINY_MODEL | {"layers": 3})
    command = [
        sys.executable,
        str(RUNS / "splice.py"),
        *(str(tmp_path / n) for n in ("out", "small", "large")),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "different shapes" in done.stderr
    assert not (tmp_path / "out").exists()
