"""REALM: the retriever's two towers and the reader, saved and loaded as one model artefact."""

import copy
import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from realmlm.corpus.store import MAX_TITLE
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.device import cpu_has_bfloat16
from realmlm.errors import ArtefactDamaged, BadInput, Mismatch
from realmlm.model.encoders import (
    Encoder,
    Reader,
    Tower,
    build_encoder,
    encoder_config,
    load_encoder,
    longest_input,
    undrawn,
)
from realmlm.model.int8 import read_weights, write_weights
from realmlm.storage.artefacts import open_artefact, publish

WEIGHTS = "model.safetensors"
# special tokens of two texts in the family with most of them, RoBERTa: <s> x </s></s> z </s>
MOST_SPECIAL = 4


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What a model is made of; it travels with the weights."""

    tower: dict[str, Any] = field(default_factory=dict)
    """transformers config of the encoder in the query and the document tower."""
    reader: dict[str, Any] = field(default_factory=dict)
    """transformers config of the reader's encoder."""
    share_towers: bool = True
    """Query and document tower are one encoder with two projections."""
    share_projection: bool = False
    """One projection as well, so that one module embeds both."""
    projection: int = 128
    """Size of the vectors that are searched."""
    projection_norm: bool = True
    """LayerNorm after each projection; without it the plain inner product of the paper."""
    norm_eps: float = 1e-5
    """Its epsilon."""
    scale_scores: bool = True
    """Scores of such normed vectors are divided by √size."""
    pooling: Literal["cls", "mean", "pooler"] = "cls"
    """What stands for a sequence: its first vector, the mean of all, or the first through the encoder's own
    pooler."""
    max_query: int = 64
    """Wordpieces of a query that are read."""
    max_passage: int = 288
    """Wordpieces of a passage's body that are read."""
    max_together: int | None = None
    """Wordpieces of query and passage read together, special tokens counted; without it all that the two
    limits above allow."""
    max_answer: int = 10
    """Longest answer span in wordpieces."""
    freeze_embeddings: bool = False
    """Word embeddings never learn: a checkpoint's stay the same in towers and reader."""
    reading: Literal["paper", "together", "released"] = "paper"
    """paper: spans are weighed within their passage, an answer is as likely as all places where it stands;
    together: the same with spans of all passages weighed together; released, as the authors' code does it:
    the answer is the best single one of these (docs/decisions/001)."""
    read_titles: bool = False
    """The reader reads a passage's title before its body, as the document tower does; the paper's reads the
    body alone."""
    null_document: bool = True
    """The null document has a weight among the passages of a masked sentence; pre-training decides."""
    trained_on_questions: bool = False
    """Fine-tuning has taught the span head; before that its answers to questions mean nothing."""
    span_hidden: int = 256
    """Hidden size of the MLP that scores spans."""
    stand_in: str | None = None
    """Fingerprint of a document tower that no passage may be embedded with: an imported query tower, in place
    of one that did not come."""
    calibration: dict[str, float] | None = None
    """What `realmlm calibrate` found for exactly these weights (realmlm.reading.confidence); training on
    forgets it."""

    @classmethod
    def of(cls, record: dict[str, Any], where: Path) -> "ModelConfig":
        """The config that stands in `where`."""
        if unknown := sorted(record.keys() - cls.__dataclass_fields__.keys()):
            raise Mismatch(
                f"{where} has settings this version does not know ({', '.join(unknown)}); upgrade realmlm"
            )
        return cls(**record)

    @property
    def weighs_together(self) -> bool:
        """Spans of all passages share one softmax."""
        return self.reading != "paper"

    def check_one_encoder(self) -> None:
        if self.tower != self.reader:
            raise BadInput(
                "towers and reader of this model are different encoders: the towers cannot begin as the "
                "reader"
            )

    @property
    def max_document(self) -> int:
        return self.max_passage + MAX_TITLE + MOST_SPECIAL

    @property
    def max_joint(self) -> int:
        return self.max_together or self.max_passage + self.max_query + MOST_SPECIAL + (
            MAX_TITLE + 2 if self.read_titles else 0
        )


