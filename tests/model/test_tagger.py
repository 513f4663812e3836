"""The learned tagger: its file format, its spans, and that it learns."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from realmlm.cli import main
from realmlm.corpus.spans import Spans
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput
from realmlm.model.tagger import Labelled, LearnedTagger, entities, read_labelled, score, train_tagger
from realmlm.settings import TrainTagger
from tests.calls import build_corpus

NAMES = [
    f"{a}{b}{c}" for a in ("Or", "Ta", "Zab", "Kel") for b in ("va", "re", "ri", "mo") for c in ("ne", "sten")
] + [
    "Dunfolk",
    "Wistern",
]
FRAMES = [
    "{} lies by the sea",
    "we went to {} in 1731",
    "the people of {} paint",
    "nobody knows {} well",
    "in {} it rains",
]


def marked_file(file: Path, names: list[str]) -> Path:
    blocks = []
    for name in names:
        for frame in FRAMES:
            words = frame.format(name).split()
            blocks.append("\n".join(f"en:{word}\t{'B-LOC' if word == name else 'O'}" for word in words))
    file.write_text("\n\n".join(blocks) + "\n")
    return file


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Trained on some names, measured on two others."""
    folder = tmp_path_factory.mktemp("tagger")
    pieces = Wordpieces.train([frame.format(name) for frame in FRAMES for name in NAMES] * 4, 200)
    torch.manual_seed(0)
    body = BertModel(
        BertConfig(
            vocab_size=len(pieces),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            initializer_range=0.18,
        ),
        add_pooling_layer=False,
    )
    body.save_pretrained(folder / "encoder")
    pieces.save(folder / "encoder" / "tokenizer.json")
    train = marked_file(folder / "train.txt", NAMES[:-2])
    test = marked_file(folder / "test.txt", NAMES[-2:])
    how = {
        "checkpoint": str(folder / "encoder"),
        "tokenizer": None,
        "epochs": 12,
        "batch": 8,
        "lr": 3e-3,
        "seed": 0,
        "device": "cpu",
    }
    f1 = train_tagger(TrainTagger(train=train, test=test, out=folder / "tagger", **how))  # type: ignore[arg-type]
    return folder / "tagger", f1


def test_it_finds_names_it_has_not_seen(tagger: tuple[Path, float]) -> None:
    folder, f1 = tagger
    assert f1 > 0.7
    learned = LearnedTagger(folder, device="cpu")
    (mentions,) = learned.tag(["we went to Dunfolk in 1731"])
    text = "we went to Dunfolk in 1731"
    assert [(text[m.start : m.end], m.kind) for m in mentions] == [("Dunfolk", "name"), ("1731", "date")]
    assert learned.tag([""]) == [[]]
    assert learned.tag(["Dunfolk"]) == [[]]  # nothing would be left to predict it from
    many = ["we went to Dunfolk in 1731", "x " * 400, "in Wistern it rains"]
    assert learned.tag(many) == [learned.tag([sentence])[0] for sentence in many]


def test_a_corpus_is_marked_with_it(tagger: tuple[Path, float], tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("The people of Wistern paint. We went to Dunfolk in 1731.")
    corpus = build_corpus([tmp_path / "note.txt"], tmp_path / "corpus", tokenizer=str(tagger[0]), workers=1)
    main(["spans", str(corpus.folder), "--tagger", "learned", "--learned", str(tagger[0]), "--workers", "1"])
    spans = Spans.open(corpus)
    assert len(spans) == 2
    with pytest.raises(SystemExit):
        main(["spans", str(corpus.folder), "--tagger", "learned"])


def test_names_from_labels() -> None:
    labels = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-ORG", "I-ORG", "O"]
    assert list(entities(labels)) == [(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "LOC"), (5, 7, "ORG")]
    assert list(entities([])) == []


def test_f1_counts_whole_names_of_the_right_kind() -> None:
    truth = [["B-PER", "I-PER", "O", "B-LOC"]]
    assert score(truth, truth) == 1.0
    assert score(truth, [["B-PER", "O", "O", "B-LOC"]]) == pytest.approx(0.5)
    assert score(truth, [["B-PER", "I-PER", "O", "B-ORG"]]) == pytest.approx(0.5)
    assert score([["O"]], [["O"]]) == 0.0


def test_the_format(tmp_path: Path) -> None:
    file = tmp_path / "marked.txt"
    file.write_text("-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nen:Bonn B-LOC\n")
    assert read_labelled(file) == [
        Labelled(("EU", "rejects"), ("B-ORG", "O")),
        Labelled(("Bonn",), ("B-LOC",)),
    ]
    for text in ("", "word\n", "word X-LOC\n"):
        file.write_text(text)
        with pytest.raises(BadInput, match=r"marked\.txt"):
            read_labelled(file)
    with pytest.raises(BadInput, match="no such file"):
        read_labelled(tmp_path / "none.txt")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_it_finds_the_same(tagger: tuple[Path, float]) -> None:
    sentences = [frame.format(name) for frame in FRAMES for name in NAMES] * 5
    found, expected = (LearnedTagger(tagger[0], device=device).tag(sentences) for device in ("cuda", "cpu"))
    # half precision
    assert sum(ours == theirs for ours, theirs in zip(found, expected, strict=True)) > 0.98 * len(sentences)
