"""Reading with everything on the device: sentences, passages and where hidden words stand in them never come
back to the host.

B sentences, K passages each, N = B · K pairs, Q wordpieces of the longest query, S masks of all sentences, M
masks of one, W span widths, E passages that belong to one, J wordpieces of the longest body, T wordpieces of
packed sequences, H hidden size, U passages looked at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import MAX_TITLE, Corpus
from realmlm.model.encoders import Encoder, Reader, Tower
from realmlm.model.inputs import Masked
from realmlm.model.packed import Packed, Size
from realmlm.model.packed_heads import span_scores, target_log_p
from realmlm.model.realm import Realm
from realmlm.model.resident import Queries, Resident
from realmlm.reading.read import SpanReading

_GRAIN = 40  # wordpieces a sentence: packed sequences come in sizes so far apart, a few in a run
_LEAST = 256


class Shape(NamedTuple):
    """Sizes of a batch of masked sentences."""

    sentences: int  # B
    query: int  # Q
    widths: int  # W
    passages: int  # E
    masks: int  # S, some of them none


@dataclass(frozen=True)
class MaskedBatch:
    """Masked sentences as tensors on the device, in sizes that many batches share."""

    seen: Queries  # what the query tower is given
    queries: Queries  # what the reader is given
    runs_BW: Tensor  # what a sentence hides, where that is one run
    run_lengths_B: Tensor  # 0 where it is not
    passages_BE: Tensor  # that belong to each: not to be offered, or to be read; −1 where there are no more
    rows_S: Tensor  # the sentence of each mask
    positions_S: Tensor  # where it stands in the sentence
    places_S: Tensor  # how many masks of the sentence come before it
    targets_S: Tensor  # what it hides
    valid_S: Tensor  # is it one at all?

    @classmethod
    def of(cls, flat: Tensor, shape: Shape) -> "MaskedBatch":
        """From one array, as `flatten` makes it."""
        of_sentence = (shape.query, 1, shape.query, 1, shape.widths, 1, shape.passages)
        sizes = [shape.sentences * width for width in of_sentence] + [shape.masks] * 5
        parts = [part.long() for part in flat.split(sizes)]
        wide = [part.view(shape.sentences, -1) for part in parts[:7]]
        seen = Queries(wide[0], wide[1][:, 0])
        queries = Queries(wide[2], wide[3][:, 0])
        rows_S, positions_S, places_S, targets_S, valid_S = parts[7:]
        hidden = (rows_S, positions_S, places_S, targets_S, valid_S > 0)
        return cls(seen, queries, wide[4], wide[5][:, 0], wide[6], *hidden)

    def fitting(self, needed: int, *, longest: int, more: int = 0) -> Size:
        """Room for so many wordpieces, of which as many as `more` may not be needed after all."""
        grain = max(_LEAST, len(self.run_lengths_B) * _GRAIN)
        size = Size.fitting(needed, grain=grain, longest=longest)
        return Size(size.total, longest, size.filling + more)

    def room(self, held: int, *, of: int) -> int:
        """How many of the pairs are looked at where so many hold the hidden words."""
        grain = 2 * len(self.run_lengths_B)
        return min(of, max(1, -(-held // grain)) * grain)

    def by_mask(self, values_SK: Tensor) -> tuple[Tensor, Tensor]:
        """Values of masks by sentence [B, K, M], and which of them are masks [B, M]."""
        count, most = self.queries.tokens_BQ.shape
        flat_S = self.rows_S * most + self.places_S
        # what is no mask goes to a place of its own, so that it overwrites nothing
        flat_S = torch.where(self.valid_S, flat_S, count * most)
        table = values_SK.new_zeros(count * most + 1, values_SK.shape[1])
        found_BMK = table.index_put((flat_S,), values_SK)[:-1].view(count, most, -1)
        valid = torch.zeros_like(table[:, 0], dtype=torch.bool).index_fill(0, flat_S, True)
        return found_BMK.transpose(1, 2), valid[:-1].view(count, most)


def flatten(
    masked: Masked, seen: Sequence[np.ndarray], passages_BE: np.ndarray, *, max_query: int, widths: int
) -> tuple[np.ndarray, Shape]:
    """Masked sentences as one array, to be sent at once."""
    count = len(masked.queries)
    texts = []
    for queries in (seen, masked.queries):
        tokens_BQ = np.zeros((count, max_query), dtype=np.int32)
        lengths_B = np.zeros(count, dtype=np.int32)
        for row, query in enumerate(queries):
            cut = query[:max_query]
            tokens_BQ[row, : len(cut)] = cut
            lengths_B[row] = len(cut)
        texts += [tokens_BQ, lengths_B]
    runs_BW = np.zeros((count, widths), dtype=np.int32)
    run_lengths_B = np.zeros(count, dtype=np.int32)
    for row, words in enumerate(masked.runs(widths)):
        if words is not None:
            runs_BW[row, : len(words)] = words
            run_lengths_B[row] = len(words)
    rows, places = np.nonzero(masked.valid_BM)
    grain = max(1, count // 2)
    masks = -(-max(1, len(rows)) // grain) * grain  # a batch may hide nothing
    table_S5 = np.zeros((5, masks), dtype=np.int32)
    hidden = (masked.positions_BM[rows, places], places, masked.targets_BM[rows, places])
    table_S5[:, : len(rows)] = (rows, *hidden, np.ones_like(rows))
    parts = (*texts, runs_BW, run_lengths_B, passages_BE.astype(np.int32), table_S5)
    shape = Shape(count, max_query, widths, passages_BE.shape[1], masks)
    return np.concatenate([part.ravel() for part in parts]), shape


def lay_out(model: Realm, corpus: Corpus, encoders: Sequence[Encoder], *, bf16: bool) -> Resident | None:
    """The corpus on the model's device, if these encoders read sequences end to end there and it fits."""
    device = model.device
    longest = max(model.config.max_document, model.config.max_joint)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16 and device.type == "cuda"):
        if not all(encoder.packs(device, longest) for encoder in encoders):
            return None
    return Resident.of(corpus, model.config, model.wordpieces, device=device)


