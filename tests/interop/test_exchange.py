"""Import and export: what is joined, what is refused, what continues training."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from realmlm.cli import main
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import ArtefactExists, BadInput, Mismatch
from realmlm.interop.layout import is_unused
from realmlm.model.inputs import query_inputs
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import index_of
from realmlm.sources.article import Article
from tests.calls import export_hf, import_hf
from tests.interop.test_records import Command, saved

CASE = Path(__file__).parent / "recorded" / "001"
SCORER, ENCODER, READER, OPENQA = (str(CASE / name) for name in ("scorer", "encoder", "reader", "openqa"))


def changed(tmp_path: Path, name: str, **weights: torch.Tensor | None) -> Path:
    """A copy of a checkpoint with some weights put in, or taken out (None)."""
    folder = tmp_path / name
    shutil.copytree(CASE / name, folder)
    state = load_file(folder / "model.safetensors") | {
        key: value for key, value in weights.items() if value is not None
    }
    save_file(
        {key: value for key, value in state.items() if weights.get(key, value) is not None},
        folder / "model.safetensors",
    )
    return folder


# --- joining ------------------------------------------------------------------------------------------------


def test_scorer_and_encoder_share_one_embedder(tmp_path: Path) -> None:
    model = import_hf((SCORER, ENCODER), out=tmp_path / "model")
    assert model.config.share_towers
    assert model.config.share_projection
    assert model.query.projection is model.document.projection
    assert not model.config.trained_on_questions
    # as published, whatever the tokenizer pads with
    assert model.reader.encoder.body.embeddings.word_embeddings.padding_idx == 1
    loaded = Realm.from_pretrained(tmp_path / "model")
    assert loaded.query.projection is loaded.document.projection
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    model.untie()
    assert model.query.projection is not model.document.projection


def test_open_qa_is_the_query_tower_where_an_embedder_is_given_too(tmp_path: Path) -> None:
    # this scorer holds its embedder twice, as query embedder too
    with pytest.raises(BadInput, match="both bring a query tower"):
        import_hf((OPENQA, SCORER), out=tmp_path / "model")
    embedder = tmp_path / "embedder"
    shutil.copytree(CASE / "scorer", embedder)
    state = {
        key: value
        for key, value in load_file(embedder / "model.safetensors").items()
        if key.startswith("embedder.")
    }
    save_file(
        {key.removeprefix("embedder."): value for key, value in state.items()}, embedder / "model.safetensors"
    )
    config = json.loads((embedder / "config.json").read_text())
    (embedder / "config.json").write_text(json.dumps(config | {"architectures": ["RealmEmbedder"]}))
    model = import_hf((OPENQA, str(embedder)), out=tmp_path / "model")
    assert not model.config.share_towers
    openqa = load_file(CASE / "openqa" / "model.safetensors")
    assert torch.equal(model.query.projection.weight, openqa["embedder.cls.dense.weight"])
    assert torch.equal(model.document.projection.weight, state["embedder.cls.dense.weight"])
    assert model.config.trained_on_questions


@pytest.mark.parametrize("source", [SCORER, ENCODER, READER, OPENQA], ids=lambda source: Path(source).name)
def test_each_alone_is_a_whole_model(tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    import_hf((source,), out=tmp_path / "model")
    model = Realm.from_pretrained(tmp_path / "model")
    wordpieces = model.wordpieces
    vectors = model.query(query_inputs([np.array([7, 8, 9])], wordpieces, max_query=16))
    assert vectors.shape == (1, 8)
    assert bool(vectors.isfinite().all())
    said = capsys.readouterr().err
    assert ("no source brings towers" in said) == (source in (ENCODER, READER))
    assert ("no source brings a reader" in said) == (source == SCORER)
    words = model.reader.embedding.weight
    assert torch.equal(words, model.document.encoder.body.get_input_embeddings().weight) == (source != OPENQA)


def test_half_precision_and_parts_and_torch_files(tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(CASE / "encoder", folder)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    torch.save({name: state[name].half() for name in names[:10]}, folder / "part-1.bin")
    torch.save({name: state[name] for name in names[10:]}, folder / "part-2.bin")
    parts = {name: "part-1.bin" if name in names[:10] else "part-2.bin" for name in names}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": parts}))
    model = import_hf((str(folder),), out=tmp_path / "model")
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert torch.equal(model.reader.mask_head.bias, state["cls.predictions.bias"].half().float())
    parts[names[0]] = "../elsewhere.bin"
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": parts}))
    with pytest.raises(BadInput, match="names files elsewhere"):
        import_hf((str(folder),), out=tmp_path / "other")


# --- refusing -----------------------------------------------------------------------------------------------


def refused(tmp_path: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that `realmlm import-hf` says; nothing is written."""
    with pytest.raises(SystemExit) as end:
        main(
            [
                "import-hf",
                *arguments,
                "--out",
                str(tmp_path / "new" / "model"),
                "--corpus",
                str(tmp_path / "new" / "corpus"),
            ]
        )
    assert end.value.code == 2
    assert not list((tmp_path / "new").rglob("*")) if (tmp_path / "new").exists() else True
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


