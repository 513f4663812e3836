"""`realmlm import-hf`: makes a model of published checkpoints, and of their passages a corpus with its index.

N passages, D vector size.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from realmlm.corpus.build import write_articles
from realmlm.corpus.store import MAX_CHARACTERS, Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput, Mismatch
from realmlm.index.keep import index_place
from realmlm.index.store import SHARD, ShardedBuild
from realmlm.interop.layout import (
    ARCHITECTURES,
    BLOCKS,
    ROLES,
    SHAPED,
    UNUSED,
    is_unused,
    listing,
    model_settings,
    their_name,
)
from realmlm.interop.records import count_records, read_records
from realmlm.interop.sources import RECORDS, Source, open_source
from realmlm.log import progress, say
from realmlm.model.config import ModelConfig
from realmlm.model.fingerprint import tower_fingerprint
from realmlm.model.realm import Realm
from realmlm.parallel import default_workers
from realmlm.settings import ImportHf
from realmlm.sources.article import Article
from realmlm.storage.artefacts import discard, publish, refuse_existing

_RECORD = 2**16 - 1  # wordpieces: a record is one passage, however long


@dataclass(frozen=True)
class Part:
    """A part of a source: an `embedder`, `query embedder`, `encoder` or `reader`, whose weights have names
    with a common prefix."""

    source: Source
    prefix: str
    kind: str

    def names(self) -> set[str]:
        return {key.removeprefix(self.prefix) for key in self.source.tensors if key.startswith(self.prefix)}


# --- import -------------------------------------------------------------------------------------------------


def import_hf(settings: ImportHf) -> Realm:
    """Join published checkpoints into one model. If a corpus is named, RealmForOpenQA's passages and their
    vectors become a corpus there, with its index."""
    out = settings.out
    corpus = settings.corpus
    refuse_existing(out)
    if corpus is not None:
        refuse_existing(corpus)
        model_place = out.resolve()
        corpus_place = corpus.resolve()
        if model_place.is_relative_to(corpus_place) or corpus_place.is_relative_to(model_place):
            raise BadInput("--out and --corpus are folders of their own; one cannot lie within the other")
    opened = [open_source(name) for name in settings.sources]
    model = join(opened, _tokenizer_of(opened, settings.tokenizer), seed=settings.seed)
    if corpus is not None:
        _import_blocks(opened, model, corpus, dtype=settings.dtype)
    elif any(source.records for source in opened):
        offer = "to take them over, name a place: --corpus FOLDER"
        say(f"the source has passages and their vectors as well; {offer}")
    try:
        model.save_pretrained(out)
    except Exception:
        if corpus is not None:
            discard(corpus)
        raise
    return model


def join(sources: list[Source], wordpieces: Wordpieces, *, seed: int = 0) -> Realm:
    """One model of all parts that the sources have. A part that none has begins from another part's encoder,
    with heads of fresh weights."""
    parts = _roles(sources)
    described = {role: _described(part) for role, part in parts.items()}
    tower = described.get("document") or described.get("query") or described["reader"]
    if "query" in parts and "document" in parts:
        _check_alike(parts, described)
    reader = described.get("reader", tower)
    settings = dict(tower)
    settings |= {name: reader[name] for name in ("reader", "max_answer", "span_hidden", "max_together")}
    settings |= {name: min(tower[name], reader[name]) for name in ("max_query", "max_passage")}
    for which in ("tower", "reader"):
        vocabulary = settings[which]["vocab_size"]
        if len(wordpieces) > vocabulary:
            raise BadInput(f"the tokenizer has {len(wordpieces)} wordpieces, the {which} knows {vocabulary}")
    both = "query" in parts and "document" in parts
    alike = not both or _same_weights(parts["document"], parts["query"])
    spans = "reader" in parts and parts["reader"].kind == "reader"
    config = ModelConfig(**settings, share_towers=alike, share_projection=alike, trained_on_questions=spans)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Realm(config, wordpieces)
    taken = {role: part for role, part in parts.items() if not (alike and role == "query")}
    stands_in = "document" not in parts and "query" in parts
    if stands_in:
        taken["document"] = parts["query"]
    state = {name: tensor.clone() for name, tensor in model.own_state().items()}
    for role, part in taken.items():
        expected = _expected(part, role, state)
        _check_weights(part, {key: tuple(state[name].shape) for key, name in expected.items()})
        if role == "reader":
            _check_tied(part)
        state |= {name: part.source.tensors[key].to(state[name].dtype) for key, name in expected.items()}
    _check_surplus(sources, parts.values(), state)
    _fill_missing(state, parts)
    model.load_own_state(state)
    if stands_in:
        model.config = replace(model.config, stand_in=tower_fingerprint(model.config, model.document))
    return model.eval()


def _described(part: Part) -> dict[str, Any]:
    try:
        return model_settings(part.source.config)
    except BadInput as error:
        raise BadInput(f"{part.source.name}: {error}") from error


def _check_alike(parts: dict[str, Part], described: dict[str, dict[str, Any]]) -> None:
    """Raise unless both towers have the same shape; how they were trained may differ."""
    first = described["document"]
    second = described["query"]
    different = [name for name in SHAPED if first["tower"][name] != second["tower"][name]]
    different += [name for name in ("projection", "norm_eps") if first[name] != second[name]]
    if different:
        names = " and ".join(parts[role].source.name for role in ("document", "query"))
        raise Mismatch(f"{names} do not belong together: their towers differ in {listing(different)}")


def _roles(sources: list[Source]) -> dict[str, Part]:
    """The parts that become the document tower, the query tower and the reader, in this order."""
    roles: dict[str, Part] = {}
    for source in sources:
        for prefix, kind in ARCHITECTURES[source.architecture].items():
            part = Part(source, prefix, kind)
            if kind == "query embedder" and source.architecture == "RealmScorer" and not part.names():
                continue  # a scorer with one embedder for both
            role = ROLES[kind]
            if role in roles:
                what = role if role == "reader" else f"{role} tower"
                both = f"{roles[role].source.name} and {source.name}"
                raise BadInput(f"{both} both bring a {what}; name one of them")
            roles[role] = part
    return {role: roles[role] for role in ("document", "query", "reader") if role in roles}


def _same_weights(first: Part, second: Part) -> bool:
    mine = first.source.tensors
    other = second.source.tensors
    names = {name for name in first.names() | second.names() if not name.startswith(UNUSED["embedder"])}
    pairs = ((mine.get(first.prefix + name), other.get(second.prefix + name)) for name in names)
    return all(a is not None and b is not None and torch.equal(a.float(), b.float()) for a, b in pairs)


def _expected(part: Part, role: str, state: dict[str, Tensor]) -> dict[str, str]:
    """The name here of each weight of a part, by its key in the source; `role` is what the part becomes."""
    own = f"{role}."
    names = {name: their_name(part.kind, name.removeprefix(own)) for name in state if name.startswith(own)}
    return {part.prefix + theirs: name for name, theirs in names.items() if theirs is not None}


def _check_weights(part: Part, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise unless the source has all these weights, in these shapes and finite."""
    tensors = part.source.tensors
    name = part.source.name
    if missing := set(shapes) - set(tensors):
        lacks = f"{name} lacks weights of {part.source.architecture}"
        raise BadInput(f"{lacks}: {listing(missing)}; fetch it again")
    found = {key: tuple(tensors[key].shape) for key in shapes}
    if wrong := [
        f"{key} {found[key]} instead of {shapes[key]}" for key in shapes if found[key] != shapes[key]
    ]:
        others = f"{name} has weights of other shapes than its config describes"
        raise BadInput(f"{others}: {listing(wrong)}; is the config of another model?")
    if odd := [key for key in shapes if not _is_finite(tensors[key])]:
        raise BadInput(f"{name} has weights that are no finite numbers: {listing(odd)}; fetch it again")