def pair_size(model: Realm, corpus: Corpus, queries: Sequence[np.ndarray], ids_BK: np.ndarray) -> Size:
    """Room for queries joined with their passages, by what the host knows; a little may stay empty."""
    config = model.config
    layout = model.wordpieces.pair
    texts = sum(min(len(query), config.max_query) for query in queries) * ids_BK.shape[1]
    texts += int(corpus.lengths_of(ids_BK.flatten()).sum())
    inner = ids_BK.size * len(layout.between)
    cut = ids_BK.size * MAX_TITLE if not config.read_titles else 0
    total = texts + ids_BK.size * layout.special + inner
    return Size(total, config.max_joint, total if config.max_together else inner + cut)


def read_spans_packed(model: Realm, packed: Packed, scores_N: Tensor) -> SpanReading:
    """Score all spans of joined queries and passages, whose f(x,z) are `scores_N`. Columns are the wordpieces
    of a body and, where spans of titles can be answers, before them those of a title, the last one last."""
    reader = model.reader
    hidden_TH = reader.encoder(packed)
    scores_TW = span_scores(reader, hidden_TH[None])[0]
    device = scores_TW.device
    title = title_columns(model)
    first_J = torch.arange(-title, model.config.max_passage, device=device)
    apart_J = (first_J < 0) * len(packed.layout.between)
    places_NJ = packed.second_N[:, None] + first_J - apart_J
    whole_NJ = (packed.starts_N[:, None] + places_NJ).clamp(min=0, max=len(scores_TW) - 1)
    past_JW = first_J[:, None] + torch.arange(scores_TW.shape[1], device=device)
    lengths_N11 = (packed.lengths_N - packed.second_N - len(packed.layout.after))[:, None, None]
    allowed_NJW = past_JW < lengths_N11
    if title:
        within_NJ = places_NJ >= packed.title_N[:, None]
        allowed_NJW = torch.where(first_J[:, None] < 0, within_NJ[:, :, None] & (past_JW < 0), allowed_NJW)
    logit_N = reader.passage_logits(hidden_TH, packed)
    body_N = torch.full_like(packed.second_N, title)
    return SpanReading.of(model, scores_N, logit_N, (scores_TW[whole_NJ], allowed_NJW), body_N=body_N)


def title_columns(model: Realm) -> int:
    """Columns that wordpieces of titles have where spans are scored packed."""
    return MAX_TITLE if model.config.title_answers else 0


