"""One suite for every family of encoders: its own inputs, padding, learning, saving, the tied head, half
precision.

`make encoders` runs it for all of them and writes docs/encoders.md from what it finds.
"""

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel

from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import MAX_TITLE, Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput
from realmlm.model.config import ModelConfig
from realmlm.model.create import fresh_encoder, new_model
from realmlm.model.encoders import build_encoder, load_encoder, longest_input
from realmlm.model.inputs import Inputs, document_inputs, query_inputs, reader_inputs
from realmlm.model.marginal import hidden_log_p, joint_reading, marginal_log_likelihood
from realmlm.model.mask_heads import load_mask_head
from realmlm.model.quick import BFLOAT16, Way
from realmlm.model.realm import Realm
from realmlm.reading.read import join, read_masks
from realmlm.reading.retrieve import Offered, index_of, scores_of_all
from realmlm.settings import JointOptim
from realmlm.train.data import SentenceSource
from realmlm.train.objective import Group
from realmlm.train.optimizer import make_optimizer
from tests.calls import build_corpus
from tests.model.families import DEFAULT, FAMILIES, NO_SEGMENTS, REFUSED, Family, shown

# wordpieces, wordpieces, count
QUERY = 16
PASSAGE = 48
PASSAGES = 24
STEPS = 12
BATCH = 8
K = 4


class Subject:
    """A family on the bench: its own tokenizer, a corpus made with it, tiny models with fresh weights."""

    def __init__(self, family: Family, world: Path, folder: Path) -> None:
        self.family = family
        self._world = world
        self.folder = folder
        self.theirs = family.tokenizer()
        self.wordpieces = Wordpieces(self.theirs.backend_tokenizer)
        self.poolings = ["mean"] if self.wordpieces.single.cls is None else ["cls", "mean"]
        self.longest = PASSAGE + max(QUERY, MAX_TITLE) + self.wordpieces.pair.special

    @cached_property
    def corpus(self) -> Corpus:
        lines = (self._world / "knowledge.jsonl").read_text("utf-8").lower().splitlines()[:PASSAGES]
        source = self.folder / "passages.jsonl"
        tokenizer = self.folder / "tokenizer.json"
        source.write_text("\n".join(lines), "utf-8")
        self.wordpieces.save(tokenizer)
        corpus = build_corpus(
            [source], self.folder / "corpus", tokenizer=str(tokenizer), max_wordpieces=PASSAGE, workers=1
        )
        mark_spans(
            corpus, PhraseTagger((self._world / "phrases.txt").read_text("utf-8").split("\n")), workers=1
        )
        return corpus

    @cached_property
    def texts(self) -> list[str]:
        return [
            json.loads(line)["text"].lower()
            for line in (self._world / "knowledge.jsonl").read_text("utf-8").splitlines()[:3]
        ]

    def encoder(self) -> dict[str, Any]:
        size = {"layers": 2, "hidden": 32, "heads": 2, "dropout": 0.0, "positions": self.longest}
        made = fresh_encoder(self.wordpieces, family=self.family.model_type, **size)  # type: ignore[arg-type]
        return made | self.family.settings

    def config(self, **settings: Any) -> ModelConfig:
        limits = {"max_query": QUERY, "max_passage": PASSAGE, "projection": 16, "span_hidden": 32}
        return ModelConfig(
            **{"tower": self.encoder(), "reader": self.encoder(), "pooling": "mean"} | limits | settings
        )

    def model(self, **settings: Any) -> Realm:
        return new_model(self.config(**settings), self.wordpieces, seed=0).eval()

    def worn_model(self, **settings: Any) -> Realm:
        """As after training: at the beginning biases are 0, and so is the padding's embedding."""
        model = self.model(**settings)
        wear(model)
        return model

    def query(self, *texts: str) -> Inputs:
        return query_inputs(
            [self.wordpieces.encode(text) for text in texts], self.wordpieces, max_query=QUERY
        )

    def document(self, *pairs: tuple[str, str]) -> Inputs:
        titles, bodies = ([self.wordpieces.encode(pair[part]) for pair in pairs] for part in (0, 1))
        return document_inputs(titles, bodies, self.wordpieces, max_length=self.longest)

    def joint(self, *pairs: tuple[str, str]) -> Inputs:
        queries, bodies = ([self.wordpieces.encode(pair[part]) for pair in pairs] for part in (0, 1))
        return reader_inputs(queries, bodies, self.wordpieces, max_query=QUERY, max_length=self.longest)