def _is_finite(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.float().isfinite().all())


def _check_tied(part: Part) -> None:
    """Raise if a masked-LM head has output weights of its own. Those of the published ones are the word
    embeddings, and there is no place here for others."""
    decoder = part.source.tensors.get(f"{part.prefix}cls.predictions.decoder.weight")
    words = part.source.tensors[f"{part.prefix}realm.embeddings.word_embeddings.weight"]
    if part.kind == "encoder" and decoder is not None and not torch.equal(decoder.float(), words.float()):
        head = f"{part.source.name} has a masked-LM head that is not tied to its word embeddings"
        raise BadInput(f"{head}; such a one cannot be imported")


def _check_surplus(sources: list[Source], parts: Iterable[Part], state: dict[str, Tensor]) -> None:
    """Raise if a source has weights that were not taken, except those that no output depends on."""
    taken: dict[str, set[str]] = {source.name: {BLOCKS} for source in sources}
    for part in parts:
        role = "document" if "embedder" in part.kind else "reader"
        taken[part.source.name] |= set(_expected(part, role, state))
    for source in sources:
        left = source.tensors.keys() - taken[source.name]
        if surplus := {key for key in left if not is_unused(source.architecture, key)}:
            others = f"{source.name} has weights that {source.architecture} does not"
            raise BadInput(f"{others}: {listing(surplus)}; is it another model?")


def _fill_missing(state: dict[str, Tensor], parts: dict[str, Part]) -> None:
    """Give a reader that no source has the tower's encoder, or a tower the reader's, and tell the user, for
    such a part is yet to be trained."""
    towers = "document" in parts or "query" in parts
    if not towers:
        pooler = {f"document.encoder.body.pooler.dense.{name}": name for name in ("weight", "bias")}
        reader = parts["reader"]
        for name in [name for name in state if name.startswith("document.encoder.")]:
            twin = name.replace("document.", "reader.", 1)
            weight = state.get(twin, state[name])
            if name in pooler:  # readers do without, but the source of this one may have it
                key = f"{reader.prefix}realm.pooler.dense.{pooler[name]}"
                weight = reader.source.tensors.get(key, weight).to(weight.dtype)
            state[name] = weight.clone()
        say("no source brings towers: they begin from the reader's encoder, with fresh projections")
    if "reader" not in parts:
        for name in [name for name in state if name.startswith("reader.encoder.")]:
            state[name] = state[name.replace("reader.", "document.", 1)].clone()
        say("no source brings a reader: it begins from the tower's encoder, with fresh heads")
    elif parts["reader"].kind == "encoder":
        fresh = "it begins from fresh weights, `realmlm finetune` teaches it"
        say(f"no source brings a head for answers: {fresh}")
    if towers and "document" not in parts:
        cure = "none can be added or embedded again; to do so, name that embedder as well"
        say(f"no source brings the embedder of the passages: {cure}")


