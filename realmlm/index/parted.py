"""An index over the ranks that train together: each holds a part of the vectors and answers for all queries.

    rank 0, queries of its own ─╮               ╭─ search the first half ──╮             ╭─ its k best of both
                                ├─ all queries ─┤                          ├─ R · k each ┤
    rank 1, queries of its own ─╯               ╰─ search the second half ─╯             ╰─ its k best of both

Legend: R ranks, Q queries of one, A queries of all, K hits each, E passages never among them, N passages, D
vector size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from realmlm.errors import BadInput, NotEnough
from realmlm.index.exact import ExactIndex, Hits, Index, as_ids, each_once, part_of, ranked
from realmlm.ranks import Ranks


def over_ranks(index: Index, ranks: Ranks) -> Index:
    """An index that each rank has whole, of which each is to keep a part. An approximate one stays whole."""
    if ranks.count == 1 or not isinstance(index, ExactIndex):
        return index
    blocks = [(block.vectors_ND, block.ids_N) for block in index.blocks if block.live_N is None]
    edited = [block for block in index.blocks if block.live_N is not None]
    blocks += [(block.vectors_ND[block.live_rows()], block.live_ids()) for block in edited]
    parts = part_of(blocks, ranks.rank, ranks.count)
    if index.device.type != "cpu":  # else the whole would stay in memory
        parts = [(vectors.clone(), ids.clone()) for vectors, ids in parts]
    return PartedIndex(ExactIndex.from_blocks(parts), ranks)


class PartedIndex:
    """Finds what one index of all parts would, equal scores by the smallest id too. All ranks make the same
    calls at the same time, each with its own queries."""

    def __init__(self, part: Index, ranks: Ranks) -> None:
        assert isinstance(part, ExactIndex), "an approximate index is not parted"
        self._part = part
        self._ranks = ranks
        self.dim = part.dim
        self.dtype = part.dtype
        self._count = int(ranks.numbers(len(part)).sum())

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> Tensor:
        ids_N = self._from_all(self._part.ids)
        return ids_N[ids_N >= 0].sort().values

    def search(self, queries_QD: Tensor, k: int, *, exclude_QE: Tensor | None = None) -> Hits:
        device = self._part.device
        count = len(queries_QD)
        if exclude_QE is None:
            exclude_QE = torch.empty(count, 0, dtype=torch.int64)
        exclude_QE = each_once(exclude_QE)
        queries, excluded = self._ranks.numbers(count, exclude_QE.shape[1]).amax(0).tolist()
        mine_QD = queries_QD.detach().to(device, torch.float32)
        all_AD = self._ranks.gather(F.pad(mine_QD, (0, 0, 0, queries - count)))
        mine_QE = exclude_QE.to(device, torch.int64)
        more = (0, excluded - mine_QE.shape[1], 0, queries - count)
        found = self._best_of_part(all_AD, k, self._ranks.gather(F.pad(mine_QE, more, value=-1)))
        scores_QN = self._for_mine(self._ranks.gather(found.scores_QK), queries)[:count]
        ids_QN = self._for_mine(self._ranks.gather(found.ids_QK), queries)[:count]
        best = ranked(scores_QN, ids_QN, k)
        there = int((best.scores_QK > -torch.inf).sum(1).min()) if count else k
        if there < k:
            raise NotEnough(
                f"k is {k}, but {there} passages can be searched; use --k {there} or a larger corpus"
            )
        return best

    def _for_mine(self, found: Tensor, queries: int) -> Tensor:
        """What all ranks found for the queries of this one [Q, R · K]."""
        ranks = self._ranks
        return found.view(ranks.count, ranks.count, queries, -1)[:, ranks.rank].transpose(0, 1).flatten(1)

    def _best_of_part(self, queries_AD: Tensor, k: int, exclude_AE: Tensor) -> Hits:
        """Of this rank's part, for the queries of all; −inf where there are fewer than k."""
        wanted = min(k + exclude_AE.shape[1], len(self._part))
        found = self._part.best(queries_AD, wanted, self._part.blocks)
        excluded_AK = (found.ids_QK[:, :, None] == exclude_AE[:, None]).any(-1)
        best = ranked(found.scores_QK.masked_fill(excluded_AK, -torch.inf), found.ids_QK, k)
        missing = (0, k - best.ids_QK.shape[1])
        return Hits(F.pad(best.scores_QK, missing, value=-torch.inf), F.pad(best.ids_QK, missing, value=-1))

    def contains(self, ids_N: Tensor) -> Tensor:
        return self._looked_up(ids_N)[:, -1] > 0

    def vectors(self, ids_N: Tensor) -> Tensor:
        vectors_NX = self._looked_up(ids_N)
        if len(absent := ids_N[(vectors_NX[:, -1] == 0).to(ids_N.device)]):
            raise BadInput(f"passage ids {absent[:5].tolist()} are not in the index; see `index.ids`")
        return vectors_NX[:, :-1]

    def _looked_up(self, ids_N: Tensor) -> Tensor:
        """Vectors, and in a last column whether a rank has them [N, D + 1]: all others give zeros."""
        ids_A = self._from_all(as_ids(ids_N, self._part.device))
        here_A = self._part.contains(ids_A)
        vectors_AX = torch.zeros(len(ids_A), self.dim + 1, device=self._part.device)
        vectors_AX[here_A, :-1] = self._part.vectors(ids_A[here_A])
        vectors_AX[here_A, -1] = 1
        return self._ranks.sum(vectors_AX).chunk(self._ranks.count)[self._ranks.rank][: len(ids_N)]

    def _from_all(self, ids_N: Tensor) -> Tensor:
        """The ids of all ranks, −1 where one has fewer than another."""
        most = int(self._ranks.numbers(len(ids_N)).max())
        return self._ranks.gather(F.pad(ids_N, (0, most - len(ids_N)), value=-1))

    def add(self, ids_N: Tensor, vectors_ND: Tensor) -> None:
        raise BadInput("an index over ranks does not change; edit the corpus when they have ended")

    def remove(self, ids_N: Tensor) -> None:
        self.add(ids_N, torch.empty(0))
