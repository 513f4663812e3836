"""A teacher: a reader that learned before, usually a larger one, whose distributions over spans and passages
another model learns beside its own objective.

B questions, K passages each, N = B · K pairs, L wordpieces, W span widths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput
from realmlm.model.encoders import Encoder, longest_input
from realmlm.model.inputs import Inputs
from realmlm.model.marginal import (
    passage_distillation,
    passages_and_spans,
    span_distillation,
    span_log_probabilities,
)
from realmlm.model.packed import Packed
from realmlm.model.realm import Realm
from realmlm.reading.packed import read_spans_packed, title_columns
from realmlm.reading.read import SpanReading, read_spans
from realmlm.train.interpreting import Columns, Interpreter, retell

MOST = 64  # spans of a question that are taught one by one, all others as one


class Teacher:
    """A model that does not learn. It reads what its student reads, passages that the student's retriever
    has found and weighs: f(x,z) is the student's for both, what reading says of them is each one's own.

    With the student's tokenizer it is given the student's own inputs. With another one it reads the texts,
    and what it says of them is told in the student's wordpieces.
    """

    def __init__(self, model: Realm, student: Realm, corpus: Corpus, *, name: str) -> None:
        """`name` is what errors call it; the corpus has all that will be read."""
        self.same_wordpieces = model.wordpieces.fingerprint == student.wordpieces.fingerprint
        """Has it the tokenizer of its student?"""
        _check(model, student, name, same_wordpieces=self.same_wordpieces)
        if self.same_wordpieces:  # spans are told by the same columns
            model.config = replace(model.config, max_passage=student.config.max_passage)
        self._model = model.eval().requires_grad_(False)
        self._student = student
        self._interpreter = Interpreter(corpus, model.wordpieces)

    @classmethod
    def of(cls, place: Path, student: Realm, corpus: Corpus, *, compiled: bool) -> "Teacher":
        """The model in a folder, where its student is."""
        model = Realm.from_pretrained(place).to(student.device)
        teacher = cls(model, student, corpus, name=str(place))
        if compiled and teacher.same_wordpieces:
            model.reader.encoder.compile_layers()
        return teacher

    @property
    def encoders(self) -> list[Encoder]:
        """What it reads its student's own inputs with, if it does."""
        return [self._model.reader.encoder] if self.same_wordpieces else []

    @torch.no_grad()
    def read(
        self, texts: Sequence[str], ids_BK: np.ndarray, inputs: Inputs, reading: SpanReading, scores_N: Tensor
    ) -> SpanReading:
        """What it makes of questions and passages, given as such and as its student's inputs; `reading` is
        what the student made of them, `scores_N` are f(x,z)."""
        if self.same_wordpieces:
            return read_spans(self._model, inputs, scores_N)
        return _weighed(self._read_texts(texts, ids_BK, Columns.of(reading)), reading, scores_N)

    @torch.no_grad()
    def stage(self, texts: Sequence[str], ids_BK: np.ndarray) -> dict[str, Tensor]:
        """For a step on the device: what it makes of texts, in the columns in which they are read packed.
        Nothing where it is given its student's inputs."""
        if self.same_wordpieces:
            return {}
        config = self._student.config
        title = title_columns(self._student)
        body_N = torch.full((ids_BK.size,), title, device=self._student.device)
        columns = Columns(body_N, 0, title + config.max_passage, config.max_answer)
        told = self._read_texts(texts, ids_BK, columns)
        judged = {} if told.logit_N is None else {"their_logit": told.logit_N}
        return {"their_weight": told.weight_N, "their_log": told.log_NLW, **judged}

    @torch.no_grad()
    def read_packed(
        self, packed: Packed, staged: Mapping[str, Tensor], reading: SpanReading, scores_N: Tensor
    ) -> SpanReading:
        """As `read`, by what was staged and tensors alone."""
        if self.same_wordpieces:
            return read_spans_packed(self._model, packed, scores_N)
        log_NLW = staged["their_log"]
        told = replace(reading, weight_N=staged["their_weight"], logit_N=staged.get("their_logit"))
        told = replace(told, log_NLW=log_NLW, allowed_NLW=log_NLW > -torch.inf)
        return _weighed(told, reading, scores_N)

    def _read_texts(self, texts: Sequence[str], ids_BK: np.ndarray, to: Columns) -> SpanReading:
        """What it makes of questions and passages, in these columns of its student; without f(x,z)."""
        model = self._model
        passages = self._interpreter.passages(ids_BK.flatten())
        asked = [query for query in model.wordpieces.encode_queries(list(texts)) for _ in ids_BK[0]]
        titles = [passage.title for passage in passages]
        inputs = model.reader_inputs(asked, titles, [passage.body for passage in passages]).to(model.device)
        nothing_N = torch.zeros(len(passages), device=model.device)
        return retell(read_spans(model, inputs, nothing_N), passages, to)


def _weighed(theirs: SpanReading, student: SpanReading, scores_N: Tensor) -> SpanReading:
    """What a teacher said of texts, of the spans that the student has too, with the student's f(x,z)."""
    allowed_NLW = theirs.allowed_NLW & student.allowed_NLW
    weight_N = theirs.weight_N + scores_N
    weight_N = weight_N.masked_fill(~allowed_NLW.flatten(1).any(-1), torch.finfo(weight_N.dtype).min)
    log_NLW = span_log_probabilities(theirs.log_NLW, allowed_NLW)
    return replace(theirs, weight_N=weight_N, log_NLW=log_NLW, allowed_NLW=allowed_NLW)


def lesson(teacher: SpanReading, student: SpanReading, k: int) -> tuple[Tensor, dict[str, Tensor]]:
    """How far the student is from the teacher, to be made small [B], and numbers for the row: over spans of
    the `k` passages of each question and, if both judge passages, over their judgements."""
    joint_BS, own_BS = (
        passages_and_spans(reading.weight_N.unflatten(0, (-1, k)).float(), reading.log_NLW.float())
        for reading in (teacher, student)
    )
    spans_B = span_distillation(joint_BS, own_BS, min(MOST, joint_BS.shape[1]))
    agreed_B = joint_BS.argmax(-1) == own_BS.argmax(-1)
    row = {"from_teacher": spans_B.mean(), "agreed": agreed_B.float().mean()}
    if teacher.logit_N is None or student.logit_N is None:
        return spans_B, row
    logits = (reading.unflatten(0, (-1, k)) for reading in (teacher.logit_N, student.logit_N))
    return spans_B + passage_distillation(*logits), row


def _check(teacher: Realm, student: Realm, name: str, *, same_wordpieces: bool) -> None:
    """Can it teach this model?"""
    if not teacher.config.trained_on_questions:
        raise BadInput(f"{name} has not learned to answer questions yet: realmlm finetune --from {name}")
    if not same_wordpieces:
        return
    for setting, flag in (("read_titles", "read-titles"), ("title_answers", "title-answers")):
        if getattr(teacher.config, setting) != getattr(student.config, setting):
            raise BadInput(f"{name} and the model that it is to teach differ in --{flag}; make them alike")
    if teacher.config.max_answer != student.config.max_answer:
        ours, theirs = student.config.max_answer, teacher.config.max_answer
        raise BadInput(
            f"{name} answers with up to {theirs} wordpieces, its student with {ours}; need the same"
        )
    longest = longest_input(teacher.reader.encoder.body) or inf
    if longest < student.config.max_joint:
        reads = f"{name} reads up to {longest} wordpieces, its student {student.config.max_joint}"
        raise BadInput(f"{reads}; take a teacher that reads as many")
