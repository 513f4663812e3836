"""Towers without layers: each wordpiece has a vector and a weight, and a text is the weighted sum.

Embed(x) = LayerNorm(W · Σ_t exp(a_t) e_t), t the wordpieces of x. Their order does not count, and no layer is
computed: a step costs a thousandth of an encoder's, and a corpus is embedded at the speed of its memory. The
weights begin with how rare a wordpiece is, as in word matching; the vectors learn which words belong
together.

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
from realmlm.model.bert import Hidden

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

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Hidden:
        """Each wordpiece's weighted vector [N, L, H], or [T, H]."""
        return Hidden(self.embeddings(input_ids) * self.log_weight_V[input_ids].exp()[..., None])

    def mean(self, tokens_NL: Tensor, attention_NL: Tensor) -> Tensor:
        """Their mean over each sequence [N, H], without a vector in memory for each wordpiece."""
        there_NL = attention_NL.bool()
        lengths_N = there_NL.sum(1)
        if not isinstance(self.embeddings, nn.Embedding):  # a table in 8 bits
            weighted_NLH = self(tokens_NL).last_hidden_state.masked_fill(~there_NL[:, :, None], 0.0)
            return weighted_NLH.sum(1) / lengths_N[:, None]
        tokens_T = tokens_NL[there_NL]
        total_NH = F.embedding_bag(
            tokens_T,
            self.embeddings.weight,
            F.pad(lengths_N.cumsum(0)[:-1], (1, 0)),
            mode="sum",
            per_sample_weights=self.log_weight_V[tokens_T].exp(),
        )
        return total_NH / lengths_N[:, None]

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