def _tokenizer_of(sources: list[Source], file: Path | None) -> Wordpieces:
    if file is not None:
        return Wordpieces.load(file)
    found = {source.name: source.wordpieces for source in sources if source.wordpieces is not None}
    if not found:
        names = listing(source.name for source in sources)
        cure = "name one: --tokenizer vocab.txt"
        raise BadInput(f"no tokenizer.json or vocab.txt beside {names}; {cure}")
    if len({_rules(pieces) for pieces in found.values()}) > 1:
        raise Mismatch(f"{' and '.join(found)} have different tokenizers; they do not belong together")
    return next(iter(found.values()))


def _rules(wordpieces: Wordpieces) -> str:
    """Pieces and normalisation: tokenizers that agree in both cut every text alike."""
    record = json.loads(wordpieces.tokenizer.to_str())
    return json.dumps([wordpieces.tokenizer.get_vocab(), record["normalizer"]], sort_keys=True)


# --- passages and their vectors -----------------------------------------------------------------------------


def _import_blocks(sources: list[Source], model: Realm, folder: Path, *, dtype: str) -> None:
    """Make a corpus of the records, each a passage without a title, and an index of their vectors: both or
    nothing."""
    source = next((source for source in sources if source.records and BLOCKS in source.tensors), None)
    if source is None or source.records is None:
        only = "a corpus comes with RealmForOpenQA only; leave --corpus out"
        raise BadInput(f"no source has both {BLOCKS} and {RECORDS}: {only}")
    vectors_ND = source.tensors[BLOCKS]
    count = count_records(source.records)
    if vectors_ND.shape != (count, model.config.projection):
        misfit = f"{BLOCKS} in the shape {tuple(vectors_ND.shape)} for {count:,} records"
        raise BadInput(f"{source.name} has {misfit}; they do not belong together")
    aside = folder.parent / f".{folder.name}.importing"  # a kill leaves this, and nothing at `folder`
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with (
            publish(aside, kind="corpus") as draft,
            progress("reading records", count, unit="passages") as bar,
        ):
            articles = _articles(source.records, bar.advance)
            writer = write_articles(
                draft, articles, model.wordpieces, max_wordpieces=_RECORD, workers=default_workers()
            )
            if not writer.passages == writer.articles == count:
                counts = f"{count:,} records, but {writer.passages:,} passages"
                raise BadInput(f"{source.records}: {counts}; some record gives no wordpiece")
            draft.config |= {"sources": [RECORDS], "tokenizer": f"of {source.architecture}"}
            draft.config["max_wordpieces"] = model.config.max_passage  # more are stored, but not read
            draft.config["vectors"] = tower_fingerprint(model.config, model.document)
            draft.counts["skipped"] = 0
        _import_vectors(vectors_ND, model, Corpus.open(aside), dtype=dtype)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _articles(file: Path, advance: Callable[[int], None]) -> Iterator[Article]:
    for number, record in enumerate(read_records(file)):
        try:
            text = record.decode("utf-8")
        except UnicodeDecodeError as error:
            why = f"{error.reason} at byte {error.start}"
            raise BadInput(f"{file}: record {number} is not UTF-8 text ({why})") from error
        if not text.strip() or len(text) > MAX_CHARACTERS:
            wrong = f"{file}: record {number} has {len(text):,} characters"
            raise BadInput(f"{wrong}; a passage has 1 to {MAX_CHARACTERS:,}")
        yield Article("", text, f"record {number}")
        advance(1)


def _import_vectors(vectors_ND: Tensor, model: Realm, corpus: Corpus, *, dtype: str) -> None:
    fingerprint = tower_fingerprint(model.config, model.document)
    place = index_place(corpus, fingerprint, "exact")
    borders = [*range(0, len(vectors_ND), SHARD), len(vectors_ND)]
    plan = {"weights": fingerprint, "corpus": corpus.fingerprint, "state": corpus.state, "corpus_edits": 0}
    plan |= {"borders": borders, "dim": vectors_ND.shape[1], "dtype": dtype, "kind": "exact", "step": 0}
    build = ShardedBuild(place.parent / f".{place.name}.partial", plan)
    for shard in range(build.shards):
        first = borders[shard]
        last = borders[shard + 1]
        vectors = vectors_ND[first:last].float()
        if dtype == "float16" and _is_finite(vectors) and not _is_finite(vectors.half()):
            raise BadInput(f"{BLOCKS} has numbers too large for float16; keep them with --dtype float32")
        build.put(shard, torch.arange(first, last), vectors)
    build.publish(place)
