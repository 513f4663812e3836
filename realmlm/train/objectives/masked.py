"""Warm-up: the reader learns to read passages by masked LM, the retriever to find them by the inverse cloze
task.

Without the second everything goes to the null document; without the first a reader that cannot read ruins the
retriever.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from realmlm.config import Loop, Optim, Warmup, flat, record
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.log import say
from realmlm.model.inputs import NULL, Inputs, Masked, document_inputs, joint_inputs, query_inputs
from realmlm.model.marginal import hidden_log_p, in_batch_contrast, inner_products
from realmlm.model.realm import ModelConfig, Realm
from realmlm.reading.retrieve import check_readable
from realmlm.storage.artefacts import open_artefact
from realmlm.train.data import ClozePairs, ReadingPairs, SentenceSource
from realmlm.train.hold_out import held_out_passages
from realmlm.train.loop import Clock, Objective, Stateless, prepare, train_model
from realmlm.train.objectives.pointing import point, standing
from realmlm.train.run import Run


class MaskedReading(Stateless):
    """−log p(y|z,x) with a passage given, not retrieved; and where y stands in z, −log of the probability
    that the reader points at it.

    The first is the mean over a sentence's masks, so that a long span weighs no more than a word; joint
    training, whose marginal is over all of y, takes the sum. So the losses of the two are on different
    scales.
    """

    def __init__(
        self, model: Realm, wordpieces: Wordpieces, corpus: Corpus, pairs: ReadingPairs, *, pointing: float
    ) -> None:
        self._model = model
        self._wordpieces = wordpieces
        self._corpus = corpus
        self._pairs = pairs
        self._pointing = pointing

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"reader": list(self._model.reader.parameters())}

    def draw(self, first: int, count: int) -> tuple[Masked, Inputs, np.ndarray | None]:
        """Masked sentences, what is read beside them, and where the hidden words stand there."""
        masked, passages = self._pairs.draw(first, count)
        config = self._model.config
        inputs = joint_inputs(masked.queries, passages, self._corpus, self._wordpieces, config)
        bodies = [NULL if number is None else self._corpus.tokens(number) for number in passages]
        return (
            masked,
            inputs,
            standing(masked.runs(config.max_answer), bodies, inputs) if self._pointing else None,
        )

    def loss(
        self, drawn: tuple[Masked, Inputs, np.ndarray | None], step: int, clock: Clock
    ) -> tuple[Tensor, dict[str, Tensor]]:
        masked = drawn[0].to(self._model.device)
        inputs = drawn[1].to(self._model.device)
        gold_N3 = drawn[2]
        with clock("read"):
            hidden_BLH = self._model.reader.encoder(inputs)
            vocabulary_BMV = self._model.reader.masks_from(hidden_BLH, inputs, masked.positions_BM)
            token_BM = hidden_log_p(vocabulary_BMV, masked.targets_BM)
            right_BM = vocabulary_BMV.argmax(-1) == masked.targets_BM
            masks_B = masked.valid_BM.sum(-1)
            loss_B = -(token_BM * masked.valid_BM).sum(-1) / masks_B
        numbers = {"right": ((right_BM & masked.valid_BM).sum(-1) / masks_B).mean()}
        if gold_N3 is None:
            return loss_B.mean(), numbers
        with clock("point"):
            point_B, held_B = point(self._model.reader, hidden_BLH, inputs, gold_N3)
            point_B = torch.where(held_B, point_B, 0.0)
        numbers |= {
            "held": held_B.float().mean(),
            "pointed": point_B.exp().masked_fill(~held_B, 0.0).sum() / held_B.sum().clamp(min=1),
        }
        return (loss_B - self._pointing * point_B).mean(), numbers


class InverseCloze(Stateless):
    """−log p(z|x) among the passages of the batch."""

    def __init__(self, model: Realm, wordpieces: Wordpieces, pairs: ClozePairs) -> None:
        self._model = model
        self._wordpieces = wordpieces
        self._pairs = pairs

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"retriever": self._model.retriever_parameters()}

    def draw(self, first: int, count: int) -> tuple[Inputs, Inputs, np.ndarray]:
        """Sentences, passages, and the passages' numbers."""
        pairs = self._pairs.draw(first, count)
        config = self._model.config
        queries = query_inputs(pairs.sentences, self._wordpieces, max_query=config.max_query)
        documents = document_inputs(
            pairs.titles, pairs.bodies, self._wordpieces, max_length=config.max_document
        )
        return queries, documents, pairs.passages

    def loss(
        self, drawn: tuple[Inputs, Inputs, np.ndarray], step: int, clock: Clock
    ) -> tuple[Tensor, dict[str, Tensor]]:
        queries, documents, passages = drawn
        device = self._model.device
        with clock("embed"):
            scores_BB = inner_products(
                self._model.query(queries.to(device)), self._model.document(documents.to(device))
            )
            loss_B, found_B = in_batch_contrast(scores_BB, torch.from_numpy(passages).to(device))
        return loss_B.mean(), {"found": found_B.float().mean()}


