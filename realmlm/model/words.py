"""Towers without layers: each wordpiece has a vector and a weight, a text is the sum of those it has.

Embed(x) = LayerNorm(W · Σ exp(a_t) e_t), over the different wordpieces t of x. Neither their order counts nor
how often one stands there, and no layer is computed, so that a CPU is enough to learn from a large corpus
(docs/decisions/022). The weights begin with how rare a wordpiece is, as in word matching; the vectors learn
which words belong together.

N sequences, L wordpieces, T wordpieces of all sequences, V vocabulary, H hidden size, P passages.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from realmlm.corpus.questions import spread
from realmlm.corpus.store import Corpus
from realmlm.model.inputs import Inputs
from realmlm.model.packed import Packed

WORDS = "words"
"""The model_type in a config."""
_LOOKED_AT = 50_000  # passages in which wordpieces are counted
_COMMONEST = 0.05  # least weight to begin with, the mean being 1


@dataclass(frozen=True, kw_only=True)
class WordsSettings:
    """What shapes such a tower, by the names that encoders use."""

    vocab_size: int
    hidden_size: int
    model_type: str = WORDS

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "WordsSettings":
        """Those of a config."""
        return cls(**{item.name: settings[item.name] for item in fields(cls) if item.name in settings})


class Words(nn.Module):
    """A vector and a weight for each wordpiece, in the place of an encoder."""

    def __init__(self, config: WordsSettings, *, draw: bool) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, device=None if draw else "meta")
        if draw:
            nn.init.normal_(self.embeddings.weight, std=config.hidden_size**-0.5)
        else:
            self.embeddings.to_empty(device="cpu")
        self.log_weight_V = nn.Parameter(torch.zeros(config.vocab_size))

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, words: nn.Module) -> None:
        self.embeddings = words  # type: ignore[assignment]

    def of(self, inputs: Inputs | Packed) -> Tensor:
        """The sum of each sequence [N, H]."""
        if isinstance(inputs, Packed):
            return self.sums(inputs.tokens_T, inputs.rows_T, len(inputs))
        rows_T, columns_T = inputs.attention_NL.nonzero(as_tuple=True)
        return self.sums(inputs.tokens_NL[rows_T, columns_T], rows_T, len(inputs))

    def sums(self, tokens_T: Tensor, rows_T: Tensor, count: int) -> Tensor:
        """The sum of each of `count` sequences [N, H]. `rows_T` say which one a wordpiece is of; those of
        none say `count` or more."""
        size = self.config.vocab_size
        key_T = (rows_T * size + tokens_T).sort().values
        first_T = torch.ones_like(key_T, dtype=torch.bool)
        first_T[1:] = key_T[1:] != key_T[:-1]  # a wordpiece counts once
        tokens_T = key_T % size
        rows_T = key_T // size
        weight_T = self.log_weight_V[tokens_T].exp() * first_T
        if tokens_T.is_cuda or not isinstance(self.embeddings, nn.Embedding):  # or a table in 8 bits
            weighted_TH = self.embeddings(tokens_T).float() * weight_T[:, None]
            total_NH = weighted_TH.new_zeros(count + 1, weighted_TH.shape[1])
            return total_NH.index_add(0, rows_T.clamp(max=count), weighted_TH)[:-1]
        # without a vector in memory for each wordpiece
        borders = torch.searchsorted(rows_T, torch.arange(count + 1))
        table_VH = self.embeddings.weight
        return F.embedding_bag(tokens_T, table_VH, borders, mode="sum", per_sample_weights=weight_T)[:-1]

    @torch.no_grad()
    def begin_with_rarity(self, corpus: Corpus) -> None:
        """Weigh wordpieces by log((P − n + ½) / (n + ½) + 1), n the passages that have them, as BM25 does;
        what stands around texts, and [MASK], hardly counts."""
        chosen = [corpus.ids[place] for place in spread(len(corpus.ids), min(len(corpus.ids), _LOOKED_AT))]
        texts = corpus.tokens_of(chosen)
        having_V = np.zeros(self.config.vocab_size)
        for title, body in zip(texts.titles, texts.bodies, strict=True):
            having_V[np.unique(np.concatenate([title, body]))] += 1
        rarity_V = np.log1p((len(chosen) - having_V + 0.5) / (having_V + 0.5))
        weight_V = np.maximum(rarity_V / rarity_V.mean(), _COMMONEST)
        pieces = corpus.wordpieces
        weight_V[
            [piece for piece in (pieces.cls, pieces.sep, pieces.pad, pieces.mask) if piece is not None]
        ] = _COMMONEST
        self.log_weight_V.copy_(torch.from_numpy(np.log(weight_V)))
