"""`realmlm import-hf`: published checkpoints become a model, their passages a corpus and the passages' vectors its index.

N passages, D vector size.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from realmlm.artefact import discard, publish
from realmlm.corpus.build import write_articles
from realmlm.corpus.store import Article, Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactExists, BadInput, Mismatch
from realmlm.index.encode import SHARD
from realmlm.index.store import ShardedBuild
from realmlm.log import progress, say
from realmlm.model.realm import ModelConfig, Realm, tower_fingerprint
from realmlm.model.retrieval import index_place
from realmlm.parallel import default_workers
from realmlm.published.layout import ARCHITECTURES, BLOCKS, is_unused, listing, model_settings, their_name
from realmlm.published.records import count_records, read_records
from realmlm.published.sources import RECORDS, Source, open_source, wordpieces_from_list

_RECORD = 2**16 - 1  # wordpieces: a record is one passage, however long


@dataclass(frozen=True)
class Part:
    """A part of a source: `embedder`, `query embedder`, `encoder` or `reader`, under a prefix."""

    source: Source
    prefix: str
    kind: str

    def names(self) -> set[str]:
        return {key.removeprefix(self.prefix) for key in self.source.tensors if key.startswith(self.prefix)}


# --- import -------------------------------------------------------------------------------------------------------------------------


def import_hf(
    sources: tuple[str, ...], *, out: Path, corpus: Path | None = None, tokenizer: Path | None = None, dtype: str = "float32", seed: int = 0
) -> Realm:
    """Join published checkpoints into one model at `out`; RealmForOpenQA's passages and vectors become a corpus with its index."""
    for place in (out, corpus):
        if place is not None and place.exists():
            raise ArtefactExists(f"{place} already exists; choose another place or remove it first")
    opened = [open_source(name) for name in sources]
    wordpieces = _tokenizer_of(opened, tokenizer)
    model = join(opened, wordpieces, seed=seed)
    if corpus is not None:
        _import_blocks(opened, model, wordpieces, corpus, dtype=dtype)
    elif any(source.records for source in opened):
        say("the source has passages and their vectors as well; to take them over, name a place: --corpus FOLDER")
    try:
        model.save_pretrained(out, wordpieces)
    except BaseException:
        if corpus is not None:
            discard(corpus)
        raise
    return model


def join(sources: list[Source], wordpieces: Wordpieces, *, seed: int = 0) -> Realm:
    """One model of all parts that the sources bring; what none brings begins from what is there, its heads from fresh weights."""
    parts = _roles(sources)
    described = [model_settings(part.source.config) for part in parts.values()]
    settings = described[0] | {"reader": (described[-1] if "reader" in parts else described[0])["reader"]}
    if "query" in parts and "document" in parts and described[0] != described[1]:
        names = " and ".join(parts[role].source.name for role in ("document", "query"))
        raise Mismatch(f"{names} are towers of different sizes; they do not belong together")
    if len(wordpieces) > settings["tower"]["vocab_size"]:
        raise BadInput(f"the tokenizer has {len(wordpieces)} wordpieces, the model knows {settings['tower']['vocab_size']}")
    alike = "query" not in parts or "document" not in parts or _same_weights(parts["document"], parts["query"])
    spans = "reader" in parts and parts["reader"].kind == "reader"
    config = ModelConfig(**settings, share_towers=alike, share_projection=alike, trained_on_questions=spans)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Realm(config)
    taken = {role: part for role, part in parts.items() if not (alike and role == "query")}
    if "document" not in parts and "query" in parts:
        taken["document"] = parts["query"]
    state = {name: tensor.clone() for name, tensor in model.own_state().items()}
    for role, part in taken.items():
        expected = _expected(part, role, state)
        _check_weights(part, {key: tuple(state[name].shape) for key, name in expected.items()})
        state |= {name: part.source.tensors[key].to(state[name].dtype) for key, name in expected.items()}
    _check_surplus(sources, parts.values(), state)
    _begin_from_what_is_there(state, parts)
    model.load_own_state(state)
    return model.eval()


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
                raise BadInput(f"{both} both bring a {role}{'' if role == 'reader' else ' tower'}; name one of them")
            roles[role] = part
    return {role: roles[role] for role in ("document", "query", "reader") if role in roles}


def _same_weights(first: Part, second: Part) -> bool:
    mine, other = first.source.tensors, second.source.tensors
    names = first.names() | second.names()
    pairs = ((mine.get(first.prefix + name), other.get(second.prefix + name)) for name in names if not name.startswith("cls.predictions."))
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)


def _expected(part: Part, role: str, state: dict[str, Tensor]) -> dict[str, str]:
    """Key in the source -> name of the weight here, for a part that becomes the document or query tower or the reader."""
    own = f"{role}."
    names = {name: their_name(part.kind, name.removeprefix(own)) for name in state if name.startswith(own)}
    return {part.prefix + theirs: name for name, theirs in names.items() if theirs is not None}


def _check_weights(part: Part, shapes: dict[str, tuple[int, ...]]) -> None:
    tensors, name = part.source.tensors, part.source.name
    if missing := set(shapes) - set(tensors):
        raise BadInput(f"{name} lacks weights of {part.source.architecture}: {listing(missing)}; fetch it again")
    if wrong := [f"{key} {tuple(tensors[key].shape)} instead of {shape}" for key, shape in shapes.items() if tensors[key].shape != shape]:
        raise BadInput(f"{name} has weights of other shapes than its config describes: {listing(wrong)}; is the config of another model?")
    if odd := [key for key in shapes if not tensors[key].is_floating_point() or not bool(tensors[key].isfinite().all())]:
        raise BadInput(f"{name} has weights that are no finite numbers: {listing(odd)}; fetch it again")