def test_a_missing_weight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, "openqa", **{"reader.realm.encoder.layer.1.output.dense.bias": None})
    said = refused(tmp_path, str(folder), capsys=capsys)
    assert "lacks weights of RealmForOpenQA: reader.realm.encoder.layer.1.output.dense.bias" in said


def test_a_wrong_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, "openqa", **{"embedder.cls.dense.weight": torch.zeros(9, 16)})
    assert "embedder.cls.dense.weight (9, 16) instead of (8, 16)" in refused(
        tmp_path, str(folder), capsys=capsys
    )


def test_a_weight_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, "openqa", **{"embedder.realm.adapter.weight": torch.zeros(2)})
    assert "has weights that RealmForOpenQA does not: embedder.realm.adapter.weight" in refused(
        tmp_path, str(folder), capsys=capsys
    )


def test_a_weight_that_is_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, "openqa", **{"embedder.cls.dense.bias": torch.full((8,), torch.nan)})
    assert "no finite numbers: embedder.cls.dense.bias" in refused(tmp_path, str(folder), capsys=capsys)


def test_another_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, "openqa")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    said = refused(tmp_path, str(folder), capsys=capsys)
    assert "a model of the family 'bert', not REALM" in said
    assert "realmlm model --checkpoint" in said


def test_hostile_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, "openqa")
    saved(folder / "block_records.npy", [*[b"a text"] * 7, Command(tmp_path / "ran")])
    assert "it names posix.system" in refused(tmp_path, str(folder), capsys=capsys)
    assert not (tmp_path / "ran").exists()


def test_hostile_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, "openqa")
    (folder / "model.safetensors").unlink()
    torch.save({"weights": Command(tmp_path / "ran")}, folder / "pytorch_model.bin")
    assert "cannot be read as weights only" in refused(tmp_path, str(folder), capsys=capsys)
    assert not (tmp_path / "ran").exists()


