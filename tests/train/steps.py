"""What happens to a run at a chosen step: a power cut, a signal, a clock that goes on."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from realmlm.train.objectives.contrast import PassageContrast
from realmlm.train.objectives.ict import InverseCloze
from realmlm.train.objectives.joint import JointPretraining
from realmlm.train.objectives.masked import MaskedReading
from realmlm.train.objectives.questions import QuestionAnswering


def at_each_step(happens: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let something happen in every step of every stage, when its examples are drawn and no loss is known."""
    for objective in (MaskedReading, InverseCloze, PassageContrast, JointPretraining, QuestionAnswering):
        monkeypatch.setattr(objective, "loss", _preceded(happens, objective.loss))


def _preceded(happens: Callable[[int], None], loss: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(loss)
    def with_it(objective: Any, drawn: Any, step: int, clock: Any) -> Any:
        happens(step)
        return loss(objective, drawn, step, clock)

    return with_it


def fail_at(step: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run ends with this error at this step."""

    def fail(number: int) -> None:
        if number == step:
            raise error

    at_each_step(fail, monkeypatch)