def wear(module: torch.nn.Module) -> None:
    """No weight stays what it was."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in DEFAULT else pytest.mark.families) for name in FAMILIES],
)
def subject(request: pytest.FixtureRequest, world: Path, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(FAMILIES[request.param], world, tmp_path_factory.mktemp("family"))


Record = Callable[[str, object], None]


# --- the suite: each check records what the table shows -----------------------------------------------------


def test_inputs_are_those_of_the_familys_own_tokenizer(subject: Subject, record_property: Record) -> None:
    first = "the flag shows a heron"
    second = "a badger lives in the old forest."

    def same(inputs: Inputs, *texts: str) -> None:
        theirs = subject.theirs(*texts, return_token_type_ids=True)
        assert inputs.tokens_NL[0].tolist() == theirs["input_ids"]
        assert inputs.segments_NL[0].tolist() == theirs["token_type_ids"]
        assert inputs.attention_NL[0].tolist() == theirs["attention_mask"]

    same(subject.query(first), first)
    same(subject.document((first, second)), first, second)
    same(subject.joint((first, second)), first, second)
    assert subject.wordpieces.pad == subject.theirs.pad_token_id
    assert subject.theirs.mask_token_id in (subject.wordpieces.mask, None)
    owners = subject.theirs(first, second).encodings[0].sequence_ids
    inputs = subject.joint((first, second))
    reader = subject.worn_model(max_answer=1).reader
    assert reader.span_head.allowed(inputs)[0, :, 0].tolist() == [owner == 1 for owner in owners], (
        "answers lie in the passage"
    )
    hidden = reader.encoder(inputs)
    start = owners.index(0)
    expected = reader.mask_head(hidden[:, [start, start + 2]], reader.embedding.weight)
    assert torch.equal(reader.masks(inputs, torch.tensor([[0, 2]])), expected), (
        "masks are counted from the first wordpiece of the query"
    )
    if "cls" in subject.poolings:
        place = inputs.tokens_NL[0].tolist().index(subject.wordpieces.cls)
        assert owners[place] is None
        assert torch.equal(reader.encoder.pooled(inputs, "cls")[0], hidden[0, place])
    record_property("layout", shown(inputs.layout, subject.wordpieces))
    record_property("pooling", ", ".join(subject.poolings))


@torch.no_grad()
def test_padding_changes_nothing(subject: Subject, record_property: Record) -> None:
    short = "a heron"
    long = " ".join(subject.texts * 4)
    worst = 0.0

    def same(run: Callable[[Inputs], Tensor], alone: Inputs, beside: Inputs) -> None:
        nonlocal worst
        assert beside.tokens_NL.shape[1] > alone.tokens_NL.shape[1]
        expected = run(alone)[0]
        found = run(beside)[0][: run(alone).shape[1]]
        worst = max(worst, float((expected - found).abs().max()))
        assert torch.allclose(expected, found, atol=2e-5)

    for pooling in subject.poolings:
        model = subject.worn_model(pooling=pooling)
        same(model.query, subject.query(short), subject.query(short, long))
        same(model.document, subject.document((short, short)), subject.document((short, short), (long, long)))
    alone = subject.joint((long, short))
    beside = subject.joint((long, short), (long, long))
    same(lambda inputs: model.reader.masks(inputs, torch.tensor([[0, 3]] * len(inputs))), alone, beside)
    same(
        lambda inputs: model.reader.spans(inputs)[0][:, : alone.tokens_NL.shape[1] - model.config.max_answer],
        alone,
        beside,
    )
    assert beside.tokens_NL.shape[1] == subject.longest, "the longest input there is was read"
    assert torch.equal(
        model.reader.spans(alone)[1][0], model.reader.spans(beside)[1][0, : alone.tokens_NL.shape[1]]
    )
    record_property("padding", f"{worst:.0e}")


def test_joint_steps_lower_the_loss(subject: Subject, record_property: Record) -> None:
    model = subject.model()
    wordpieces = subject.wordpieces
    corpus = subject.corpus
    drawn = SentenceSource(corpus, "salient", max_query=QUERY, seed=0).draw(0, BATCH)
    masked = drawn.masked
    positions_BM, targets_BM, valid_BM = masked.tensors(model.device)
    own = torch.from_numpy(drawn.passages)
    index = index_of(model, corpus, path=subject.folder / "index", kind="exact").index
    groups = {
        "reader": Group(list(model.reader.parameters()), 3e-3),
        "retriever": Group(model.retriever_parameters(), 3e-3),
    }
    optimizer = make_optimizer(groups, JointOptim(lr=3e-3))
    losses = []
    model.train()
    for _ in range(STEPS + 1):
        vectors = model.query(query_inputs(masked.queries, wordpieces, max_query=QUERY))
        ids = index.search(vectors.detach(), K - 1, exclude_QE=own[:, None]).ids_QK
        offered = Offered(corpus, ids.numpy(), null=True)
        read = read_masks(model, join(model, masked.queries, offered), positions_BM)
        reading = joint_reading(hidden_log_p(read.log_BKMV, targets_BM), valid_BM)
        scores = scores_of_all(model, vectors, offered).gather(1, torch.from_numpy(offered.place_BK))
        loss = -marginal_log_likelihood(scores, reading).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        for group in groups.values():
            torch.nn.utils.clip_grad_norm_(group.parameters, 1.0)
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    for part in (
        model.query.projection.weight,
        model.document.encoder.body.get_input_embeddings().weight,
        model.reader.embedding.weight,
    ):
        assert part.grad is not None
        assert part.grad.abs().sum() > 0
    unmoved = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None and "span_head" not in name
    ]
    idle = {name.split("encoder.body.")[-1] for name in unmoved}
    assert idle <= {"mask_emb"}, (
        "XLNet's vector for positions that are only predicted; nothing else lies idle"
    )
    record_property("loss", f"{losses[0]:.1f} → {losses[-1]:.1f}")


def outputs(model: Realm, subject: Subject) -> list[Tensor]:
    first, second, _ = subject.texts
    joint = subject.joint((first, second), (second, first))
    with torch.no_grad():
        masks = model.reader.masks(joint, torch.tensor([[0, 2], [1, 3]]))
        return [
            model.query(subject.query(first, second)),
            model.document(subject.document((first, second))),
            masks,
            model.reader.spans(joint)[0],
        ]


def test_save_and_load_give_the_same_outputs(
    subject: Subject, tmp_path: Path, record_property: Record
) -> None:
    for pooling in subject.poolings:
        for share in (True, False):
            model = subject.worn_model(pooling=pooling, share_towers=share)
            place = tmp_path / f"{pooling}-{share}"
            model.save_pretrained(place)
            again = Realm.from_pretrained(place)
            wordpieces = again.wordpieces
            assert (wordpieces.single, wordpieces.pair) == (
                subject.wordpieces.single,
                subject.wordpieces.pair,
            )
            assert all(
                torch.equal(old, new)
                for old, new in zip(outputs(model, subject), outputs(again, subject), strict=True)
            )
    record_property("saved", "equal")


def test_a_checkpoint_reads_as_transformers_reads_it(
    subject: Subject, tmp_path: Path, record_property: Record
) -> None:
    """The whole published model, heads, poolers and decoders with it, run by transformers on its own
    tokenizer's inputs."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    encoder = subject.encoder()
    theirs = AutoModel.from_config(AutoConfig.for_model(encoder.pop("model_type"), **encoder)).eval()
    wear(theirs)
    theirs.save_pretrained(tmp_path / "published")
    subject.wordpieces.save(tmp_path / "published" / "tokenizer.json")
    model = new_model(
        subject.config(tower={}, reader={}), subject.wordpieces, checkpoint=str(tmp_path / "published")
    ).eval()
    first = "the flag shows a heron"
    second = subject.texts[0]
    given = subject.theirs(
        first, second, return_tensors="pt", return_token_type_ids=subject.family.model_type not in NO_SEGMENTS
    )
    if subject.family.model_type == "longformer":
        parts = [owner in (None, 0) for owner in subject.theirs(first, second).encodings[0].sequence_ids]
        given["global_attention_mask"] = torch.tensor(
            [[int(all(parts[: at + 1])) for at in range(len(parts))]]
        )
    body = theirs.encoder if theirs.config.is_encoder_decoder else theirs
    with torch.no_grad():
        expected = body(**given).last_hidden_state
        found = model.reader.encoder(subject.joint((first, second)))
    assert torch.allclose(expected, found, atol=1e-5)
    again = build_encoder(model.config.reader)
    assert again.state_dict().keys() == model.reader.encoder.body.state_dict().keys()
    record_property(
        "checkpoint",
        "equal" if torch.equal(expected, found) else f"{float((expected - found).abs().max()):.0e}",
    )