def test_records_and_vectors_that_do_not_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(tmp_path, "openqa")
    saved(folder / "block_records.npy", [b"a text"] * 7)
    assert "(8, 8) for 7 records" in refused(tmp_path, str(folder), capsys=capsys)
    saved(folder / "block_records.npy", [b"\xff"] * 8)
    assert "record 0 is not UTF-8" in refused(tmp_path, str(folder), capsys=capsys)
    saved(folder / "block_records.npy", [b"lobe", b""] * 4)
    assert "record 1 has 0 characters" in refused(tmp_path, str(folder), capsys=capsys)
    state = load_file(folder / "model.safetensors")
    state["block_emb"][3, 3] = torch.inf
    save_file(state, folder / "model.safetensors")
    saved(folder / "block_records.npy", [b"lobe"] * 8)
    assert "NaN or infinity" in refused(tmp_path, str(folder), capsys=capsys)


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ((READER, ENCODER), "both bring a reader"),
        ((SCORER, SCORER), "both bring a document tower"),
        (("nowhere/at/all",), "no checkpoint at 'nowhere/at/all'"),
        ((SCORER, ENCODER), "a corpus comes with RealmForOpenQA only"),
    ],
)
def test_sources_that_cannot_be_joined(
    tmp_path: Path, sources: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(tmp_path, *sources, capsys=capsys)


def test_what_stands_there_stays(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ArtefactExists):
        import_hf((SCORER,), out=tmp_path / "model")


# --- export -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("scorer", "RealmScorer"),
        ("encoder", "RealmKnowledgeAugEncoder"),
        ("reader", "RealmReader"),
        ("openqa", "RealmForOpenQA"),
    ],
)
def test_what_was_imported_is_written_back_bit_for_bit(tmp_path: Path, name: str, architecture: str) -> None:
    corpus = tmp_path / "corpus" if name == "openqa" else None
    import_hf((str(CASE / name),), out=tmp_path / "model", corpus=corpus)
    export_hf(tmp_path / "model", out=tmp_path / "back", architecture=architecture, corpus=corpus)
    before, after = (load_file(folder / "model.safetensors") for folder in (CASE / name, tmp_path / "back"))
    used = {
        key for key in before if not is_unused(architecture, key) and not key.startswith("query_embedder.")
    }
    assert set(after) == used
    assert [key for key in used if not torch.equal(before[key], after[key])] == []
    old, new = (
        json.loads((folder / "config.json").read_text()) for folder in (CASE / name, tmp_path / "back")
    )
    assert {key: old[key] for key in old if key in new} == {key: new[key] for key in old if key in new}
    assert (tmp_path / "back" / "vocab.txt").read_text() == (CASE / name / "vocab.txt").read_text()
    if name == "openqa":
        records = [
            np.load(folder / "block_records.npy", allow_pickle=True)
            for folder in (CASE / name, tmp_path / "back")
        ]
        assert records[0].tolist() == records[1].tolist()
    again = import_hf((str(tmp_path / "back"),), out=tmp_path / "again").state_dict()
    first = Realm.from_pretrained(tmp_path / "model").state_dict()
    part = (
        ("document.", "query.")
        if name == "scorer"
        else ("reader.",)
        if name in ("encoder", "reader")
        else ("",)
    )
    assert [key for key in first if key.startswith(part) and not torch.equal(first[key], again[key])] == []


def test_a_model_of_another_kind_does_not_fit(tiny_model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        Mismatch, match="scale_scores = True; pooling = mean; an encoder of the family modernbert"
    ):
        export_hf(tiny_model_folder, out=tmp_path / "back", architecture="RealmScorer")
    assert not (tmp_path / "back").exists()


# --- going on -----------------------------------------------------------------------------------------------


def test_an_imported_corpus_answers_without_embedding_and_takes_edits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_hf((OPENQA,), out=tmp_path / "model", corpus=tmp_path / "corpus")
    capsys.readouterr()
    engine = Engine(tmp_path / "model", tmp_path / "corpus", device="cpu")
    assert "embedding" not in capsys.readouterr().err
    assert torch.equal(
        engine.index.vectors(torch.arange(8)), load_file(CASE / "openqa" / "model.safetensors")["block_emb"]
    )
    corpus = Corpus.open(tmp_path / "corpus")
    assert [corpus[number].source for number in (0, 7)] == ["record 0", "record 7"]
    corpus.edit(remove=[0])
    assert len(Engine(tmp_path / "model", tmp_path / "corpus", device="cpu").index) == 7