def _check_surplus(sources: list[Source], parts: Iterable[Part], state: dict[str, Tensor]) -> None:
    """No weight may be left over, but for those that are known to do nothing."""
    known: dict[str, set[str]] = {source.name: {BLOCKS} for source in sources}
    for part in parts:
        known[part.source.name] |= set(_expected(part, "document" if "embedder" in part.kind else "reader", state))
    for source in sources:
        if surplus := {key for key in source.tensors if key not in known[source.name] and not is_unused(source.architecture, key)}:
            raise BadInput(f"{source.name} has weights that {source.architecture} does not: {listing(surplus)}; is it another model?")


def _begin_from_what_is_there(state: dict[str, Tensor], parts: dict[str, Part]) -> None:
    """A reader that no source brings takes the tower's encoder, a tower the reader's; said, for it is a beginning and no more."""
    towers = "document" in parts or "query" in parts
    if not towers:
        pooler = {f"document.encoder.body.{name}": f"realm.{name}" for name in ("pooler.dense.weight", "pooler.dense.bias")}
        reader = parts["reader"]
        for name in [name for name in state if name.startswith("document.encoder.")]:
            theirs = reader.source.tensors.get(reader.prefix + pooler.get(name, "-"))
            twin = name.replace("document.", "reader.", 1)
            state[name] = theirs.to(state[name].dtype) if theirs is not None else state.get(twin, state[name]).clone()
        say("no source brings towers: they begin from the reader's encoder, with fresh projections")
    if "reader" not in parts:
        for name in [name for name in state if name.startswith("reader.encoder.")]:
            state[name] = state[name.replace("reader.", "document.", 1)].clone()
        say("no source brings a reader: it begins from the tower's encoder, with fresh heads")
    elif parts["reader"].kind == "encoder":
        say("no source brings a head for answers: it begins from fresh weights, `realmlm finetune` teaches it")
    if towers and "document" not in parts:
        say("the document tower is the source's query embedder; for the one its passages were embedded with, name that embedder as well")


def _tokenizer_of(sources: list[Source], file: Path | None) -> Wordpieces:
    if file is not None:
        return wordpieces_from_list(file) if file.suffix == ".txt" else Wordpieces.load(file)
    found = {source.name: source.wordpieces for source in sources if source.wordpieces is not None}
    if not found:
        raise BadInput(
            f"no tokenizer.json or vocab.txt beside {listing(source.name for source in sources)}; name one: --tokenizer vocab.txt"
        )
    if len({json.dumps(pieces.tokenizer.get_vocab(), sort_keys=True) for pieces in found.values()}) > 1:
        raise Mismatch(f"{' and '.join(found)} have different tokenizers; they do not belong together")
    return next(iter(found.values()))


# --- passages and their vectors -----------------------------------------------------------------------------------------------------------


def _import_blocks(sources: list[Source], model: Realm, wordpieces: Wordpieces, folder: Path, *, dtype: str) -> None:
    """The records become a corpus, one passage each and without titles, and their vectors its index: both or nothing."""
    source = next((source for source in sources if source.records is not None and BLOCKS in source.tensors), None)
    if source is None or source.records is None:
        raise BadInput(f"no source has both {BLOCKS} and {RECORDS}: a corpus comes with RealmForOpenQA only; leave --corpus out")
    vectors_ND = source.tensors[BLOCKS]
    count = count_records(source.records)
    if vectors_ND.shape != (count, model.config.projection):
        raise BadInput(
            f"{source.name} has {BLOCKS} in the shape {tuple(vectors_ND.shape)} for {count:,} records; they do not belong together"
        )
    with publish(folder, kind="corpus") as draft, progress("reading records", count, unit="passages") as bar:
        articles = _articles(source.records, bar.advance)
        writer = write_articles(draft, articles, wordpieces, max_wordpieces=_RECORD, workers=default_workers())
        if not writer.passages == writer.articles == count:
            raise BadInput(f"{source.records}: some records are empty or longer than a passage can be; {count:,} records, one passage each")
        # what is longer than this is there, but not read
        draft.config |= {"sources": [RECORDS], "max_wordpieces": model.config.max_passage, "tokenizer": f"of {source.architecture}"}
        draft.counts["skipped"] = 0
    try:
        _import_vectors(vectors_ND, model, Corpus.open(folder), dtype=dtype)
    except BaseException:
        discard(folder)
        raise


def _articles(file: Path, advance: Callable[[int], None]) -> Iterator[Article]:
    for number, record in enumerate(read_records(file)):
        try:
            yield Article("", record.decode("utf-8"), f"record {number}")
        except UnicodeDecodeError as error:
            raise BadInput(f"{file}: record {number} is not UTF-8 text ({error.reason} at byte {error.start})") from error
        advance(1)


def _import_vectors(vectors_ND: Tensor, model: Realm, corpus: Corpus, *, dtype: str) -> None:
    fingerprint = tower_fingerprint(model.document)
    place = index_place(corpus, fingerprint, "exact")
    borders = [*range(0, len(vectors_ND), SHARD), len(vectors_ND)]
    plan = {"weights": fingerprint, "corpus": corpus.fingerprint, "corpus_edits": 0, "borders": borders}
    plan |= {"dim": vectors_ND.shape[1], "dtype": dtype, "kind": "exact", "step": 0}
    build = ShardedBuild(place.parent / f".{place.name}.partial", plan)
    for shard in range(build.shards):
        first, last = borders[shard], borders[shard + 1]
        build.put(shard, torch.arange(first, last), vectors_ND[first:last].float())
    build.publish(place)