def warm_up(
    *,
    model: Path,
    corpus: Path,
    out: Path,
    masking: str,
    pairing: str,
    pointing: float = 0.0,
    hold_out: Path | None = None,
    towers_as_reader: bool = False,
    remove_sentence: float,
    reader: Optim,
    retriever: Optim,
    loop: Loop,
) -> Path:
    """Both warm-ups, one after the other, each a run of its own in `out`; gives the place of the model."""
    settings = dict(locals())  # every argument is one
    with Run.begin(Path(out), stage="warmup", config=record(settings)) as whole:
        known = whole.open_corpus(corpus)
        if towers_as_reader:  # said before the reader is trained
            ModelConfig.of(open_artefact(Path(model), kind="model").config, Path(model)).check_one_encoder()

        @cache
        def held_out() -> list[int]:
            found = held_out_passages(known, hold_out)
            whole.pin_file(hold_out)
            return found

        def reading(realm: Realm, wordpieces: Wordpieces) -> MaskedReading:
            max_query = realm.config.max_query
            source = SentenceSource(
                known,
                scheme=masking,
                wordpieces=wordpieces,
                max_query=max_query,
                seed=loop.seed,
                held_out=held_out(),
            )
            pairs = ReadingPairs(source, pairing=pairing, seed=loop.seed)
            return MaskedReading(realm, wordpieces, known, pairs, pointing=pointing)

        def finding(realm: Realm, wordpieces: Wordpieces) -> InverseCloze:
            if towers_as_reader:
                realm.begin_towers_as_reader()
            pairs = ClozePairs(known, remove=remove_sentence, seed=loop.seed, held_out=held_out())
            return InverseCloze(realm, wordpieces, pairs)

        place = _stage("reader", Path(model), whole, known, reading, optim=reader, loop=loop)
        place = _stage("retriever", place, whole, known, finding, optim=retriever, loop=loop)
        final = whole.folder / "model"
        if not final.exists():
            realm, wordpieces = Realm.from_pretrained(place)
            realm.save_pretrained(final, wordpieces, parents={"corpus": known.fingerprint})
    say(f"the model is in {final}")
    return final


def _stage(
    name: str,
    model: Path,
    whole: Run,
    corpus: Corpus,
    make: Callable[[Realm, Wordpieces], Objective],
    *,
    optim: Optim,
    loop: Loop,
) -> Path:
    """One of the two, from `model` on; gives the place of the model it ends with, the same one if it has no
    steps."""
    if optim.steps == 0:
        return model
    with Run.begin(whole.folder / name, stage=f"warmup-{name}", config={}) as run:
        if run.finished:
            return run.folder / "model"
        device = prepare(loop)
        realm, wordpieces = Realm.from_pretrained(model, device=device)
        check_readable(str(model), realm, wordpieces, corpus)
        taught = make(realm, wordpieces)
        title = f"warm-up, {name}"
        return train_model(
            realm, wordpieces, taught, run, corpus=corpus, optim=optim, loop=loop, device=device, title=title
        )


def run_warmup(config: Warmup) -> Path:
    return warm_up(**flat(config))