def test_the_masked_lm_head_is_tied(subject: Subject, record_property: Record) -> None:
    model = subject.model()
    reader = model.reader
    table = reader.encoder.body.get_input_embeddings().weight
    head = reader.mask_head
    assert reader.embedding.weight.data_ptr() == table.data_ptr()
    assert len(table) >= len(subject.wordpieces)
    assert not any(len(parameter) == len(table) and parameter.ndim > 1 for parameter in head.parameters()), (
        "no output weights of its own"
    )
    inputs = subject.joint(("a heron", "a bird"))
    absent = min(set(range(len(table))) - set(inputs.tokens_NL[0].tolist()) - {subject.wordpieces.pad})
    reader.masks(inputs, torch.tensor([[0]]))[0, 0, absent].backward()
    assert table.grad is not None
    assert table.grad[absent].abs().sum() > 0, "what is predicted moves the embedding that is read"
    record_property("head", f"{reader.encoder.hidden} → {table.shape[1]} → {len(table):,}")


def test_half_precision_is_finite(subject: Subject, record_property: Record) -> None:
    model = subject.model()
    first, second, _ = subject.texts
    with torch.autocast("cpu", dtype=torch.bfloat16):
        joint = subject.joint((first, second), ("a heron", "a bird"))
        masks = model.reader.masks(joint, torch.tensor([[0], [1]]))
        spans = model.reader.spans(joint)[0]
        scores = (
            model.query(subject.query(first)) @ model.document(subject.document((first, second), ("", ""))).T
        )
    (masks[..., 5].sum() + spans.sum() + scores.sum()).backward()
    assert all(torch.isfinite(tensor).all() for tensor in (masks, spans, scores))
    assert all(
        torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None
    )
    exact = model.reader.masks(joint, torch.tensor([[0], [1]]))
    record_property("half", f"{float((exact - masks).detach().abs().max()):.2f}")
    assert torch.allclose(exact, masks, atol=0.5)