def embed_seen(model: Realm, resident: Resident, batch: MaskedBatch, *, tower: Tower | None = None) -> Tensor:
    """Embed_query of the sentences, with gradient [B, D]; by another `tower`, if one is given."""
    count, width = batch.seen.tokens_BQ.shape
    longest = width + model.wordpieces.single.special
    size = Size(count * longest, longest, count * longest)
    return (tower or model.query)(resident.queries(batch.seen, size))


def embed_to_search(
    model: Realm, resident: Resident, batch: MaskedBatch, *, tower: Tower | None = None
) -> Tensor:
    """The same to search with: float32, without gradient."""
    with torch.no_grad():
        query_BD = embed_seen(model, resident, batch, tower=tower).float()
    # before torch 2.11, weights that were cast to bfloat16 here would be used later on without a gradient
    torch.clear_autocast_cache()
    return query_BD


class Offer(NamedTuple):
    """The passages offered to each sentence, each looked at once however many sentences it is offered to."""

    ids_BK: Tensor  # −1: the null document
    ids_U: Tensor  # the different ones; what follows them is not there
    there_U: Tensor
    place_BK: Tensor  # where among the different ones
    needed: Tensor  # wordpieces of documents, of pairs, and pairs in which hidden words stand


@torch.no_grad()
def offer(resident: Resident, batch: MaskedBatch, ids_BK: Tensor, *, widest: int) -> Offer:
    """The different ones of these passages, and how much there is to read."""
    flat_N = ids_BK.flatten()
    sorted_N, order_N = flat_N.sort(stable=True)
    new_N = torch.ones_like(sorted_N, dtype=torch.bool)
    new_N[1:] = sorted_N[1:] != sorted_N[:-1]
    rank_N = new_N.cumsum(0) - 1
    ids_U = torch.full_like(flat_N, -1).scatter(0, rank_N, sorted_N)
    there_U = torch.arange(len(flat_N), device=flat_N.device) <= rank_N[-1]
    place_N = torch.empty_like(flat_N).scatter(0, order_N, rank_N)
    documents = (resident.document_lengths(ids_U) * there_U).sum()
    rows_N = rows_of(ids_BK)
    pairs = resident.pair_lengths(batch.queries, rows_N, flat_N).sum()
    held = standing_in(resident, batch, ids_BK, widest=widest).any(1).sum()
    return Offer(ids_BK, ids_U, there_U, place_N.view_as(ids_BK), torch.stack([documents, pairs, held]))


def rows_of(ids_BK: Tensor) -> Tensor:
    """The sentence of each pair [N]."""
    return torch.arange(ids_BK.numel(), device=ids_BK.device) // ids_BK.shape[1]


def standing_in(resident: Resident, batch: MaskedBatch, ids_BK: Tensor, *, widest: int) -> Tensor:
    """Where the hidden words stand in the passages' bodies [N, J], J = `widest`, as `places_of` says."""
    rows_N = rows_of(ids_BK)
    width = batch.runs_BW.shape[1]
    tokens_NJ, lengths_N = resident.bodies(ids_BK.flatten(), widest + width)
    run_N1 = batch.run_lengths_B[rows_N][:, None]
    runs_NW = batch.runs_BW[rows_N]
    columns_J = torch.arange(widest, device=ids_BK.device)
    found_NJ = (run_N1 > 0) & (columns_J + run_N1 <= lengths_N[:, None])
    for offset in range(width):
        same_NJ = tokens_NJ[:, offset : offset + widest] == runs_NW[:, offset : offset + 1]
        found_NJ = found_NJ & (same_NJ | (offset >= run_N1))
    ends_NJ = columns_J + run_N1
    longer_NJ = resident.lengthens_V[tokens_NJ.gather(1, ends_NJ).long()]
    return found_NJ & ~(longer_NJ & (ends_NJ < lengths_N[:, None]))


def mask_places(packed: Packed, batch: MaskedBatch, *, k: int) -> Tensor:
    """Where the masks stand in the sentences joined with K passages each [S · K]."""
    rows_SK = batch.rows_S[:, None] * k + torch.arange(k, device=batch.rows_S.device)
    before = len(packed.layout.before)
    return (packed.starts_N[rows_SK] + before + batch.positions_S[:, None]).flatten()


