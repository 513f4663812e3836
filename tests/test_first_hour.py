"""Every error a new user can make in the first hour: one message that says what to do next, exit code 2,
nothing left behind."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from realmlm.cli import main
from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.train.objectives.joint import JointPretraining
from realmlm.train.run import Run
from tests.calls import build_corpus

NOTE = (
    "The ferry of Almeth crosses the sound at noon. It carries wool and letters. The ferryman lives in "
    "Dorwick."
)


@pytest.fixture(scope="module")
def desk(
    tmp_path_factory: pytest.TempPathFactory, world: Path, knowledge: Corpus, tiny_model_folder: Path
) -> Path:
    """What lies about in the first hour: notes, files that are no notes, a corpus, a model, and some that do
    not belong together."""
    folder = tmp_path_factory.mktemp("desk")
    for name, target in (("world", world), ("corpus", knowledge.folder), ("model", tiny_model_folder)):
        (folder / name).symlink_to(target, target_is_directory=True)
    for name in ("notes", "empty", "papers"):
        (folder / name).mkdir()
    (folder / "notes" / "ferry.txt").write_text(NOTE)
    (folder / "papers" / "thesis.pages").write_bytes(b"%PDF-1.7 \xe2\xe3")
    (folder / "letter.pages").write_bytes(b"PK\x03\x04")
    (folder / "photo.txt").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xd8" * 9)
    (folder / "zeros.txt").write_bytes(bytes(64))
    (folder / "broken.jsonl").write_text('{"title": "a", "text": "A whole line."}\n{"title": \n')
    (folder / "nothing.txt").write_text("\n\n")
    (folder / "prose.txt").write_text("Questions are not written like this.\n")
    (folder / "elsewhere.jsonl").write_text(
        '{"question": "Who painted the ceiling?", "answer": ["Zyxomma Petiolatum"]}\n'
    )
    (folder / "own.jsonl").write_text('{"question": "When does it cross?", "answer": ["noon"]}\n')
    build_corpus(
        [folder / "notes"],
        folder / "bare",
        tokenizer=str(world / "tokenizer.json"),
        max_wordpieces=64,
        workers=1,
    )
    (folder / "copies.jsonl").write_text(
        "".join(f'{{"title": "Copy {number}", "text": "{NOTE}"}}\n' for number in range(20))
    )
    copies = build_corpus(
        [folder / "copies.jsonl"],
        folder / "copies",
        tokenizer=str(world / "tokenizer.json"),
        max_wordpieces=64,
        workers=1,
    )
    mark_spans(copies, PhraseTagger(["Almeth"]), workers=1)
    (folder / "held.jsonl").write_text(
        json.dumps({"question": NOTE.replace("Almeth", "[MASK]"), "answer": ["Almeth"]})
    )
    build_corpus([folder / "notes"], folder / "other", train_tokenizer=200, max_wordpieces=64, workers=1)
    build_corpus([folder / "notes"], folder / "long", tokenizer=str(world / "tokenizer.json"), workers=1)
    return folder


def failing(command: str, capsys: pytest.CaptureFixture[str], **places: Path) -> str:
    """What a command says that must fail as a user's error does: one message, exit code 2, no traceback."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(shlex.split(command.format(**places)))
    said = capsys.readouterr().err
    assert end.value.code == 2, said
    assert "Traceback" not in said
    return said


