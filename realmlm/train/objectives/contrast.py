"""Towers that learn to tell a query's passage from others: those of the other queries of the batch, and those
that were found for it but are wrong (DPR: Karpukhin et al. 2020).

B queries, U passages, D vector size.
"""

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.log import Clock
from realmlm.model.inputs import send
from realmlm.model.marginal import contrast, inner_products
from realmlm.model.packed import Size
from realmlm.model.realm import Realm
from realmlm.model.resident import Queries, Resident
from realmlm.reading.packed import lay_out
from realmlm.reading.retrieve import Offered, embed_documents
from realmlm.settings import Optim
from realmlm.train.objective import Group, Objective, Staged, retriever_groups, scale_of
from realmlm.train.pairs import Contrasts, Pairs

_SIZES = 64  # that packed sequences may come in; a run sees a few of them


class PassageContrast(Objective):
    """−log p(z|x) among the passages of the batch."""

    def __init__(
        self, model: Realm, corpus: Corpus, pairs: Pairs, *, optim: Optim, scale_lr: float, bf16: bool
    ) -> None:
        self.model = model
        self.corpus = corpus
        self.pairs = pairs
        self.optim = optim
        self._scale_lr = scale_lr
        self._bf16 = bf16
        self.resident: Resident | None = None
        """The corpus on the device, where everything is read packed."""

    def groups(self) -> dict[str, Group]:
        towers = self.model.retriever_parameters()
        return retriever_groups(self.model, towers, lr=self.optim.lr, scale_lr=self._scale_lr)

    def prepare(self, model: Realm) -> None:
        super().prepare(model)
        encoders = (model.query.encoder, model.document.encoder)
        self.resident = lay_out(model, self.corpus, encoders, bf16=self._bf16)

    def draw(self, first: int, count: int) -> Contrasts:
        """A rank's share of the queries, which are told from the passages of all, and of these its share to
        embed."""
        ranks = self.ranks
        whole = self.pairs.draw(first - ranks.rank * count, ranks.count * count)
        return whole if ranks.count == 1 else whole.share(ranks.rank, ranks.count)

    def loss(self, drawn: Contrasts, step: int, clock: Clock) -> tuple[Tensor, dict[str, Tensor]]:
        clock("embed")
        if (staged := self.stage(drawn, step, clock)) is not None:
            return self.compute(staged)
        model = self.model
        query_BD = model.query(model.query_inputs(drawn.queries).to(model.device))
        offered = Offered(self.corpus, drawn.ids_U[None], null=False)
        vectors_UD = embed_documents(model, offered.titles_N, offered.bodies_N)
        own_B = torch.from_numpy(drawn.own_B).to(model.device)
        return self._told_apart(
            query_BD, vectors_UD, own_B, torch.from_numpy(drawn.others_BU).to(model.device)
        )

    def _told_apart(
        self, query_BD: Tensor, vectors_UD: Tensor, own_B: Tensor, others_BU: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss_B, found_B = contrast(inner_products(query_BD, self.ranks.gather(vectors_UD)), own_B, others_BU)
        return loss_B.mean(), {"found": found_B.float().mean(), **scale_of(self.model)}

    # --- the same with everything on the device -------------------------------------------------------------

    def stage(self, drawn: Contrasts, step: int, clock: Clock) -> Staged | None:
        """Send what was drawn, and find out how much there is to embed."""
        resident = self.resident
        if resident is None:
            return None
        config = self.model.config
        pieces = self.model.wordpieces
        queries = Queries.of(drawn.queries, width=config.max_query, device=resident.device)
        asked = [min(len(query), config.max_query) + pieces.single.special for query in drawn.queries]
        there = drawn.ids_U[drawn.ids_U >= 0]
        lengths = self.corpus.lengths_of(there) + pieces.pair.special
        read = np.minimum(lengths, config.max_document)
        tensors = {
            "tokens": queries.tokens_BQ,
            "lengths": queries.lengths_B,
            "ids": send(torch.from_numpy(drawn.ids_U), resident.device),
            "own": send(torch.from_numpy(drawn.own_B), resident.device),
            "others": send(torch.from_numpy(drawn.others_BU), resident.device),
        }
        longest_query = config.max_query + pieces.single.special
        sizes = (
            _fitting(sum(asked), of=len(asked), longest=longest_query),
            _fitting(int(read.sum()), of=len(drawn.ids_U), longest=config.max_document),
        )
        return Staged(tensors, sizes)

    def compute(self, staged: Staged) -> tuple[Tensor, dict[str, Tensor]]:
        resident = self.resident
        assert resident is not None
        query_room, document_room = staged.sizes
        tensors = staged.tensors
        queries = Queries(tensors["tokens"], tensors["lengths"])
        ids_U = tensors["ids"]
        query_BD = self.model.query(resident.queries(queries, query_room))
        vectors_UD = self.model.document(resident.documents(ids_U, document_room, there_N=ids_U >= 0))
        return self._told_apart(query_BD, vectors_UD, tensors["own"], tensors["others"])


def _fitting(needed: int, *, of: int, longest: int) -> Size:
    """Room for so many wordpieces of so many sequences; titles that are cut may leave some of it empty."""
    size = Size.fitting(needed, grain=-(-of * longest // _SIZES), longest=longest)
    return Size(size.total, longest, size.total)
