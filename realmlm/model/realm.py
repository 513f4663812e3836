"""REALM: the retriever's two towers and the reader, saved and loaded as one model artefact."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from realmlm.bundled import MINI, model_place
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactDamaged, BadInput, Mismatch
from realmlm.model.config import ModelConfig
from realmlm.model.cut import CutLayers
from realmlm.model.encoders import Encoder, Reader, Tower, build_encoder
from realmlm.model.fingerprint import tower_fingerprint
from realmlm.model.inputs import TakesInputs
from realmlm.model.int8 import Int8, hold_int8, read_int8, read_weights, same_weight, write_weights
from realmlm.ranks import Ranks
from realmlm.storage.artefacts import open_artefact, publish
from realmlm.storage.mirrors import here

Stored = TypeVar("Stored")
WEIGHTS = "model.safetensors"


class Realm(TakesInputs, nn.Module):
    """A retriever and a reader that are learned together, with the tokenizer they share.

    ```python
    realm = Realm.from_pretrained("mini")
    realm.embed_queries(["Who built the harbour?"]) @ realm.embed_passages(["The harbour was built …"]).T
    ```
    """

    config: ModelConfig
    wordpieces: Wordpieces
    query: Tower
    document: Tower
    reader: Reader

    def __init__(
        self,
        config: ModelConfig,
        wordpieces: Wordpieces,
        *,
        tower: nn.Module | None = None,
        reader: nn.Module | None = None,
        draw: bool = True,
    ) -> None:
        """`tower` and `reader` are encoders to begin with. Otherwise they are built as the config says, with
        weights drawn at random or, with `draw=False`, left for someone to load."""
        super().__init__()
        self.config = config
        self.wordpieces = wordpieces
        self._cut: CutLayers | None = None
        pooler = config.pooling == "pooler"
        first = Encoder(build_encoder(config.tower, pooler=pooler, draw=draw) if tower is None else tower)
        scale = config.projection**-0.5 if config.projection_norm and config.scale_scores else 1.0
        self.document = new_tower(config, first)
        self.query = new_tower(config, first if config.share_towers else copy.deepcopy(first), scale=scale)
        if config.share_projection:
            self.query.projection = self.document.projection
            self.query.norm = self.document.norm
        if config.learned_scale:
            self.query.learn_scale()
        body = build_encoder(config.reader, draw=draw) if reader is None else reader
        self.reader = Reader(
            Encoder(body),
            max_answer=config.max_answer,
            span_hidden=config.span_hidden,
            passage_logit=config.passage_logit,
        )
        if config.freeze_embeddings:
            for encoder in self.encoders:
                encoder.body.get_input_embeddings().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def encoders(self) -> list[Encoder]:
        """The encoders of document tower, query tower and reader, each once."""
        return list(dict.fromkeys((self.document.encoder, self.query.encoder, self.reader.encoder)))

    def retriever_parameters(self) -> list[nn.Parameter]:
        """The weights of both towers, each once."""
        return list(dict.fromkeys([*self.document.parameters(), *self.query.parameters()]))

    def learn_scale(self) -> None:
        """Let the scale of f(x,z), and so how sure p(z|x) is, be learned. The order of passages by
        f(x,z), and an index of them, do not depend on it; the weight λ of word matching beside it does."""
        self.query.learn_scale()
        self.config = replace(self.config, learned_scale=True)

    def train(self, mode: bool = True) -> "Realm":
        """As every module's; an encoder that does not learn has no dropout."""
        super().train(mode)
        for encoder in self.encoders:
            if not any(parameter.requires_grad for parameter in encoder.parameters()):
                encoder.eval()
        return self

    def _share_frozen_embeddings(self) -> None:
        """Equal embeddings that never learn are held once."""
        words = self.document.encoder.body.get_input_embeddings()
        for encoder in (self.query.encoder, self.reader.encoder):
            if self.config.freeze_embeddings and same_weight(encoder.body.get_input_embeddings(), words):
                encoder.body.set_input_embeddings(words)

    def untie(self) -> None:
        """Give the query tower weights of its own, to be trained while the index stays as it is."""
        self.query = copy.deepcopy(self.query)
        self.config = replace(self.config, share_towers=False, share_projection=False)

    def untie_projection(self) -> None:
        """Give the query tower a projection of its own; the encoder stays shared if it was."""
        self.query.projection = copy.deepcopy(self.query.projection)
        self.query.norm = copy.deepcopy(self.query.norm)
        self.config = replace(self.config, share_projection=False)

    def free_query(self, part: str) -> list[nn.Parameter]:
        """Let the query side alone learn, its whole `tower` or its `projection`; gives these weights."""
        if part == "tower":
            self.untie()
            return list(self.query.parameters())
        self.untie_projection()
        self.query.encoder.requires_grad_(False)
        scale = [] if self.query.log_scale is None else [self.query.log_scale]
        return [*self.query.projection.parameters(), *self.query.norm.parameters(), *scale]

    def learn_passage_logit(self) -> None:
        """Give the reader a head that says whether a passage answers the question, if it has none."""
        if self.wordpieces.pair.cls is None:
            lacking = "the tokenizer has no token that could stand for question and passage"
            raise BadInput(f"{lacking}, as [CLS] does for BERT; leave out --passage-logit")
        if not self.config.passage_logit:
            self.reader.add_passage_head()
            self.config = replace(self.config, passage_logit=True)

    def allow_title_answers(self) -> None:
        """Let words of a passage's title be answers too."""
        if not self.config.read_titles:
            raise BadInput("the model reads no titles; make one with --read-titles for --title-answers")
        self.config = replace(self.config, title_answers=True)

    def allow_answers(self, wordpieces: int) -> None:
        """Let answers be so long; spans of any length are scored by the same weights."""
        if not 1 <= wordpieces < self.config.max_query:
            limits = f"answers must have 1 to {self.config.max_query - 1} wordpieces, not {wordpieces}"
            raise BadInput(
                f"{limits}: without a passage they follow the question in its {self.config.max_query}"
            )
        self.reader.span_head.max_width = wordpieces
        self.config = replace(self.config, max_answer=wordpieces)

    def begin_towers_as_reader(self) -> None:
        """Give the towers the reader's encoder; their projections stay."""
        self.config.check_one_encoder()
        for tower in (self.document, self.query):
            tower.encoder.load_state_dict(self.reader.encoder.state_dict())

    def compute_quickly(self) -> None:
        """Let the encoders compute in bfloat16 on a GPU, and on a CPU in the way that is fastest there
        (`realmlm.model.quick`): for answering, once the weights change no more.

        An index built meanwhile has such vectors, and is used as it is later on.
        """
        for module in self.modules():
            if isinstance(module, Encoder):
                module.quick = True

    def compile_layers(self) -> None:
        """Fuse the work of every encoder's layers; weights and names stay as they are."""
        for encoder in self.encoders:
            encoder.compile_layers()

    # --- cut over ranks -------------------------------------------------------------------------------------

    def cut_layers(self, ranks: Ranks) -> None:
        """From now on each rank holds a part of every layer: other parameters than before, to be trained."""
        self._cut = CutLayers([encoder.layers for encoder in self.encoders], ranks)
        for encoder in self.encoders:
            encoder.cut = True

    def whole(self) -> AbstractContextManager[None]:
        """While it is entered, by all ranks, layers that are cut are whole, and not to be trained."""
        return nullcontext() if self._cut is None else self._cut.whole()

    def join_layers(self) -> None:
        """Make layers that were cut whole again, on all ranks."""
        if self._cut is not None:
            self._cut.join()
            self._cut = None
            for encoder in self.encoders:
                encoder.cut = False

    def own_state(self) -> dict[str, Tensor]:
        """Every weight once: what the towers share is named by the document tower."""
        config = self.config
        own = {}
        held = set()
        shared = ("query.encoder.",) * config.share_towers
        shared += ("query.projection.", "query.norm.") * config.share_projection
        for name, tensor in self.state_dict().items():
            if not name.startswith(shared):
                # frozen embeddings may be held once for all
                own[name] = tensor.clone() if tensor.data_ptr() in held else tensor
                held.add(tensor.data_ptr())
        return own

    def load_own_state(self, state: dict[str, Tensor], *, assign: bool = False) -> None:
        """Take these weights over: their values, or with `assign` the tensors themselves, without a copy."""
        state = self._with_query_words(state)
        self._check_fit({name: tensor.shape for name, tensor in state.items()})
        self.load_state_dict(state, strict=False, assign=assign)

    def _load_file(self, file: Path, *, int8: bool) -> None:
        """The weights of a file; with `int8`, matrices that it has in 8 bits stay so."""
        if not int8:
            return self.load_own_state(read_weights(file), assign=True)
        state, matrices = read_int8(file)
        matrices = self._with_query_words(matrices)
        shapes = {name: tensor.shape for name, tensor in state.items()}
        self._check_fit(shapes | {name: rows_RC.shape for name, (rows_RC, _) in matrices.items()})
        for name in matrices.keys() - hold_int8(self, matrices):
            rows_RC, scale_R = matrices[name]
            state[name] = rows_RC.float() * scale_R[:, None]
        self.load_state_dict(state, strict=False, assign=True)

    def _check_fit(self, shapes: dict[str, torch.Size]) -> None:
        expected = self.own_state()
        missing = sorted(expected.keys() - shapes.keys())
        surplus = sorted(shapes.keys() - expected.keys())
        if missing or surplus:
            lists = f"missing {missing[:5] or 'none'}, surplus {surplus[:5] or 'none'}"
            raise BadInput(f"the weights do not fit the model: {lists}")
        for name, shape in shapes.items():
            fitting = tuple(expected[name].shape)
            if tuple(shape) != fitting:
                raise BadInput(f"the weights do not fit the model: {name} is {tuple(shape)}, not {fitting}")

    def _with_query_words(self, state: dict[str, Stored]) -> dict[str, Stored]:
        """Add the query tower's frozen words: early versions left out what equals the document tower's."""
        if self.config.share_towers or not self.config.freeze_embeddings:
            return state
        words = self.query.encoder.body.get_input_embeddings().weight
        name = next(name for name, parameter in self.query.named_parameters() if parameter is words)
        stands_in = f"document.{name}"
        return ({f"query.{name}": state[stands_in]} if stands_in in state else {}) | state

    def save_pretrained(
        self, folder: str | Path, *, parents: dict[str, str] | None = None, dtype: str = "float32"
    ) -> None:
        """Write config, weights and tokenizer as a model artefact; `dtype` is float32, float16 or int8."""
        with publish(Path(folder), kind="model") as draft:
            write_weights(draft.path / WEIGHTS, self.own_state(), dtype=dtype)
            self.wordpieces.save(draft.path / "tokenizer.json")
            draft.config = asdict(self.config)
            draft.counts["parameters"] = self.size
            draft.parents = {"tokenizer": self.wordpieces.fingerprint, **(parents or {})}

    @property
    def size(self) -> int:
        """How many parameters it has."""
        in_int8 = sum(part.rows_RC.numel() for part in self.modules() if isinstance(part, Int8))
        return in_int8 + sum(parameter.numel() for parameter in self.parameters())

    @classmethod
    def from_pretrained(
        cls, model: str | Path = MINI, *, device: str | torch.device = "cpu", int8: bool = False
    ) -> "Realm":
        """A saved model with its tokenizer: a folder, a URL, or `mini`, the one that comes with realmlm.

        With `int8`, matrices stored in 8 bits stay so in memory: same answers, but no further training.
        """
        folder = here(model_place(model))
        within = folder / "model"  # a run keeps its model there
        hint = f"mini comes with realmlm; make one: realmlm model --corpus CORPUS --out {folder}"
        hint = f"did you mean {within}?" if within.is_dir() else hint
        if (folder.parent / "verdict.json").exists():
            hint = "adapting found nothing surely better and kept no model; use the one that was adapted"
        manifest = open_artefact(folder, kind="model", hint=hint)
        config = ModelConfig.of(manifest.config, folder)
        wordpieces = Wordpieces.load(folder / "tokenizer.json")
        try:
            with torch.random.fork_rng(devices=[]):  # heads draw their weights
                realm = cls(config, wordpieces, draw=False)
        except (TypeError, ValueError, RuntimeError, OverflowError, ZeroDivisionError) as error:
            if "allocate" in str(error):
                raise
            why = f"{folder} describes a model that cannot be built ({str(error).splitlines()[0]})"
            raise ArtefactDamaged(f"{why}: do not trust it, or make it again") from error
        try:
            realm._load_file(folder / WEIGHTS, int8=int8)
            realm._share_frozen_embeddings()
        except (OSError, ValueError, BadInput) as error:
            raise ArtefactDamaged(f"{folder / WEIGHTS} cannot be loaded: {error}") from error
        return realm.to(device).eval()

    # --- vectors --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def embed_queries(self, texts: Sequence[str], *, batch: int = 64) -> Tensor:
        """Embed_query(x) of each text [N, D], on the CPU; f(x,z) is its inner product with Embed_doc(z)."""
        tokens = [self.wordpieces.encode_query(text) for text in _texts(texts)]
        parts = [tokens[first : first + batch] for first in range(0, len(tokens), batch)]
        vectors = [self.query(self.query_inputs(part).to(self.device)).cpu() for part in parts]
        return torch.cat([torch.empty(0, self.config.projection), *vectors])

    @torch.inference_mode()
    def embed_passages(
        self, texts: Sequence[str], titles: Sequence[str] | None = None, *, batch: int = 64
    ) -> Tensor:
        """Embed_doc(z) of each text [N, D], on the CPU; what is longer than a passage is cut off."""
        if self.config.stand_in and tower_fingerprint(self.config, self.document) == self.config.stand_in:
            raise no_embedder()
        texts = _texts(texts)
        names = [""] * len(texts) if titles is None else _texts(titles)
        if len(names) != len(texts):
            raise BadInput(f"{len(texts)} texts came with {len(names)} titles; give each text one")
        bodies = [self.wordpieces.encode(text)[: self.config.max_passage] for text in texts]
        heads = [self.wordpieces.encode(title) for title in names]
        vectors = [torch.empty(0, self.config.projection)]
        for first in range(0, len(bodies), batch):
            part = slice(first, first + batch)
            inputs = self.document_inputs(heads[part], bodies[part])
            vectors.append(self.document(inputs.to(self.device)).cpu())
        return torch.cat(vectors)


def no_embedder() -> Mismatch:
    """Why a model whose document tower only stands in for one embeds nothing."""
    return Mismatch(
        "this model cannot embed passages: RealmForOpenQA came without the embedder of its passages; "
        "import it again with that embedder named as well: realmlm import-hf OPENQA EMBEDDER …"
    )


def _texts(texts: Sequence[str]) -> Sequence[str]:
    """A single text would be taken for its letters."""
    if isinstance(texts, str):
        raise BadInput('give a list of texts, ["…"], not one text')
    return texts


def new_tower(config: ModelConfig, encoder: Encoder, *, scale: float = 1.0) -> Tower:
    """A tower with a fresh projection on an encoder."""
    norm = nn.LayerNorm(config.projection, eps=config.norm_eps) if config.projection_norm else nn.Identity()
    projection = nn.Linear(encoder.hidden, config.projection)
    return Tower(encoder, projection, norm, pooling=config.pooling, scale=scale)
