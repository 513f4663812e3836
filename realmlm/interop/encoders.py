"""`realmlm export encoders`: both towers for other programs, as sentence-transformers folders or as ONNX.

A tower is W · encoder(·), with LayerNorm and a scale where it has them. sentence-transformers has a module
for each part but the scale, and its LayerNorm has one epsilon; both are put into the weights beside them:

    LN_ε(x) = LN_e(s · x)  where s = √(e/ε)        c · (γ x̂ + β) = (cγ) x̂ + cβ
"""

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors
from torch import Tensor, nn

from realmlm.corpus.store import MAX_TITLE
from realmlm.corpus.wordpieces import Layout, Specials, Wordpieces
from realmlm.errors import BadInput, require
from realmlm.model.encoders import Encoder, Tower, load_encoder, pooling_layer
from realmlm.model.inputs import Inputs
from realmlm.model.realm import Realm
from realmlm.model.words import WORDS
from realmlm.settings import ExportEncoders
from realmlm.storage.artefacts import publish

_EPS = 1e-5  # of sentence-transformers' LayerNorm
_SAME = 1e-5  # vectors of an exported tower differ by no more
_NAMES = ("input_ids", "attention_mask", "token_type_ids")
_POOLING = {"mean_tokens": "mean", "cls_token": 0, "lasttoken": -1}
_OPSET = 17
_PROBES = (["Which animal is the symbol of the town?", "symbol"], ["The heron.", "A town"])


def export_encoders(settings: ExportEncoders) -> str:
    """Write both towers, `query` and `passages`, each a folder of its own; says what was made."""
    realm = Realm.from_pretrained(settings.model)
    pieces = realm.wordpieces
    untitled = replace(pieces.pair, before=pieces.pair.before + pieces.pair.between, between=())
    sides = {
        "query": _Side(realm, realm.query, pieces.single, pieces.single),
        "passages": _Side(realm, realm.document, untitled, pieces.pair),
    }
    if realm.config.stand_in is not None:
        raise BadInput(f"{settings.model} came without a document tower: there is no second tower to export")
    with publish(settings.out, kind="encoders") as draft:
        draft.config = {"format": settings.format, "dim": realm.config.projection}
        for name, side in sides.items():
            folder = draft.path / name
            folder.mkdir()
            side.write_tokenizer(folder)
            if settings.format == "onnx":
                side.write_onnx(folder / "model.onnx")
            else:
                side.write_modules(folder)
        (draft.path / "README.md").write_text(_readme(settings.format, realm), "utf-8")
    return f"{settings.out}: query/ and passages/, vectors of {realm.config.projection} numbers"