def test_training_goes_on_from_an_import(tmp_path: Path, world: Path) -> None:
    import_hf((SCORER, ENCODER), out=tmp_path / "model")
    words = sorted(
        {
            word.strip()
            for word in (CASE / "scorer" / "vocab.txt").read_text().split("\n")[5:]
            if not word.startswith("##")
        }
    )
    facts = [
        f"{words[n]} {words[n + 1]} zeigt {words[n + 2]} . {words[n + 3]} ist {words[n]} ." for n in range(40)
    ]
    (tmp_path / "notes.jsonl").write_text(
        "".join(json.dumps({"title": words[n], "text": fact}) + "\n" for n, fact in enumerate(facts))
    )
    asked = [{"question": f"{words[n]} {words[n + 1]}", "answer": [words[n + 2]]} for n in range(40)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(item) + "\n" for item in asked))
    corpus = str(tmp_path / "corpus")
    model = str(tmp_path / "model")
    main(
        [
            "corpus",
            str(tmp_path / "notes.jsonl"),
            "--out",
            corpus,
            "--tokenizer",
            model,
            "--max-wordpieces",
            "18",
            "--workers",
            "1",
        ]
    )
    quick = ["--optim.steps", "3", "--optim.batch", "4", "--loop.device", "cpu", "--loop.threads", "1"]
    steps = [
        "--k",
        "3",
        "--masking",
        "uniform",
        "--marginal",
        "per-token",
        "--refresh.every-steps",
        "2",
        "--refresh.no-process",
    ]
    main(["pretrain", "--from", model, "--corpus", corpus, "--out", str(tmp_path / "joint"), *steps, *quick])
    joint = Realm.from_pretrained(tmp_path / "joint" / "model")
    assert joint.config.share_projection
    assert joint.query.projection is joint.document.projection
    before = Realm.from_pretrained(model)
    assert not torch.equal(joint.document.projection.weight, before.document.projection.weight)
    asked_of = [
        "--corpus",
        corpus,
        "--questions",
        str(tmp_path / "asked.jsonl"),
        "--read",
        "2",
        "--candidates",
        "5",
    ]
    main(
        [
            "finetune",
            "--from",
            str(tmp_path / "joint" / "model"),
            *asked_of,
            "--out",
            str(tmp_path / "tuned"),
            *quick,
        ]
    )
    tuned = Realm.from_pretrained(tmp_path / "tuned" / "model")
    assert tuned.config.trained_on_questions
    assert tuned.config.reading == "released"
    # the index stays as it is
    assert torch.equal(tuned.document.projection.weight, joint.document.projection.weight)
    assert not torch.equal(tuned.query.projection.weight, joint.query.projection.weight)
    assert (
        Engine(tmp_path / "tuned" / "model", corpus, device="cpu")
        .ask(str(asked[0]["question"]), read=2)
        .evidence
    )
    # transformers would load the query tower as both
    with pytest.raises(Mismatch, match="different weights"):
        export_hf(tmp_path / "tuned" / "model", out=tmp_path / "out", architecture="RealmScorer")
    export_hf(tmp_path / "tuned" / "model", out=tmp_path / "out", architecture="RealmEmbedder")
    assert torch.equal(
        load_file(tmp_path / "out" / "model.safetensors")["cls.dense.weight"],
        joint.document.projection.weight,
    )


# --- found by review ----------------------------------------------------------------------------------------