COPIES = (
    r"for each sentence, but up to 20 of the 20 passages of .*/copies have the same words, .*; remove copies"
)
HELD_OUT = r"--hold-out leaves no sentence of .*/copies to mask: copies of held-out passages are held out too; hold out fewer"
WITHOUT_RUN = [
    ("crawl", r"no command 'crawl'; choose from: corpus, edit, passages, spans"),
    ("corpus {desk}/notes --train-tokenizer 300", r"(?s)Missing.*--out PATH"),
    (
        "corpus {desk}/notes --out {out} --train-tokenizer 300 --colour red",
        r"(?s)Unrecognized options.*--colour",
    ),
    (
        "corpus {desk}/notes --out {out} --train-tokenizer many",
        r"(?s)invalid value.*--train-tokenizer|--train-tokenizer.*many",
    ),
    ("corpus --out {out} --train-tokenizer 300", r"name at least one file or folder: realmlm corpus notes/"),
    ("corpus {desk}/gone --out {out} --train-tokenizer 300", r"desk\d*/gone does not exist; correct it, or"),
    (
        "corpus {desk}/empty --out {out} --train-tokenizer 300",
        r"empty holds no file that can be read; readable kinds: \.txt",
    ),
    (
        "corpus {desk}/papers --out {out} --train-tokenizer 300",
        r"papers holds no file that can be read; readable kinds: \.txt",
    ),
    (
        "corpus {desk}/letter.pages --out {out} --train-tokenizer 300",
        r"letter\.pages is of a kind that cannot be read; readable kinds: \.txt",
    ),
    (
        "corpus {desk}/photo.txt --out {out} --train-tokenizer 300",
        r"photo\.txt, line 1: byte 0x89 is not UTF-8; it does not look like text; if it is, convert the file",
    ),
    (
        "corpus {desk}/zeros.txt --out {out} --tokenizer {desk}/world",
        r"zeros\.txt: holds NUL bytes: it is not text",
    ),
    (
        "corpus {desk}/nothing.txt --out {out} --train-tokenizer 300",
        r"error: there is no text to train a tokenizer on; name files or folders with text in them\n",
    ),
    (
        "corpus {desk}/broken.jsonl --out {out} --train-tokenizer 300",
        r"broken\.jsonl, line 2: is not JSON .* --skip-bad",
    ),
    (
        "corpus {desk}/photo.txt --skip-bad --out {out} --train-tokenizer 300",
        r"no text to train a tokenizer on; name files or folders",
    ),
    ("corpus {desk}/notes --out {out}", r"either --tokenizer FILE_OR_NAME or --train-tokenizer"),
    (
        "corpus {desk}/notes --out {out} --tokenizer x --train-tokenizer 300",
        r"either --tokenizer FILE_OR_NAME or --train-tokenizer",
    ),
    ("corpus {desk}/notes --out {out} --train-tokenizer 3", r"train-tokenizer must be 100 or more, not 3"),
    (
        "corpus {desk}/notes --out {out} --tokenizer {desk}/no/such.json",
        r"no tokenizer at '.*/no/such\.json': .* --train-tokenizer 16000",
    ),
    (
        "corpus {desk}/notes --out {out} --tokenizer {desk}/prose.txt",
        r"prose\.txt is no list of BERT's wordpieces.*name another",
    ),
    (
        "corpus {desk}/notes --out {out} --train-tokenizer 300 --max-wordpieces 2",
        r"max-wordpieces must be between 8 and 4096",
    ),
    (
        "corpus {desk}/notes --out {desk}/notes --train-tokenizer 300",
        r"notes already exists; choose another place\n",
    ),
    (
        "corpus {desk}/notes --out {desk}/prose.txt/out --train-tokenizer 300",
        r"prose\.txt.*; check that the path exists",
    ),
    ("edit {desk}/bare", r"nothing to do: give --add FILE, --remove ID, or --replace ID --text TEXT"),
    (
        "edit {desk}/bare --remove 0 --title Heron",
        r"--title is for a replaced passage: give --replace ID --text TEXT too",
    ),
    ("edit {desk}/bare --replace 0", r"--replace ID and --text TEXT go together"),
    (
        "edit {desk}/bare --remove 999",
        r"no passage 999 in .*bare: ids start at 0, .*; show them: realmlm passages .*/bare\n",
    ),
    ("edit {desk}/bare --replace 0 --text ' '", r"--text is empty; to take the passage away: --remove 0"),
    (
        "edit {desk}/bare --add {desk}/letter.pages",
        r"letter\.pages is of a kind that cannot be read.*; the corpus is unchanged",
    ),
    (
        "spans {desk}/notes",
        r"no corpus in .*/notes: it has no manifest\.json; documents are searched with --docs .*/notes,"
        r" or made into a corpus: realmlm corpus .*/notes --out CORPUS\n",
    ),
    (
        "ask Who? --corpus {desk}/prose.txt",
        r"no corpus in .*/prose\.txt; documents are searched with --docs .*/prose\.txt, or",
    ),
    ("spans {desk}/bare --tagger phrases", r"--tagger phrases and --phrases FILE go together"),
    (
        "spans {desk}/bare --tagger phrases --phrases {desk}/gone.txt",
        r"gone\.txt: no such file; check the path",
    ),
    (
        "spans {desk}/bare --tagger phrases --phrases {desk}/nothing.txt",
        r"the list of phrases is empty; give one phrase per line",
    ),
    (
        "model --corpus {desk}/gone --out {out}",
        r"no corpus in .*/gone; make one: realmlm corpus notes/ --out .*/gone",
    ),
    (
        "model --corpus {desk}/model --out {out}",
        r"/model is of kind 'model', but 'corpus' is needed; name another folder",
    ),
    (
        "model --corpus {desk}/bare --out {out} --hidden 30 --heads 4",
        r"hidden 30 is not a multiple of heads 4",
    ),
    (
        "model --corpus {desk}/bare --out {out} --max-query 10",
        r"max-query \(10\) must be more than max-answer \(10\)",
    ),
    ("model --corpus {desk}/bare --out {out} --heads 0", r"heads must be 1 or more, not 0"),
    (
        "model --corpus {desk}/bare --out {out} --family blancmange",
        r"encoder of the family 'blancmange' .*; try modernbert, bert",
    ),
    (
        "model --corpus {desk}/bare --out {out} --family bart",
        r"encoder of the family 'bart' \(it has a decoder as well\); try modernbert",
    ),
    (
        "model --corpus {desk}/bare --out {out} --family gpt2",
        r"encoder of the family 'gpt2' \(it is no masked language model",
    ),
    (
        "model --corpus {desk}/bare --out {out} --checkpoint {desk}/no/bert",
        r"no encoder to load at .*a folder with config\.json",
    ),
    (
        "index --model {desk}/gone --corpus {desk}/corpus --out {out}",
        r"no model in .*/gone; mini comes with realmlm; make one: realmlm model --corpus",
    ),
    (
        "ask Who leads the canteen? --docs {desk}/notes",
        r'put the question in quotes: realmlm ask "Who leads the canteen\?" …',
    ),
    (
        "ask 'Who leads the canteen?' {desk}/notes",
        r"documents are named with --docs: realmlm ask 'Who leads the canteen\?' --docs .*/notes",
    ),
    (
        "index --model {desk}/corpus --corpus {desk}/corpus --out {out}",
        r"/corpus is of kind 'corpus', but 'model' is needed",
    ),
    (
        "index --model {desk}/model --corpus {desk}/other --out {out}",
        r"different tokenizers; make the corpus again with --tokenizer .*/model",
    ),
    (
        "index --model {desk}/model --corpus {desk}/long --out {out}",
        r"make the corpus again with --max-wordpieces 64",
    ),
    (
        "index --model {desk}/model --corpus {desk}/corpus --out {out} --device cuda",
        r"torch finds no GPU here; use cpu, or install",
    ),
    (
        "index --model {desk}/model --corpus {desk}/corpus --out {out} --device toaster",
        r"no device 'toaster'; use cpu, cuda or cuda:N",
    ),
    (
        "index --model {desk}/model --corpus {desk}/corpus --out {out} --device mps",
        r"device 'mps' is not supported; use cpu, cuda",
    ),
    (
        "ask --model {desk}/model --corpus {desk}/bare",
        r'ask one thing, before any flags: realmlm ask "your question"',
    ),
    (
        "ask Who? --fill [MASK] --model {desk}/model --corpus {desk}/bare",
        r'ask one thing, before any flags: realmlm ask "your question"',
    ),
    (
        "ask '???' --read 1 --model {desk}/model --corpus {desk}/bare",
        r"the question is empty; ask with words",
    ),
    ("search '…' --model {desk}/model --corpus {desk}/bare", r"the question is empty; ask with words"),
    ("ask Who? --docs ''", r"error: '' names no file or folder; the working folder is \.\n"),
    (
        "ask 'caf\udce9?' --model {desk}/model --corpus {desk}/bare --read 1",
        r"'caf.*udce9\?' is not UTF-8 \(character 4\); type it again in a terminal that is set to UTF-8",
    ),
    ("search '\udce9?' --model {desk}/model --corpus {desk}/bare", r"udce9\?' is not UTF-8 \(character 1\)"),
    (
        "ask --fill '\udce9 [MASK]' --model {desk}/model --corpus {desk}/bare --read 1",
        r"udce9 \[MASK\]' is not UTF-8 \(character 1\)",
    ),
    ("ask '' --read 1 --model {desk}/model --corpus {desk}/bare", r"the question is empty; ask with words"),
    (
        "ask --fill 'No gap' --read 1 --model {desk}/model --corpus {desk}/bare",
        r'"No gap" has no \[MASK\] among its first 32 .*; write one',
    ),
    (
        "ask Who? --read 0 --model {desk}/model --corpus {desk}/bare",
        r"cannot read 0 passages; choose --read 1 or more",
    ),
    (
        "evaluate --model {desk}/model --corpus {desk}/bare --questions {desk}/own.jsonl",
        r"cannot read 5 passages: .*; lower --read",
    ),
    (
        "evaluate --model {desk}/model --corpus {desk}/bare --questions {desk}/own.jsonl --read -1",
        r"read must be 0 or more, not -1",
    ),
    (
        "evaluate --model {desk}/model --corpus {desk}/bare --questions {desk}/gone --read 1",
        r"gone: no such question file; check the path",
    ),
    (
        "evaluate --model {desk}/model --corpus {desk}/bare --questions {desk}/prose.txt --read 1",
        r"(?s)prose\.txt:1: unknown format; accepted",
    ),
    (
        "evaluate --model {desk}/model --corpus {desk}/bare --questions {desk}/own.jsonl --limit 0",
        r"limit must be 1 or more, not 0",
    ),
    (
        "align --model {desk}/model --corpus {desk}/corpus --out {out} --limit 0",
        r"limit must be 1 or more, not 0",
    ),
    (
        "align --model {desk}/model --corpus {desk}/corpus --out {out} --limit -5",
        r"limit must be 1 or more, not -5",
    ),
    (
        "align --model {desk}/model --corpus {desk}/corpus --out {out} --k 301",
        r"k = 301 needs at least 301 passages, .* has 300; lower",
    ),
    (
        "align --model {desk}/model --corpus {desk}/copies --out {out} --k 3",
        r"k = 3 needs 2 other passages " + COPIES,
    ),
    ("serve --docs {desk}/notes --token S3", r"a token must have at least 8 characters"),
    ("batch {desk}/gone", r"/gone: no such file; check the path"),
    (
        "world --out {desk}/notes --kind tiny",
        r"notes already exists; choose another place\n",
    ),
    ("world --out {out} --kind tiny --seed -1", r"seed must be 0 or more, not -1"),
    ("pretrain --resume", r"--resume needs the folder of the run: realmlm pretrain --resume RUN"),
    (
        "pretrain --resume {desk}/notes",
        r"no run to resume in .*/notes: .*run\.json cannot be read .*; give the --out of an earlier run",
    ),
    ("finetune --resume={desk}/gone", r"no run to resume in .*/gone: .*; give the --out of an earlier run"),
]