class _Side:
    """A tower and how its texts are written: one text by `single`, a pair by `pair`."""

    def __init__(self, realm: Realm, tower: Tower, single: Layout, pair: Layout) -> None:
        self.tower = tower
        self.wordpieces = realm.wordpieces
        self.single = single
        self.pair = pair
        self.longest = realm.config.max_query + single.special
        if tower is realm.document:
            self.longest = realm.config.max_passage + MAX_TITLE + pair.special
        body = tower.encoder.body.config
        self.family = body.model_type
        self.described = realm.config.tower
        if self.family == WORDS:
            why = "towers of words are no encoder that other programs know"
            raise BadInput(f"{why}; give them the vectors: realmlm export vectors")
        if not tower.encoder.takes_tokens_alone:
            why = f"encoders of the family '{self.family}' are told more than tokens here"
            raise BadInput(f"{why}; the towers of such a model cannot be exported")

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the encoder is given."""
        return _NAMES if self.tower.encoder.takes_segments else _NAMES[:2]

    # --- the tokenizer --------------------------------------------------------------------------------------

    def tokenizer(self) -> Tokenizer:
        """The model's, with special tokens around texts as the tower reads them, cut and padded."""
        tokenizer = Tokenizer.from_str(self.wordpieces.tokenizer.to_str())
        used = {token for token, _ in (*self.pair.before, *self.pair.between, *self.pair.after)}
        used |= {token for token, _ in (*self.single.before, *self.single.after)}
        tokenizer.post_processor = processors.TemplateProcessing(
            single=_template(self.single, self.wordpieces, ["A"]),
            pair=_template(self.pair, self.wordpieces, ["A", "B"]),
            special_tokens=[(_text(self.wordpieces, token), token) for token in sorted(used)],
        )
        pad = self.wordpieces.pad
        tokenizer.enable_padding(pad_id=pad, pad_token=_text(self.wordpieces, pad))
        tokenizer.enable_truncation(self.longest)
        return tokenizer

    def write_tokenizer(self, folder: Path) -> None:
        self.tokenizer().save(str(folder / "tokenizer.json"))
        roles = {"pad_token": self.wordpieces.pad, "mask_token": self.wordpieces.mask}
        roles |= {"unk_token": self.wordpieces.unk, "sep_token": self.wordpieces.sep}
        roles |= {} if self.wordpieces.cls is None else {"cls_token": self.wordpieces.cls}
        config: dict[str, Any] = {name: _text(self.wordpieces, token) for name, token in roles.items()}
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": self.longest}
        _write_json(folder / "tokenizer_config.json", config | {"model_input_names": self.inputs})

    def probe(self) -> Inputs:
        """Some texts as the tower is given them."""
        texts = [tuple(pair) if len(self.pair.between) else pair[0] for pair in _PROBES]
        encodings = self.tokenizer().encode_batch(texts)
        arrays = ([getattr(one, name) for one in encodings] for name in ("ids", "attention_mask", "type_ids"))
        return _inputs(self.pair, *(torch.tensor(rows) for rows in arrays))

    # --- sentence-transformers ------------------------------------------------------------------------------

    def write_modules(self, folder: Path) -> None:
        """Transformer, Pooling, Dense and LayerNorm."""
        from transformers import AutoConfig

        body = self.tower.encoder.body
        weights = {
            name: tensor for name, tensor in body.state_dict().items() if not name.startswith("pooler.")
        }
        save_file(_plain(weights), folder / "model.safetensors", {"format": "pt"})
        _write_json(folder / "config.json", {**self.described, "dtype": "float32"})
        bare = pooling_layer(AutoConfig.for_model(self.family), False)
        reading = {"max_seq_length": self.longest, "do_lower_case": False, "model_args": bare}
        _write_json(folder / "sentence_bert_config.json", reading)
        modules = ["Transformer"]
        for number, (kind, config, tensors) in enumerate(self._heads(), start=1):
            place = folder / f"{number}_{kind}"
            place.mkdir()
            _write_json(place / "config.json", config)
            if tensors:
                save_file(_plain(tensors), place / "model.safetensors")
            modules.append(kind)
        records = [
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{kind}" if number else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(modules)
        ]
        _write_json(folder / "modules.json", records)
        _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "dot"})
        self._check_encoder(folder)

    def _heads(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Tensor]]]:
        """What follows the encoder: kind, config and weights of each module."""
        tower = self.tower
        hidden = tower.encoder.hidden
        place = "mean" if tower.pooling == "mean" else self.pair.cls
        mode = next((name for name, stands in _POOLING.items() if stands == place), None)
        if mode is None:
            raise BadInput("the token that stands for a text is neither its first nor its last; use ONNX")
        modes = {f"pooling_mode_{name}": name == mode for name in _POOLING}
        yield "Pooling", {"word_embedding_dimension": hidden, **modes}, {}
        if tower.pooling == "pooler":
            dense = tower.encoder.body.pooler.dense
            yield _dense(dense.weight, dense.bias, "Tanh")
        projection = tower.projection
        if isinstance(tower.norm, nn.LayerNorm):
            inner = math.sqrt(_EPS / tower.norm.eps)
            yield _dense(projection.weight * inner, projection.bias * inner, "Identity")
            norm = {
                "norm.weight": tower.norm.weight * tower.factor,
                "norm.bias": tower.norm.bias * tower.factor,
            }
            yield "LayerNorm", {"dimension": len(tower.norm.weight)}, norm
        else:
            yield _dense(projection.weight * tower.factor, projection.bias * tower.factor, "Identity")

    @torch.inference_mode()
    def _check_encoder(self, folder: Path) -> None:
        """Does transformers make the same encoder of what was written?"""
        inputs = self.probe()
        theirs = Encoder(load_encoder(folder)).eval()(inputs)
        if not torch.allclose(theirs, self.tower.encoder(inputs), atol=_SAME):
            why = f"transformers reads encoders of the family '{self.family}' otherwise"
            raise BadInput(f"{why}; export them with --format onnx")

    # --- ONNX -----------------------------------------------------------------------------------------------

    def write_onnx(self, file: Path) -> None:
        """The whole tower as one graph, from tokens to vectors."""
        require("onnx", extra="onnx", why="writing ONNX")
        inputs = self.probe()
        given = (inputs.tokens_NL, inputs.attention_NL, inputs.segments_NL)[: len(self.inputs)]
        axes: dict[str, Any] = {name: {0: "texts", 1: "wordpieces"} for name in self.inputs}
        if hasattr(self.tower.encoder.body, "set_attn_implementation"):
            self.tower.encoder.body.set_attn_implementation("eager")
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # what tracing fixes is checked by whoever runs the graph
            torch.onnx.export(
                _Graph(self.tower, self.pair).eval(),
                given,
                str(file),
                dynamo=False,
                input_names=list(self.inputs),
                output_names=["vectors"],
                dynamic_axes=axes | {"vectors": {0: "texts"}},
                opset_version=_OPSET,
            )