@pytest.mark.parametrize("way", [BFLOAT16, None])
def test_a_cpu_that_can_computes_quickly_and_gives_the_same_in_float32(
    subject: Subject, way: Way | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realmlm.model.encoders.fastest", lambda int8: way)
    model = subject.model()
    texts = (subject.texts[0], subject.texts[1])

    def both() -> list[Tensor]:
        spans = model.reader.spans(subject.joint(texts, ("a heron", "a bird")))[0]
        return [model.document(subject.document(texts, ("", ""))), spans[spans > -1e4]]

    with torch.inference_mode():
        exact = both()
        model.compute_quickly()
        for one, other in zip(exact, both(), strict=True):
            assert other.dtype == torch.float32
            assert torch.equal(one, other) or way
            assert torch.allclose(one, other, atol=0.1)


# --- what is not of one family ------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", REFUSED)
def test_families_that_cannot_work_say_why(model_type: str) -> None:
    with pytest.raises(BadInput, match=REFUSED[model_type]):
        build_encoder({"model_type": model_type})


def test_positions_are_counted_as_the_family_counts_them() -> None:
    wordpieces = Wordpieces(FAMILIES["RoBERTa"].tokenizer().backend_tokenizer)
    size = {"layers": 1, "hidden": 16, "heads": 2, "dropout": 0.0, "positions": 50}
    for family, expected in {
        "bert": 50,
        "roberta": 50,
        "mpnet": 50,
        "modernbert": 50,
        "xlnet": None,
        "t5": None,
    }.items():
        assert longest_input(build_encoder(fresh_encoder(wordpieces, family=family, **size))) == expected, (  # type: ignore[arg-type]
            family
        )


def test_a_sequence_without_cls_needs_the_mean(world: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--pooling mean"):
        Subject(FAMILIES["T5"], world, tmp_path).model(pooling="cls")


def test_the_table_has_these_families_and_no_others() -> None:
    page = (Path(__file__).parents[2] / "docs" / "encoders.md").read_text("utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in page.splitlines()
        if line.startswith("| ")
    ]
    kinds = [(row[0], row[1]) for row in rows if len(row) > 2 and row[1].startswith("`")]
    assert kinds == [(name, f"`{family.model_type}`") for name, family in FAMILIES.items()], (
        "run: make encoders"
    )
    assert [row[0] for row in rows if len(row) == 2 and row[0].startswith("`")] == [
        f"`{model_type}`" for model_type in REFUSED
    ]
    assert "fails" not in page
    for name in DEFAULT:
        wordpieces = Wordpieces(FAMILIES[name].tokenizer().backend_tokenizer)
        assert next(row[2] for row in rows if row[0] == name) == shown(wordpieces.pair, wordpieces)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "quantization_config"])
