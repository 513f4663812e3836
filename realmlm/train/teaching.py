"""A teacher: a reader that learned before, usually a larger one, whose distributions over spans and passages
another model learns beside its own objective.

B questions, K passages each, N = B · K pairs, L wordpieces, W span widths.
"""

from dataclasses import replace
from math import inf
from pathlib import Path

import torch
from torch import Tensor

from realmlm.errors import BadInput, Mismatch
from realmlm.model.encoders import Encoder, longest_input
from realmlm.model.inputs import Inputs
from realmlm.model.marginal import passage_distillation, passages_and_spans, span_distillation
from realmlm.model.packed import Packed
from realmlm.model.realm import Realm
from realmlm.reading.packed import read_spans_packed
from realmlm.reading.read import SpanReading, read_spans

MOST = 64  # spans of a question that are taught one by one, all others as one


class Teacher:
    """A model that does not learn. It reads what its student reads, passages that the student's retriever
    has found and weighs: f(x,z) is the student's for both, what reading says of them is each one's own."""

    def __init__(self, model: Realm, student: Realm, *, name: str) -> None:
        """`name` is what errors call it. Student and teacher must read the same wordpieces."""
        _check(model, student, name)
        # spans are told by the same columns
        model.config = replace(model.config, max_passage=student.config.max_passage)
        self._model = model.eval().requires_grad_(False)

    @classmethod
    def of(cls, place: Path, student: Realm, *, compiled: bool) -> "Teacher":
        """The model in a folder, where its student is."""
        model = Realm.from_pretrained(place).to(student.device)
        teacher = cls(model, student, name=str(place))
        if compiled:
            teacher.encoder.compile_layers()
        return teacher

    @property
    def encoder(self) -> Encoder:
        """What it reads with."""
        return self._model.reader.encoder

    @torch.no_grad()
    def read(self, inputs: Inputs | Packed, scores_N: Tensor) -> SpanReading:
        """What it makes of the pairs that its student reads, whose f(x,z) are `scores_N`."""
        if isinstance(inputs, Packed):
            return read_spans_packed(self._model, inputs, scores_N)
        return read_spans(self._model, inputs, scores_N)


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


def _check(teacher: Realm, student: Realm, name: str) -> None:
    """Can it teach this model?"""
    if teacher.wordpieces.fingerprint != student.wordpieces.fingerprint:
        raise Mismatch(
            f"{name} has another tokenizer than the model that it is to teach: spans of wordpieces are "
            "taught, so both need the same; take a teacher that was made with the model's tokenizer"
        )
    if not teacher.config.trained_on_questions:
        raise BadInput(f"{name} has not learned to answer questions yet: realmlm finetune --from {name}")
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