def read_targets(reader: Reader, hidden_nH: Tensor, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
    """log p of what the masks hide [S, K] from the vectors there, and whether it is the likeliest."""
    masks = len(batch.targets_S)
    targets_SK = batch.targets_S[:, None].expand(-1, len(hidden_nH) // masks)
    log_p_n, likeliest_n = target_log_p(reader, hidden_nH, targets_SK.flatten())
    return log_p_n.view_as(targets_SK), likeliest_n.view_as(targets_SK)


class Bodies(NamedTuple):
    """The bodies of some pairs, in which hidden words are looked for."""

    pairs_n: Tensor
    lengths_n: Tensor  # wordpieces of them that are read
    places_nJ: Tensor  # where they stand among the packed sequences


def bodies_of(packed: Packed, standing_NJ: Tensor, *, room: int) -> Bodies:
    """Those of `room` pairs, first of all that hold the words."""
    device = standing_NJ.device
    pairs_n = standing_NJ.any(1).long().argsort(descending=True, stable=True)[:room]
    lengths_n = (packed.lengths_N - packed.second_N - len(packed.layout.after))[pairs_n]
    first_n = (packed.starts_N + packed.second_N)[pairs_n]
    columns_J = torch.arange(standing_NJ.shape[1], device=device)
    # what is past the end is spread over all places: gradients that meet in one place are slow
    elsewhere_nJ = torch.arange(room * len(columns_J), device=device).view(room, -1) % len(packed.tokens_T)
    inside_nJ = columns_J < lengths_n[:, None]
    return Bodies(pairs_n, lengths_n, torch.where(inside_nJ, first_n[:, None] + columns_J, elsewhere_nJ))


def point_packed(
    reader: Reader, hidden_nJH: Tensor, bodies: Bodies, standing_NJ: Tensor, widths_N: Tensor
) -> tuple[Tensor, Tensor]:
    """log p(the words where they stand|z,x) [N], −inf where they do not; and where they do [N].

    From the vectors of these bodies; `widths_N` are how many words are hidden.
    """
    scores_nJW = span_scores(reader, hidden_nJH)
    device = scores_nJW.device
    columns_J = torch.arange(standing_NJ.shape[1], device=device)
    ends_JW = columns_J[:, None] + torch.arange(scores_nJW.shape[2], device=device)
    allowed_nJW = ends_JW < bodies.lengths_n[:, None, None]
    width_nJ1 = (widths_N[bodies.pairs_n] - 1).clamp(min=0)[:, None, None].expand(-1, len(columns_J), 1)
    gold_nJ = standing_NJ[bodies.pairs_n] & allowed_nJW.gather(2, width_nJ1)[:, :, 0]
    lowest = torch.finfo(scores_nJW.dtype).min / 4  # not −inf: rows without any would give NaN
    scores_nJW = scores_nJW.masked_fill(~allowed_nJW, lowest)
    right_nJ = scores_nJW.gather(2, width_nJ1)[:, :, 0].masked_fill(~gold_nJ, lowest)
    log_p_n = torch.logsumexp(right_nJ, dim=1) - torch.logsumexp(scores_nJW.flatten(1), dim=1)
    held_n = gold_nJ.any(1)
    nowhere_N = torch.full((len(standing_NJ),), -math.inf, device=device)
    log_p_N = nowhere_N.index_put((bodies.pairs_n,), torch.where(held_n, log_p_n, -math.inf))
    return log_p_N, torch.zeros_like(standing_NJ[:, 0]).index_put((bodies.pairs_n,), held_n)


def read_packed(
    reader: Reader, packed: Packed, batch: MaskedBatch, standing_NJ: Tensor | None, *, k: int, room: int
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """log p of what the masks hide [S, K], whether it is the likeliest, and what `point_packed` gives, unless
    no one asks where the words stand. The reader's last layer is computed where it is looked at alone."""
    masks_n = mask_places(packed, batch, k=k)
    if standing_NJ is None:
        return *read_targets(reader, reader.encoder.at(packed, masks_n), batch), None
    bodies = bodies_of(packed, standing_NJ, room=room)
    hidden_RH = reader.encoder.at(packed, torch.cat([masks_n, bodies.places_nJ.flatten()]))
    hidden_nH, hidden_mH = hidden_RH.split([len(masks_n), bodies.places_nJ.numel()])
    hidden_nJH = hidden_mH.view(*bodies.places_nJ.shape, -1)
    widths_N = batch.run_lengths_B.repeat_interleave(k, output_size=len(standing_NJ))
    pointed = point_packed(reader, hidden_nJH, bodies, standing_NJ, widths_N)
    return *read_targets(reader, hidden_nH, batch), pointed