class Realm(nn.Module):
    """A retriever and a reader that are learned together."""

    def __init__(
        self, config: ModelConfig, *, tower: nn.Module | None = None, reader: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.config = config
        first = Encoder(
            tower if tower is not None else build_encoder(config.tower, pooler=config.pooling == "pooler")
        )
        scale = config.projection**-0.5 if config.projection_norm and config.scale_scores else 1.0
        self.document = new_tower(config, first)
        self.query = new_tower(config, first if config.share_towers else copy.deepcopy(first), scale=scale)
        if config.share_projection:
            self.query.projection = self.document.projection
            self.query.norm = self.document.norm
        body = reader if reader is not None else build_encoder(config.reader)
        self.reader = Reader(Encoder(body), max_answer=config.max_answer, span_hidden=config.span_hidden)
        if config.freeze_embeddings:
            for encoder in (self.document.encoder, self.query.encoder, self.reader.encoder):
                encoder.body.get_input_embeddings().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def retriever_parameters(self) -> list[nn.Parameter]:
        unique = {
            id(parameter): parameter
            for tower in (self.document, self.query)
            for parameter in tower.parameters()
        }
        return list(unique.values())

    def _share_frozen_embeddings(self) -> None:
        """Equal embeddings that never learn are held once."""
        words = self.document.encoder.body.get_input_embeddings()
        for encoder in (self.query.encoder, self.reader.encoder):
            if self.config.freeze_embeddings and torch.equal(
                encoder.body.get_input_embeddings().weight, words.weight
            ):
                encoder.body.set_input_embeddings(words)

    def untie(self) -> None:
        """Give the query tower weights of its own, so that it can be trained while the index stays as it
        is."""
        self.query = copy.deepcopy(self.query)
        self.config = replace(self.config, share_towers=False, share_projection=False)

    def untie_projection(self) -> None:
        """Give the query tower a projection of its own; the encoder stays shared if it was."""
        self.query.projection = copy.deepcopy(self.query.projection)
        self.query.norm = copy.deepcopy(self.query.norm)
        self.config = replace(self.config, share_projection=False)

    def free_query(self, part: str) -> list[nn.Parameter]:
        """Make the query side learn alone while passages and index stay: its whole tower, or its projection;
        gives what learns."""
        if part == "tower":
            self.untie()
            return list(self.query.parameters())
        self.untie_projection()
        self.query.encoder.requires_grad_(False)
        return [*self.query.projection.parameters(), *self.query.norm.parameters()]

    def begin_towers_as_reader(self) -> None:
        """Give the towers the reader's encoder; their projections stay."""
        self.config.check_one_encoder()
        for tower in (self.document, self.query):
            tower.encoder.load_state_dict(self.reader.encoder.state_dict())

    def compute_quickly(self) -> None:
        """Let the encoders compute in bfloat16 where this CPU does so natively: for answering; training and
        measuring compute exactly.

        An index built while answering has the vectors that came of it, and whoever opens it later takes them
        as they are.
        """
        for module in self.modules():
            if isinstance(module, Encoder):
                module.quick = cpu_has_bfloat16()

    def compile_layers(self) -> None:
        """Fuse the work of every encoder's layers; weights and names stay as they are."""
        for encoder in {
            id(part.encoder): part.encoder for part in (self.document, self.query, self.reader)
        }.values():
            encoder.compile_layers()

    def own_state(self) -> dict[str, Tensor]:
        """Every weight once: what the towers share is named by the document tower."""
        config = self.config
        own = {}
        held = set()
        shared = ("query.encoder.",) * config.share_towers + (
            "query.projection.",
            "query.norm.",
        ) * config.share_projection
        for name, tensor in self.state_dict().items():
            if not name.startswith(shared):
                # frozen embeddings may be held once for all
                own[name] = tensor.clone() if tensor.data_ptr() in held else tensor
                held.add(tensor.data_ptr())
        return own

    def load_own_state(self, state: dict[str, Tensor], *, assign: bool = False) -> None:
        """Take these weights over: their values, or with `assign` the tensors themselves, which spares a
        copy."""
        expected = self.own_state()
        state = self._with_query_words(state)
        missing = sorted(set(expected) - set(state))
        surplus = sorted(set(state) - set(expected))
        if missing or surplus:
            raise BadInput(
                f"the weights do not fit the model: missing {missing[:5] or 'none'}, surplus "
                f"{surplus[:5] or 'none'}"
            )
        for name, tensor in state.items():
            if tensor.shape != expected[name].shape:
                raise BadInput(
                    f"the weights do not fit the model: {name} is {tuple(tensor.shape)}, not "
                    f"{tuple(expected[name].shape)}"
                )
        self.load_state_dict(state, strict=False, assign=assign)

    def _with_query_words(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Early versions left frozen word embeddings of a query tower out where they equalled the document
        tower's: these stand in."""
        if self.config.share_towers or not self.config.freeze_embeddings:
            return state
        words = self.query.encoder.body.get_input_embeddings().weight
        name = next(name for name, parameter in self.query.named_parameters() if parameter is words)
        of_documents = {f"query.{name}": state[f"document.{name}"]} if f"document.{name}" in state else {}
        return of_documents | state

    def save_pretrained(
        self,
        folder: str | Path,
        wordpieces: Wordpieces,
        *,
        parents: dict[str, str] | None = None,
        dtype: str = "float32",
    ) -> None:
        """Write config, weights (float32, or packed as float16 or int8) and tokenizer as a model artefact."""
        with publish(Path(folder), kind="model") as draft:
            write_weights(draft.path / WEIGHTS, self.own_state(), dtype=dtype)
            wordpieces.save(draft.path / "tokenizer.json")
            draft.config = asdict(self.config)
            draft.counts["parameters"] = sum(parameter.numel() for parameter in self.parameters())
            draft.parents = {"tokenizer": wordpieces.fingerprint, **(parents or {})}

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, device: str | torch.device = "cpu"
    ) -> tuple["Realm", Wordpieces]:
        """A model and its tokenizer, as saved."""
        folder = Path(folder)
        within = folder / "model"  # a run keeps its model there
        hint = (
            f"did you mean {within}?"
            if within.is_dir()
            else f"mini comes with realmlm; make one: realmlm model --corpus CORPUS --out {folder}"
        )
        manifest = open_artefact(folder, kind="model", hint=hint)
        with undrawn():
            model = cls(ModelConfig.of(manifest.config, folder))
        try:
            model.load_own_state(read_weights(folder / WEIGHTS), assign=True)
            model._share_frozen_embeddings()
        except (OSError, ValueError, BadInput) as error:
            raise ArtefactDamaged(f"{folder / WEIGHTS} cannot be loaded: {error}") from error
        return model.to(device).eval(), Wordpieces.load(folder / "tokenizer.json")


def new_tower(config: ModelConfig, encoder: Encoder, *, scale: float = 1.0) -> Tower:
    """A tower with a fresh projection on an encoder."""
    norm = nn.LayerNorm(config.projection, eps=config.norm_eps) if config.projection_norm else nn.Identity()
    return Tower(
        encoder, nn.Linear(encoder.hidden, config.projection), norm, pooling=config.pooling, scale=scale
    )


def new_model(
    config: ModelConfig, wordpieces: Wordpieces, *, checkpoint: str | None = None, seed: int = 0
) -> Realm:
    """A model to begin with: fresh weights by seed, or all three encoders from a published checkpoint."""
    if config.pooling != "mean" and wordpieces.single.cls is None:
        raise BadInput(
            "the tokenizer has no token that could stand for a sequence, as [CLS] does for BERT; use "
            "--pooling mean"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if checkpoint is None:
            return Realm(config)
        tower = load_encoder(checkpoint)
        reader = load_encoder(checkpoint)
        known = tower.get_input_embeddings().num_embeddings
        if known < len(wordpieces):
            raise BadInput(
                f"'{checkpoint}' knows {known} wordpieces, the corpus's tokenizer has {len(wordpieces)}; "
                f"make the corpus with --tokenizer {checkpoint}"
            )
        _check_tokenizer(checkpoint, wordpieces)
        title = MAX_TITLE + len(wordpieces.pair.between) if config.read_titles else 0
        longest = config.max_passage + max(config.max_query + title, MAX_TITLE) + wordpieces.pair.special
        positions = longest_input(tower) or longest
        if positions < longest:
            raise BadInput(
                f"'{checkpoint}' reads {positions} wordpieces, query and passage together take {longest}; "
                f"make the corpus again with --max-wordpieces {positions - longest + config.max_passage}"
            )
        full = ModelConfig(
            **{**asdict(config), "tower": encoder_config(tower), "reader": encoder_config(reader)}
        )
        model = Realm(full, tower=tower, reader=reader)
        # a sentence encoder's own space is kept to begin with
        if config.projection == model.document.encoder.hidden:
            for side in (model.document, model.query):
                nn.init.eye_(side.projection.weight)
                nn.init.zeros_(side.projection.bias)
        return model


def _check_tokenizer(checkpoint: str, wordpieces: Wordpieces) -> None:
    """The corpus must be cut with the checkpoint's own tokenizer, where the checkpoint brings one."""
    try:
        own = Wordpieces.load(checkpoint)
    except BadInput:
        return
    if own.tokenizer.get_vocab() != wordpieces.tokenizer.get_vocab() or own.pair != wordpieces.pair:
        raise Mismatch(
            f"the corpus was made with another tokenizer than '{checkpoint}'; make it again with --tokenizer "
            f"{checkpoint}"
        )


def tower_fingerprint(config: ModelConfig, tower: Tower) -> str:
    """Identity of a tower, its weights bit for bit and how they are used: an index belongs to the tower that
    made its vectors."""
    used = (
        config.tower,
        config.pooling,
        config.projection_norm,
        config.norm_eps,
        config.max_document,
        tower.scale,
    )
    digest = hashlib.sha256(json.dumps(used, sort_keys=True).encode())
    for name, tensor in sorted(tower.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