JOINT = "pretrain --model {desk}/model --corpus {desk}/corpus --out {out} --optim.steps 1 --optim.batch 2 "
TUNE = "finetune --model {desk}/model --corpus {desk}/corpus --out {out} --optim.steps 1 --optim.batch 2 "
WITH_RUN = [
    (
        "warmup --model {desk}/model --corpus {desk}/bare --out {out}",
        r"no spans in .*/bare/spans; mark them: realmlm spans .*/bare",
    ),
    (
        "warmup --model {desk}/model --corpus {desk}/bare --masking uniform --reader.steps 0 --out {out}",
        r"fewer than two passages .*; add documents, or skip it: --retriever\.steps 0",
    ),
    (
        "warmup --model {desk}/model --corpus {desk}/corpus --out {out} --retriever.batch 4 "
        "--retriever.accumulate 4",
        r"retriever\.batch 4 in 4 parts leaves no others; lower --retriever\.accumulate or raise --retriever\.batch",
    ),
    (
        "warmup --model {desk}/model --corpus {desk}/corpus --out {out} --pointing -1",
        r"pointing must be 0 or more, not -1",
    ),
    (JOINT + "--text {desk}/bare", r"no spans in .*/bare/spans; mark them: realmlm spans .*/bare"),
    (JOINT + "--k 1", r"k counts the null document and at least one passage: 2 or more, not 1"),
    (JOINT + "--k 999", r"k = 999 needs at least 999 passages, .* has 300; lower --k or use a larger corpus"),
    (JOINT + "--corpus {desk}/copies --k 4", r"k = 4 needs 3 other passages " + COPIES),
    (JOINT + "--k 3 --text {desk}/copies --hold-out {desk}/held.jsonl", HELD_OUT),
    ("warmup --model {desk}/model --corpus {desk}/copies --out {out} --hold-out {desk}/held.jsonl", HELD_OUT),
    (
        "warmup --model {desk}/model --corpus {desk}/copies --out {out} --hold-out {desk}/held.jsonl "
        "--reader.steps 0",
        r"fewer than two passages of several sentences that --hold-out leaves: .* --retriever\.steps 0",
    ),
    (JOINT + "--optim.batch 5 --optim.accumulate 2", r"batch 5 cannot be cut into 2 equal parts"),
    (
        JOINT + "--optim.retriever-lr -1",
        r"retriever-lr must be 0 \(the retriever does not change\) or more, not -1",
    ),
    (JOINT + "--optim.weight-decay -1", r"weight-decay must be 0 or more, not -1"),
    (
        JOINT + "--loop.device cuda",
        r"device 'cuda' asked for, but torch finds no GPU here; use cpu, or install torch with CUDA",
    ),
    (JOINT + "--loop.device gpu", r"no device 'gpu'; use cpu, cuda or cuda:N"),
    (JOINT + "--loop.log-every 0", r"loop\.log-every must be 1 or more, not 0"),
    (JOINT + "--loop.seed -4", r"loop\.seed must be 0 or more, not -4"),
    (JOINT + "--text {desk}/other", r"different tokenizers; make the corpus again with --tokenizer .*/model"),
    (
        JOINT + "--text {desk}/model",
        r"/model is of kind 'model', but 'corpus' is needed; name another folder",
    ),
    (JOINT + "--probe {desk}/gone.jsonl", r"gone\.jsonl: no such question file; check the path"),
    (TUNE + "--questions {desk}/gone.jsonl", r"gone\.jsonl: no such question file; check the path"),
    (TUNE + "--questions {desk}/prose.txt", r"prose\.txt:1: unknown format; accepted formats"),
    (
        TUNE + "--questions {desk}/elsewhere.jsonl",
        r"none of the answers occurs in the corpus: .*; give questions about these documents",
    ),
    (
        TUNE + "--questions {desk}/own.jsonl --read 999 --candidates 999",
        r"cannot read 999 passages: .* has 300; lower --read",
    ),
    (TUNE + "--questions {desk}/own.jsonl --closed-book -1", r"closed-book must be 0 or more, not -1"),
    (
        TUNE + "--questions {desk}/own.jsonl --read 9 --candidates 3",
        r"read \(9\) must be between 1 and candidates \(3\)",
    ),
]


