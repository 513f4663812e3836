"""Keeps a retriever that learns from text alone from forgetting how to find what questions ask for."""

from typing import Any

import numpy as np
import torch

from realmlm.corpus.questions import Question
from realmlm.corpus.store import Corpus
from realmlm.evaluation.matching import first_with_answer
from realmlm.index.exact import Index
from realmlm.model.encoders import Tower
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import embed_queries

DEPTH = 20  # passages that are looked at for each question
ALLOWED = 0.5  # points of recall that may be lost
_AT_ONCE = 256  # questions embedded


class Guard:
    """Counts with each new index for how many questions an answer stands in the first passages found; each
    time it is too few beside the first count, the retriever's rate is halved."""

    def __init__(self, model: Realm, corpus: Corpus, questions: list[Question]) -> None:
        self._model = model
        self._corpus = corpus
        self._questions = questions
        self._start: float | None = None  # recall through the first index, in percent
        self._swaps = -1  # how many had been made when it was last looked
        self.factor = 1.0
        """Of the retriever's learning rate."""

    def look(self, index: Index, swaps: int, tower: Tower | None = None) -> dict[str, float]:
        """Measure if the index is a new one; numbers for the row of metrics. `tower` asks, if it is not the
        model's own."""
        if swaps == self._swaps:
            return {}
        self._swaps = swaps
        with self._model.whole():
            recall = self._recall(index, tower)
        if self._start is None:
            self._start = recall
        elif recall < self._start - ALLOWED:
            self.factor /= 2
        return {"guarded": round(recall, 2), "retriever_rate": self.factor}

    def _recall(self, index: Index, tower: Tower | None) -> float:
        training = self._model.training
        self._model.eval()
        model = self._model
        asked = [model.wordpieces.encode_query(question.text) for question in self._questions]
        parts = [asked[first : first + _AT_ONCE] for first in range(0, len(asked), _AT_ONCE)]
        with torch.inference_mode():
            query_QD = torch.cat([embed_queries(model, part, tower=tower).cpu() for part in parts])
        self._model.train(training)
        ids_QK = index.search(query_QD, min(DEPTH, len(index))).ids_QK.cpu().numpy()
        ids_U = np.unique(ids_QK).tolist()
        texts = dict(zip(ids_U, self._corpus.texts(ids_U), strict=True))
        holding = [
            first_with_answer((texts[number] for number in ids), question, recall="dpr") is not None
            for question, ids in zip(self._questions, ids_QK.tolist(), strict=True)
        ]
        return 100 * float(np.mean(holding))

    def state(self) -> dict[str, Any]:
        return {"start": self._start, "swaps": self._swaps, "factor": self.factor}

    def load_state(self, state: dict[str, Any]) -> None:
        self._start = state["start"]
        self._swaps = state["swaps"]
        self.factor = state["factor"]