def test_a_config_names_no_code_that_would_be_fetched(family: str, name: str) -> None:
    """Transformers would look up the kernels of such a repository and run them."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "pad_token_id": 0}
    body = build_encoder({"model_type": family, **sizes, name: "org/repo"})
    assert body.config.hidden_size == 16
    assert "org/repo" not in vars(body.config).values()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published encoder, as its folder."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    folder = tmp_path_factory.mktemp("checkpoint")
    build_encoder({"model_type": "bert", **sizes, "intermediate_size": 16}).save_pretrained(folder)
    return folder


def test_a_checkpoints_head_for_masked_words_predicts_as_it_did(subject: Subject, tmp_path: Path) -> None:
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, AutoModelForMaskedLM

    torch.manual_seed(0)
    encoder = subject.encoder()
    config = AutoConfig.for_model(encoder.pop("model_type"), **encoder)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        pytest.skip("it has no head for masked words")
    theirs = AutoModelForMaskedLM.from_config(config).eval()
    wear(theirs)
    theirs.save_pretrained(tmp_path / "published")
    subject.wordpieces.save(tmp_path / "published" / "tokenizer.json")
    if load_mask_head(tmp_path / "published", config) is None:
        pytest.skip("its head is of another form")
    model = new_model(
        subject.config(tower={}, reader={}), subject.wordpieces, checkpoint=str(tmp_path / "published")
    ).eval()
    first = "the flag shows a heron"
    segments = subject.family.model_type not in NO_SEGMENTS
    given = subject.theirs(first, subject.texts[0], return_tensors="pt", return_token_type_ids=segments)
    with torch.no_grad():
        expected = theirs(**given).logits[:, 1:3].log_softmax(-1)
        hidden = model.reader.encoder(subject.joint((first, subject.texts[0])))
        found = model.reader.mask_head(hidden[:, 1:3], model.reader.embedding.weight)
    assert torch.allclose(expected, found, atol=2e-5)


def with_setting(checkpoint: Path, folder: Path, name: str, value: object) -> Path:
    """A copy whose config says something else, too."""
    copytree(checkpoint, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    return folder


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_nor_does_the_config_of_a_checkpoint(checkpoint: Path, tmp_path: Path, name: str) -> None:
    body = load_encoder(with_setting(checkpoint, tmp_path, name, "org/repo"))
    assert "org/repo" not in vars(body.config).values()
    assert body.config.hidden_size == 16


def test_a_revision_is_asked_for_and_said(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And weights are those of the commit whose config was read, even if a newer one comes meanwhile."""
    asked: list[str] = []

    def fetch(kind: Any) -> Callable[..., Any]:
        load = kind.from_pretrained

        def loaded(name: str, *, revision: str, **options: Any) -> Any:
            asked.append(f"{name} {revision}")
            found = load(checkpoint, **options)
            getattr(found, "config", found)._commit_hash = "0123abc"
            return found

        return loaded

    for kind in (AutoConfig, AutoModel):
        monkeypatch.setattr(kind, "from_pretrained", fetch(kind))
    load_encoder("someone/encoder@v1.2")
    assert "revision" not in capsys.readouterr().err
    load_encoder("someone/encoder")
    assert "name someone/encoder@0123abc" in capsys.readouterr().err
    assert asked == [f"someone/encoder {commit}" for commit in ("v1.2", "0123abc", "main", "0123abc")]


@pytest.mark.parametrize(
    ("name", "value"), [("num_hidden_layers", 2**20), ("hidden_size", "wide"), ("hidden_act", "loud")]
)
def test_a_checkpoint_that_cannot_be_built_is_refused(
    checkpoint: Path, tmp_path: Path, name: str, value: object
) -> None:
    with pytest.raises(BadInput, match=r"no encoder (to load|can be built)"):
        load_encoder(with_setting(checkpoint, tmp_path, name, value))


@pytest.mark.parametrize("name", ["num_hidden_layers", "vocab_size"])
def test_a_config_of_impossible_size_is_refused_at_once(name: str) -> None:
    with pytest.raises(BadInput, match=f"no encoder can be built with {name} = "):
        build_encoder({"model_type": "modernbert", name: 2**70})


def test_settings_that_deberta_reads_without_declaring_them_are_kept() -> None:
    sizes = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    family = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    body = build_encoder({**sizes, **family, "position_buckets": 6, "share_att_key": True})
    assert body.encoder.rel_embeddings.num_embeddings == 2 * 6
    assert not any("pos_key_proj" in name for name, _ in body.named_parameters())