def check(
    command: str,
    says: str,
    desk: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = sorted(path.name for path in desk.iterdir())
    said = failing(command, capsys, desk=desk, out=out)
    assert re.search(says, said), said
    assert sorted(path.name for path in desk.iterdir()) == before


@pytest.mark.parametrize(("command", "says"), WITHOUT_RUN, ids=[command for command, _ in WITHOUT_RUN])
def test_what_to_do_next(
    command: str,
    says: str,
    desk: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(command, says, desk, tmp_path / "out", capsys, monkeypatch)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "says"), WITH_RUN, ids=[command for command, _ in WITH_RUN])
def test_what_to_do_next_in_training(
    command: str,
    says: str,
    desk: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(command, says, desk, tmp_path / "out", capsys, monkeypatch)


def test_a_run_that_could_not_begin_leaves_nothing_in_the_way(
    desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(JOINT + "--k 999", capsys, desk=desk, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def run(command: str, **places: Path) -> None:
    main(shlex.split(command.format(**places)))


QUICK = "--k 3 --refresh.no-process --loop.threads 1 --loop.device cpu"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["gpu", "cpu"],
)
def test_out_of_memory(
    error: Exception,
    desk: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(JointPretraining, "loss", fail)
    said = failing(JOINT + QUICK, capsys, desk=desk, out=tmp_path / "out")
    assert re.search(r"out of memory.*raise .*accumulate.* lower .*batch", said), said


def test_other_runtime_errors_keep_their_traceback(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(JointPretraining, "loss", fail)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        run(JOINT + QUICK, desk=desk, out=tmp_path / "out")


def test_runs_in_the_way(desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    run(JOINT + QUICK, desk=desk, out=out)
    said = failing(JOINT + QUICK + " --optim.lr 1", capsys, desk=desk, out=out)
    assert re.search(
        r"holds another run; continue that one with --resume .*/out, or choose another --out", said
    )
    said = failing("finetune --resume {out}", capsys, desk=desk, out=out)
    assert re.search(r"is a run of another command; resume it with: realmlm pretrain --resume .*/out", said)
    said = failing("ask Who? --model {out} --corpus {desk}/corpus", capsys, desk=desk, out=out)
    assert re.search(r"no model in .*/out: it has no manifest\.json; did you mean .*/out/model\?", said)
    said = failing(JOINT, capsys, desk=desk, out=desk / "notes")
    assert re.search(r"notes exists and is not a run; choose another --out", said)


def test_an_index_of_another_kind_in_the_way(
    desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "index --model {desk}/model --corpus {desk}/bare --out {out} --device cpu "
    run(command, desk=desk, out=tmp_path / "out")
    said = failing(command + "--kind ivf", capsys, desk=desk, out=tmp_path / "out")
    assert re.search(
        r"/out holds an index of the kind exact, not ivf; choose another --out, or remove it first", said
    )


def test_a_part_of_a_warm_up_is_resumed_as_a_whole(
    desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "warm" / "reader"
    Run.begin(part, stage="warmup-reader", settings=None).close()
    said = failing("warmup --resume {out}", capsys, out=part)
    assert re.search(r"is part of a run; resume the whole run: realmlm warmup --resume .*/warm\n", said)


def test_two_trainers_in_one_folder(desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    run(JOINT + QUICK, desk=desk, out=out)
    held = Run(out)
    said = failing("pretrain --resume {out}", capsys, out=out)
    assert re.search(
        r"another process is training in .*/out; wait for it, stop it, or choose another --out", said
    )
    held.close()
    run("pretrain --resume {out}", out=out)