def edited(tmp_path: Path, name: str, **settings: object) -> str:
    """A copy of a checkpoint with other settings."""
    folder = tmp_path / f"edited-{name}"
    shutil.copytree(CASE / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return str(folder)


def as_embedder(tmp_path: Path, **settings: object) -> str:
    """The recorded scorer's embedder alone."""
    folder = Path(edited(tmp_path, "scorer", architectures=["RealmEmbedder"], **settings))
    state = load_file(folder / "model.safetensors")
    save_file(
        {key.removeprefix("embedder."): value for key, value in state.items() if key.startswith("embedder.")},
        folder / "model.safetensors",
    )
    return str(folder)


def test_an_approximate_index_is_made_of_the_imported_vectors(tmp_path: Path) -> None:
    import_hf((OPENQA,), out=tmp_path / "model", corpus=tmp_path / "corpus")
    main(
        [
            "index",
            "--model",
            f"{tmp_path}/model",
            "--corpus",
            f"{tmp_path}/corpus",
            "--kind",
            "ivf",
            "--dtype",
            "float32",
            "--device",
            "cpu",
        ]
    )
    (place,) = (tmp_path / "corpus" / "index").glob("*-ivf")
    index = Engine(tmp_path / "model", tmp_path / "corpus", index=place, device="cpu").index
    assert torch.equal(
        index.vectors(torch.arange(8)), load_file(CASE / "openqa" / "model.safetensors")["block_emb"]
    )
    shutil.rmtree(tmp_path / "corpus" / "index")
    with pytest.raises(Mismatch, match="import it again"):  # not embedded with a tower that did not make them
        Engine(tmp_path / "model", tmp_path / "corpus", device="cpu")


def test_imported_vectors_of_half_precision_are_not_taken_for_whole(tmp_path: Path) -> None:
    import_hf((OPENQA,), out=tmp_path / "model", corpus=tmp_path / "corpus", dtype="float16")
    model = Realm.from_pretrained(tmp_path / "model")
    corpus = Corpus.open(tmp_path / "corpus")
    place = tmp_path / "index"
    with pytest.raises(Mismatch, match=r"less precise than float32.*import it again"):
        index_of(model, corpus, path=place, kind="ivf", dtype=torch.float32)
    assert index_of(model, corpus, path=place, kind="ivf").index.dtype == torch.float16


def test_no_passage_is_embedded_where_the_embedder_of_the_passages_did_not_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_hf((OPENQA,), out=tmp_path / "model", corpus=tmp_path / "corpus")
    engine = Engine(tmp_path / "model", tmp_path / "corpus", device="cpu")
    Corpus.open(tmp_path / "corpus").edit(add=[Article("", "lobe")])
    with pytest.raises(Mismatch, match="import it again with that embedder named as well"):
        Engine(tmp_path / "model", tmp_path / "corpus", device="cpu")
    capsys.readouterr()
    engine.follow()
    assert "cannot embed passages" in capsys.readouterr().err
    steps = [
        "--k",
        "3",
        "--masking",
        "uniform",
        "--marginal",
        "per-token",
        "--refresh.no-process",
        "--loop.device",
        "cpu",
    ]
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "pretrain",
                "--from",
                f"{tmp_path}/model",
                "--corpus",
                f"{tmp_path}/corpus",
                "--out",
                f"{tmp_path}/joint",
                *steps,
            ]
        )
    assert ended.value.code == 2
    assert "error: this model cannot embed passages" in capsys.readouterr().err
    import_hf((OPENQA, as_embedder(tmp_path)), out=tmp_path / "both", corpus=tmp_path / "blocks")
    Corpus.open(tmp_path / "blocks").edit(add=[Article("", "lobe")])
    assert len(Engine(tmp_path / "both", tmp_path / "blocks", device="cpu").index) == 9


def test_the_readers_own_settings_come_from_the_reader(tmp_path: Path) -> None:
    model = import_hf(
        (as_embedder(tmp_path), edited(tmp_path, "reader", max_span_width=9, reader_seq_len=40)),
        out=tmp_path / "model",
    )
    assert (model.config.max_answer, model.config.max_together) == (9, 40)


def test_towers_may_differ_in_what_no_weight_depends_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embedder = as_embedder(tmp_path, hidden_dropout_prob=0.3, max_span_width=2, pad_token_id=0)
    assert not import_hf((OPENQA, embedder), out=tmp_path / "model").config.share_towers
    shutil.rmtree(tmp_path / "edited-scorer")
    said = refused(tmp_path, OPENQA, as_embedder(tmp_path, num_attention_heads=2), capsys=capsys)
    assert "their towers differ in num_attention_heads" in said


def test_a_head_that_is_not_tied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed(tmp_path, "encoder", **{"cls.predictions.decoder.weight": torch.zeros(90, 16)})
    assert "not tied to its word embeddings" in refused(tmp_path, str(folder), capsys=capsys)


