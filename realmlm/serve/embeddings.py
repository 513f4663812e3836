"""Vectors of texts over HTTP: plainly, and in the form of OpenAI's embeddings, which many tools speak."""

import asyncio
import base64
from collections.abc import Callable, Sequence

import numpy as np
from fastapi import APIRouter

from realmlm.engine import Engine
from realmlm.errors import BadInput
from realmlm.serve.around import Refusal
from realmlm.serve.log import note_work
from realmlm.serve.shapes import (
    EmbeddedText,
    EmbeddingModel,
    EmbeddingModels,
    Embeddings,
    EmbeddingsWanted,
    Texts,
    Tower,
    Usage,
    Vectors,
)
from realmlm.serve.worker import Results, Worker

AT_ONCE = 64  # texts that the model is given at once; in between, others have their turn
_TOWERS: dict[str, Tower] = {"realmlm-query": "query", "realmlm-passage": "passage"}

Titled = tuple[tuple[str, str], ...]  # texts, each with its title


def embedding_routes(engine: Engine, worker: Worker) -> APIRouter:
    """Embedding texts by either tower."""
    routes = APIRouter()
    results = Results()

    async def embed(tower: Tower, texts: Sequence[str], titles: Sequence[str] | None = None) -> np.ndarray:
        titled = tuple(zip(texts, titles or [""] * len(texts), strict=True))
        vectors = []
        for first in range(0, len(titled), AT_ONCE):
            part = titled[first : first + AT_ONCE]
            # single texts, as those who search send them, are embedded together
            key = ("embed", tower) if len(part) == 1 else object()
            done = worker.together(_embedding(engine, tower), part, key=key)
            vectors.append(await results.result(done))
            note_work(done)
        return np.concatenate(vectors)

    @routes.post("/embed", summary="The vectors of texts")
    async def plain(asked: Texts) -> Vectors:
        if asked.titles is not None and asked.tower == "query":
            raise BadInput('queries have no titles; leave "titles" out, or say "tower": "passage"')
        if asked.titles is not None and len(asked.titles) != len(asked.texts):
            raise BadInput(f"{len(asked.texts)} texts came with {len(asked.titles)} titles; give each one")
        vectors = await embed(asked.tower, asked.texts, asked.titles)
        return Vectors(vectors=vectors.tolist())

    def known(model: str) -> str:
        if model not in _TOWERS:
            why = f"there is no model '{model}' here; use {' or '.join(_TOWERS)}"
            raise Refusal(404, why, code="model_not_found", param="model")
        return model

    @routes.post("/v1/embeddings", summary="The vectors of texts, as OpenAI's clients ask for them")
    async def as_openai(asked: EmbeddingsWanted) -> Embeddings:
        size = engine.model.config.projection
        if asked.dimensions not in (None, size):
            raise BadInput(f'vectors have {size} numbers, not {asked.dimensions}; leave "dimensions" out')
        tower = _TOWERS[known(asked.model)]
        vectors_ND = await embed(tower, asked.input)
        used = await asyncio.to_thread(_wordpieces, engine, tower, asked.input)
        return Embeddings(
            data=[
                EmbeddedText(index=index, embedding=_written(vector_D, asked.encoding_format))
                for index, vector_D in enumerate(vectors_ND)
            ],
            model=asked.model,
            usage=Usage(prompt_tokens=used, total_tokens=used),
        )

    @routes.get("/v1/models", summary="The towers, as OpenAI's clients ask for them")
    async def models() -> EmbeddingModels:
        return EmbeddingModels(data=[EmbeddingModel(id=name) for name in _TOWERS])

    @routes.get("/v1/models/{name}", summary="A tower, as OpenAI's clients ask for it")
    async def model(name: str) -> EmbeddingModel:
        return EmbeddingModel(id=known(name))

    return routes


def _embedding(engine: Engine, tower: Tower) -> Callable[[list[Titled]], list[np.ndarray]]:
    def work(requests: list[Titled]) -> list[np.ndarray]:
        texts, titles = zip(*(pair for request in requests for pair in request), strict=True)
        vectors = engine.embed(texts, kind=tower, titles=titles if tower == "passage" else None)
        ends = np.cumsum([len(request) for request in requests])
        return np.split(vectors.numpy(), ends[:-1])

    return work


def _wordpieces(engine: Engine, tower: Tower, texts: Sequence[str]) -> int:
    """How many the model reads of texts: what is longer than a query or passage is cut off."""
    config = engine.model.config
    longest = config.max_query if tower == "query" else config.max_passage
    return sum(min(len(encoding), longest) for encoding in engine.model.wordpieces.encode_batch(list(texts)))


def _written(vector_D: np.ndarray, form: str | None) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector_D.astype("<f4").tobytes()).decode()
    return [float(number) for number in vector_D]