class _Graph(nn.Module):
    """A tower from tensors to vectors."""

    def __init__(self, tower: Tower, layout: Layout) -> None:
        super().__init__()
        self.tower = tower
        self.layout = layout

    def forward(self, tokens_NL: Tensor, attention_NL: Tensor, segments_NL: Tensor | None = None) -> Tensor:
        segments_NL = torch.zeros_like(tokens_NL) if segments_NL is None else segments_NL
        return self.tower(_inputs(self.layout, tokens_NL, attention_NL, segments_NL))


def _inputs(layout: Layout, tokens_NL: Tensor, attention_NL: Tensor, segments_NL: Tensor) -> Inputs:
    nowhere_N = torch.zeros_like(tokens_NL[:, 0])  # where titles and bodies begin: no tower asks
    lengths_N = np.zeros(len(tokens_NL), dtype=np.int64)
    return Inputs(layout, lengths_N, tokens_NL, attention_NL, segments_NL, nowhere_N, nowhere_N)


def _dense(weight: Tensor, bias: Tensor, activation: str) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    config: dict[str, Any] = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": True}
    config["activation_function"] = f"torch.nn.modules.{_PLACES[activation]}.{activation}"
    return "Dense", config, {"linear.weight": weight, "linear.bias": bias}


_PLACES = {"Identity": "linear", "Tanh": "activation"}


def _template(layout: Layout, wordpieces: Wordpieces, texts: list[str]) -> list[str]:
    """How tokenizers writes a layout down: special tokens and texts, each with its segment."""

    def special(tokens: Specials) -> list[str]:
        return [f"{_text(wordpieces, token)}:{segment}" for token, segment in tokens]

    last = f"${texts[-1]}:{layout.second}"
    first = [f"${texts[0]}:{layout.first}", *special(layout.between)] if len(texts) == 2 else []
    return [*special(layout.before), *first, last, *special(layout.after)]


def _text(wordpieces: Wordpieces, token: int) -> str:
    return str(wordpieces.tokenizer.id_to_token(token))


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().float().contiguous().clone() for name, tensor in tensors.items()}


def _write_json(file: Path, record: Any) -> None:
    file.write_text(json.dumps(record, indent=2), "utf-8")


def _readme(form: str, realm: Realm) -> str:
    """How the two are used, what a title is to them, and what they leave out."""
    config = realm.config
    mask = _text(realm.wordpieces, realm.wordpieces.mask)
    use = _ONNX_USE if form == "onnx" else _MODULES_USE
    return f"""# Two towers of a REALM retriever

`query/` embeds questions, `passages/` embeds passages; vectors have {config.projection} numbers. The score of
a passage is the inner product of its vector with the question's, f(x,z): neither is normalised, so compare by
inner product, not by cosine.

{use}
A passage is read with its title: `[CLS] title [SEP] text [SEP]`, which is what a pair of texts becomes here.
A text alone becomes `[CLS] [SEP] text [SEP]`, a passage without a title. Special tokens and their segments
stand in `tokenizer.json`. A sentence with a gap has the tokenizer's own mask in it, {mask}.

Questions are cut after {config.max_query} wordpieces. A passage has at most {config.max_passage} wordpieces
of text and {MAX_TITLE} of title; longer ones are cut to {config.max_passage + MAX_TITLE} together, so cut
them before to have the vectors that `realmlm` gives.
"""


_MODULES_USE = """```python
from sentence_transformers import SentenceTransformer

query, passages = SentenceTransformer("query"), SentenceTransformer("passages")
query.encode(["Who built the harbour?"]) @ passages.encode([("Harbour", "It was built by …")]).T
```
"""
_ONNX_USE = """```python
import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

tokenizer, tower = Tokenizer.from_file("passages/tokenizer.json"), InferenceSession("passages/model.onnx")
read = tokenizer.encode_batch([("Harbour", "It was built by …")])
arrays = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
given = {one.name: np.array([getattr(each, arrays[one.name]) for each in read]) for one in tower.get_inputs()}
(vectors,) = tower.run(["vectors"], given)
```
"""