def test_cased_tokenizers_stay_cased(tmp_path: Path) -> None:
    folder = changed(tmp_path, "scorer")
    words = (folder / "vocab.txt").read_text().split("\n")
    words[20] = "Orvane"
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": False, "strip_accents": False})
    )
    import_hf((str(folder),), out=tmp_path / "model")
    export_hf(tmp_path / "model", out=tmp_path / "back", architecture="RealmScorer")
    settings = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    assert (settings["do_lower_case"], settings["strip_accents"]) == (False, False)
    (tmp_path / "back" / "tokenizer.json").unlink()
    import_hf((str(tmp_path / "back"),), out=tmp_path / "again")
    for model in ("model", "again"):
        assert Realm.from_pretrained(tmp_path / model).wordpieces.encode("Orvane").tolist() == [20]
    with pytest.raises(Mismatch, match="different tokenizers"):
        import_hf((str(folder), ENCODER), out=tmp_path / "mixed")


def test_a_corpus_of_another_tokenizer_is_not_exported(tmp_path: Path, knowledge: Corpus) -> None:
    import_hf((OPENQA,), out=tmp_path / "model")
    with pytest.raises(Mismatch, match="different tokenizers"):
        export_hf(
            tmp_path / "model", out=tmp_path / "back", architecture="RealmForOpenQA", corpus=knowledge.folder
        )


def test_a_file_that_torch_wrote_before_it_zipped(tmp_path: Path) -> None:
    folder = changed(tmp_path, "encoder")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    model = import_hf((str(folder),), out=tmp_path / "model")
    assert torch.equal(model.reader.mask_head.bias, state["cls.predictions.bias"])


@pytest.mark.parametrize(
    "settings",
    [
        {"architectures": 5},
        {"architectures": [["x"]]},
        {"retriever_proj_size": "8"},
        {"num_attention_heads": 0},
        {"pad_token_id": 1000},
        {"max_span_width": -3},
        {"reader_seq_len": 4},
        {"layer_norm_eps": "small"},
        {"position_embedding_type": "relative_key"},
    ],
    ids=str,
)
def test_damaged_settings(
    tmp_path: Path, settings: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(tmp_path, edited(tmp_path, "openqa", **settings), capsys=capsys)


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "config.json")
    said = refused(tmp_path, str(tmp_path), capsys=capsys)
    assert "config.json cannot be read" in said
    (tmp_path / "config.json").unlink()
    shutil.copy(Path(SCORER) / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"weight": "part.bin"}}')
    os.mkfifo(tmp_path / "part.bin")
    assert "lacks part.bin, which its index names" in refused(tmp_path, str(tmp_path), capsys=capsys)


def test_a_revision_is_asked_for_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []
    commit = tmp_path / "0123abc"
    shutil.copytree(SCORER, commit)

    def fetch(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        return str(commit)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    import_hf(("someone/scorer@v1.2",), out=tmp_path / "a")
    assert "revision" not in capsys.readouterr().err
    import_hf(("someone/scorer",), out=tmp_path / "b")
    assert "name someone/scorer@0123abc" in capsys.readouterr().err
    assert asked == [("someone/scorer", "v1.2"), ("someone/scorer", "main")]


def test_first_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], knowledge: Corpus
) -> None:
    monkeypatch.chdir(CASE / "scorer")
    import_hf((".",), out=tmp_path / "model")
    with pytest.raises(SystemExit):
        main(
            [
                "model",
                "--corpus",
                str(knowledge.folder),
                "--checkpoint",
                SCORER,
                "--out",
                str(tmp_path / "other"),
            ]
        )
    assert f"realmlm import-hf {SCORER}" in capsys.readouterr().err
    said = refused(tmp_path, OPENQA, "--tokenizer", str(tmp_path / "none.txt"), capsys=capsys)
    assert "none.txt cannot be read as a list of wordpieces" in said
    with pytest.raises(BadInput, match="one cannot lie within the other"):
        import_hf((OPENQA,), out=tmp_path / "a", corpus=tmp_path / "a" / "blocks")
