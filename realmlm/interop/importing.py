"""`realmlm import-hf`: published checkpoints become a model, their passages a corpus and the passages'
vectors its index.

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
    SHAPED,
    UNUSED,
    is_unused,
    listing,
    model_settings,
    their_name,
)
from realmlm.interop.records import count_records, read_records
from realmlm.interop.sources import RECORDS, Source, open_source, wordpieces_from_list
from realmlm.log import progress, say
from realmlm.model.realm import ModelConfig, Realm, tower_fingerprint
from realmlm.parallel import default_workers
from realmlm.settings import ImportHf
from realmlm.sources.article import Article
from realmlm.storage.artefacts import discard, publish, refuse_existing

_RECORD = 2**16 - 1  # wordpieces: a record is one passage, however long


@dataclass(frozen=True)
class Part:
    """A part of a source: `embedder`, `query embedder`, `encoder` or `reader`, under a prefix."""

    source: Source
    prefix: str
    kind: str

    def names(self) -> set[str]:
        return {key.removeprefix(self.prefix) for key in self.source.tensors if key.startswith(self.prefix)}


# --- import -------------------------------------------------------------------------------------------------


def import_hf(settings: ImportHf) -> Realm:
    """Join published checkpoints into one model; RealmForOpenQA's passages and vectors become a corpus with
    its index."""
    out = settings.out
    corpus = settings.corpus
    for place in (out, corpus):
        if place is not None:
            refuse_existing(place)
    if corpus is not None and (
        out.resolve().is_relative_to(corpus.resolve()) or corpus.resolve().is_relative_to(out.resolve())
    ):
        raise BadInput("--out and --corpus are folders of their own; one cannot lie within the other")
    opened = [open_source(name) for name in settings.sources]
    model = join(opened, _tokenizer_of(opened, settings.tokenizer), seed=settings.seed)
    if corpus is not None:
        _import_blocks(opened, model, corpus, dtype=settings.dtype)
    elif any(source.records for source in opened):
        say(
            "the source has passages and their vectors as well; to take them over, name a place: --corpus "
            "FOLDER"
        )
    try:
        model.save_pretrained(out)
    except Exception:
        if corpus is not None:
            discard(corpus)
        raise
    return model


def join(sources: list[Source], wordpieces: Wordpieces, *, seed: int = 0) -> Realm:
    """One model of all parts that the sources bring; what none brings begins from what is there, its heads
    from fresh weights."""
    parts = _roles(sources)
    described = {role: _described(part) for role, part in parts.items()}
    tower = described.get("document") or described.get("query") or described["reader"]
    if "query" in parts and "document" in parts:
        _check_alike(parts, described)
    reader = described.get("reader", tower)
    settings = tower | {
        name: reader[name] for name in ("reader", "max_answer", "span_hidden", "max_together")
    }
    settings |= {name: min(tower[name], reader[name]) for name in ("max_query", "max_passage")}
    for which in ("tower", "reader"):
        if len(wordpieces) > settings[which]["vocab_size"]:
            raise BadInput(
                f"the tokenizer has {len(wordpieces)} wordpieces, the {which} knows "
                f"{settings[which]['vocab_size']}"
            )
    alike = (
        "query" not in parts or "document" not in parts or _same_weights(parts["document"], parts["query"])
    )
    spans = "reader" in parts and parts["reader"].kind == "reader"
    config = ModelConfig(**settings, share_towers=alike, share_projection=alike, trained_on_questions=spans)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Realm(config, wordpieces)
    taken = {role: part for role, part in parts.items() if not (alike and role == "query")}
    if "document" not in parts and "query" in parts:
        taken["document"] = parts["query"]
    state = {name: tensor.clone() for name, tensor in model.own_state().items()}
    for role, part in taken.items():
        expected = _expected(part, role, state)
        _check_weights(part, {key: tuple(state[name].shape) for key, name in expected.items()})
        if role == "reader":
            _check_tied(part)
        state |= {name: part.source.tensors[key].to(state[name].dtype) for key, name in expected.items()}
    _check_surplus(sources, parts.values(), state)
    _begin_from_what_is_there(state, parts)
    model.load_own_state(state)
    if "document" not in parts and "query" in parts:
        model.config = replace(model.config, stand_in=tower_fingerprint(model.config, model.document))
    return model.eval()


def _described(part: Part) -> dict[str, Any]:
    try:
        return model_settings(part.source.config)
    except BadInput as error:
        raise BadInput(f"{part.source.name}: {error}") from error


def _check_alike(parts: dict[str, Part], described: dict[str, dict[str, Any]]) -> None:
    """Both towers must have the same shape; what they were trained with may differ."""
    first = described["document"]
    second = described["query"]
    different = [name for name in SHAPED if first["tower"][name] != second["tower"][name]]
    different += [name for name in ("projection", "norm_eps") if first[name] != second[name]]
    if different:
        names = " and ".join(parts[role].source.name for role in ("document", "query"))
        raise Mismatch(f"{names} do not belong together: their towers differ in {listing(different)}")


def _roles(sources: list[Source]) -> dict[str, Part]:
    """Which source brings the document tower, the query tower and the reader, in this order."""
    roles: dict[str, Part] = {}
    role_of = {"embedder": "document", "query embedder": "query", "encoder": "reader", "reader": "reader"}
    for source in sources:
        for prefix, kind in ARCHITECTURES[source.architecture].items():
            part = Part(source, prefix, kind)
            if kind == "query embedder" and source.architecture == "RealmScorer" and not part.names():
                continue  # a scorer with one embedder for both
            role = role_of[kind]
            if role in roles:
                both = f"{roles[role].source.name} and {source.name}"
                raise BadInput(
                    f"{both} both bring a {role}{'' if role == 'reader' else ' tower'}; name one of them"
                )
            roles[role] = part
    return {role: roles[role] for role in ("document", "query", "reader") if role in roles}


def _same_weights(first: Part, second: Part) -> bool:
    mine = first.source.tensors
    other = second.source.tensors
    names = {name for name in first.names() | second.names() if not name.startswith(UNUSED["embedder"])}
    pairs = ((mine.get(first.prefix + name), other.get(second.prefix + name)) for name in names)
    return all(a is not None and b is not None and torch.equal(a.float(), b.float()) for a, b in pairs)


def _expected(part: Part, role: str, state: dict[str, Tensor]) -> dict[str, str]:
    """Key in the source -> name of the weight here, for a part that becomes the document or query tower or
    the reader."""
    own = f"{role}."
    names = {name: their_name(part.kind, name.removeprefix(own)) for name in state if name.startswith(own)}
    return {part.prefix + theirs: name for name, theirs in names.items() if theirs is not None}


def _check_weights(part: Part, shapes: dict[str, tuple[int, ...]]) -> None:
    tensors = part.source.tensors
    name = part.source.name
    if missing := set(shapes) - set(tensors):
        raise BadInput(
            f"{name} lacks weights of {part.source.architecture}: {listing(missing)}; fetch it again"
        )
    if wrong := [
        f"{key} {tuple(tensors[key].shape)} instead of {shape}"
        for key, shape in shapes.items()
        if tensors[key].shape != shape
    ]:
        raise BadInput(
            f"{name} has weights of other shapes than its config describes: {listing(wrong)}; is the config "
            "of another model?"
        )
    if odd := [
        key
        for key in shapes
        if not tensors[key].is_floating_point() or not bool(tensors[key].float().isfinite().all())
    ]:
        raise BadInput(f"{name} has weights that are no finite numbers: {listing(odd)}; fetch it again")


def _check_tied(part: Part) -> None:
    """A masked-LM head with output weights of its own has no place here; the published ones write with the
    word embeddings."""
    decoder = part.source.tensors.get(f"{part.prefix}cls.predictions.decoder.weight")
    words = part.source.tensors[f"{part.prefix}realm.embeddings.word_embeddings.weight"]
    if part.kind == "encoder" and decoder is not None and not torch.equal(decoder.float(), words.float()):
        raise BadInput(
            f"{part.source.name} has a masked-LM head that is not tied to its word embeddings; such a one "
            "cannot be imported"
        )


def _check_surplus(sources: list[Source], parts: Iterable[Part], state: dict[str, Tensor]) -> None:
    """No weight may be left over, but for those that are known to do nothing."""
    known: dict[str, set[str]] = {source.name: {BLOCKS} for source in sources}
    for part in parts:
        known[part.source.name] |= set(
            _expected(part, "document" if "embedder" in part.kind else "reader", state)
        )
    for source in sources:
        if surplus := {
            key
            for key in source.tensors
            if key not in known[source.name] and not is_unused(source.architecture, key)
        }:
            raise BadInput(
                f"{source.name} has weights that {source.architecture} does not: {listing(surplus)}; is it "
                "another model?"
            )


def _begin_from_what_is_there(state: dict[str, Tensor], parts: dict[str, Part]) -> None:
    """A reader that no source brings takes the tower's encoder, a tower the reader's; said, for it is a
    beginning and no more."""
    towers = "document" in parts or "query" in parts
    if not towers:
        pooler = {
            f"document.encoder.body.{name}": f"realm.{name}"
            for name in ("pooler.dense.weight", "pooler.dense.bias")
        }
        reader = parts["reader"]
        for name in [name for name in state if name.startswith("document.encoder.")]:
            theirs = reader.source.tensors.get(reader.prefix + pooler.get(name, "-"))
            twin = name.replace("document.", "reader.", 1)
            state[name] = (
                theirs.to(state[name].dtype) if theirs is not None else state.get(twin, state[name]).clone()
            )
        say("no source brings towers: they begin from the reader's encoder, with fresh projections")
    if "reader" not in parts:
        for name in [name for name in state if name.startswith("reader.encoder.")]:
            state[name] = state[name.replace("reader.", "document.", 1)].clone()
        say("no source brings a reader: it begins from the tower's encoder, with fresh heads")
    elif parts["reader"].kind == "encoder":
        say(
            "no source brings a head for answers: it begins from fresh weights, `realmlm finetune` teaches it"
        )
    if towers and "document" not in parts:
        say(
            "no source brings the embedder of the passages: none can be added or embedded again; to do so, "
            "name that embedder as well"
        )


def _tokenizer_of(sources: list[Source], file: Path | None) -> Wordpieces:
    if file is not None:
        return wordpieces_from_list(file) if file.suffix == ".txt" else Wordpieces.load(file)
    found = {source.name: source.wordpieces for source in sources if source.wordpieces is not None}
    if not found:
        raise BadInput(
            f"no tokenizer.json or vocab.txt beside {listing(source.name for source in sources)}; name one: "
            "--tokenizer vocab.txt"
        )
    if len({_rules(pieces) for pieces in found.values()}) > 1:
        raise Mismatch(f"{' and '.join(found)} have different tokenizers; they do not belong together")
    return next(iter(found.values()))


def _rules(wordpieces: Wordpieces) -> str:
    """What makes two tokenizers cut alike: pieces and normalisation."""
    record = json.loads(wordpieces.tokenizer.to_str())
    return json.dumps([wordpieces.tokenizer.get_vocab(), record["normalizer"]], sort_keys=True)


# --- passages and their vectors -----------------------------------------------------------------------------


def _import_blocks(sources: list[Source], model: Realm, folder: Path, *, dtype: str) -> None:
    """The records become a corpus, one passage each and without titles, and their vectors its index: both or
    nothing."""
    source = next(
        (source for source in sources if source.records is not None and BLOCKS in source.tensors), None
    )
    if source is None or source.records is None:
        raise BadInput(
            f"no source has both {BLOCKS} and {RECORDS}: a corpus comes with RealmForOpenQA only; leave "
            "--corpus out"
        )
    vectors_ND = source.tensors[BLOCKS]
    count = count_records(source.records)
    if vectors_ND.shape != (count, model.config.projection):
        raise BadInput(
            f"{source.name} has {BLOCKS} in the shape {tuple(vectors_ND.shape)} for {count:,} records; they "
            "do not belong together"
        )
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
                raise BadInput(
                    f"{source.records}: {count:,} records, but {writer.passages:,} passages; some record "
                    "gives no wordpiece"
                )
            # what is longer than `max_wordpieces` is there, but not read
            draft.config |= {
                "sources": [RECORDS],
                "max_wordpieces": model.config.max_passage,
                "tokenizer": f"of {source.architecture}",
            }
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
            raise BadInput(
                f"{file}: record {number} is not UTF-8 text ({error.reason} at byte {error.start})"
            ) from error
        if not text.strip() or len(text) > MAX_CHARACTERS:
            raise BadInput(
                f"{file}: record {number} has {len(text):,} characters; a passage has 1 to {MAX_CHARACTERS:,}"
            )
        yield Article("", text, f"record {number}")
        advance(1)


def _import_vectors(vectors_ND: Tensor, model: Realm, corpus: Corpus, *, dtype: str) -> None:
    fingerprint = tower_fingerprint(model.config, model.document)
    place = index_place(corpus, fingerprint, "exact")
    borders = [*range(0, len(vectors_ND), SHARD), len(vectors_ND)]
    plan = {"weights": fingerprint, "corpus": corpus.fingerprint, "corpus_edits": 0, "borders": borders}
    plan |= {"dim": vectors_ND.shape[1], "dtype": dtype, "kind": "exact", "step": 0}
    build = ShardedBuild(place.parent / f".{place.name}.partial", plan)
    for shard in range(build.shards):
        first = borders[shard]
        last = borders[shard + 1]
        vectors = vectors_ND[first:last].float()
        if (
            dtype == "float16"
            and bool(vectors.isfinite().all())
            and not bool(vectors.half().isfinite().all())
        ):
            raise BadInput(f"{BLOCKS} has numbers too large for float16; keep them with --dtype float32")
        build.put(shard, torch.arange(first, last), vectors)
    build.publish(place)
