"""Joining, padding and masking against the obvious construction."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from realmlm.corpus.wordpieces import Wordpieces
from realmlm.model.inputs import AT_ONCE, mask_queries, pair_inputs, reader_inputs
from realmlm.worlds import world_wordpieces

WORDPIECES: Wordpieces = world_wordpieces()
pieces = st.lists(st.integers(5, 200), max_size=12).map(lambda ids: np.array(ids, dtype=np.int64))


@given(st.lists(st.tuples(pieces, pieces), min_size=1, max_size=5), st.integers(1, 10), st.integers(6, 24))
def test_pairs_are_joined_as_the_paper_joins_them(
    pairs: list[tuple[np.ndarray, np.ndarray]], max_first: int, max_length: int
) -> None:
    inputs = pair_inputs(
        [a for a, _ in pairs], [b for _, b in pairs], WORDPIECES, max_first=max_first, max_length=max_length
    )
    for row, (first, second) in enumerate(pairs):
        first = first[: min(max_first, max_length - 3)]
        second = second[: max_length - 3 - len(first)]
        expected = [WORDPIECES.cls, *first, WORDPIECES.sep, *second, WORDPIECES.sep]
        length = int(inputs.attention_NL[row].sum())
        assert inputs.tokens_NL[row, :length].tolist() == expected
        assert inputs.tokens_NL[row, length:].eq(WORDPIECES.pad).all()
        assert inputs.segments_NL[row, :length].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert inputs.second_N[row] == len(first) + 2
        assert length <= max_length


TEMPLATES = {
    "RoBERTa": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"),
    "XLNet": ("$A [SEP] [CLS]:2", "$A [SEP] $B:1 [SEP]:1 [CLS]:2"),
    "T5": ("$A [SEP]", "$A [SEP] $B [SEP]"),
    "one segment higher": ("[CLS]:1 $A:1 [SEP]:1", "[CLS]:1 $A:1 [SEP]:1 $B:2 [SEP]:2"),
}


def written_by(name: str) -> Wordpieces:
    """The world's tokenizer with another family's post-processor."""
    tokenizer = Tokenizer.from_str(WORDPIECES.tokenizer.to_str())
    tokenizer.post_processor = processors.TemplateProcessing(*TEMPLATES[name], [("[CLS]", 2), ("[SEP]", 3)])
    return Wordpieces(tokenizer)


FAMILIES = {name: written_by(name) for name in TEMPLATES}


@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.lists(st.tuples(pieces, pieces), min_size=1, max_size=5),
    st.integers(1, 10),
    st.integers(6, 24),
)
def test_pairs_are_joined_by_the_template(
    name: str, pairs: list[tuple[np.ndarray, np.ndarray]], max_first: int, max_length: int
) -> None:
    wordpieces = FAMILIES[name]
    (single, pair) = TEMPLATES[name]
    for template in (single, pair):
        parts = [(part.split(":")[0], int(part.partition(":")[2] or 0)) for part in template.split()]
        special = sum(not part.startswith("$") for part, _ in parts)
        two = template is pair
        seconds = [second for _, second in pairs] if two else None
        inputs = pair_inputs(
            [first for first, _ in pairs], seconds, wordpieces, max_first=max_first, max_length=max_length
        )
        for row, (first, second) in enumerate(pairs):
            first = first[: min(max_first, max_length - special)]
            second = second[: max_length - special - len(first)]
            content = {
                "$A": first.tolist(),
                "$B": second.tolist(),
                "[CLS]": [wordpieces.cls or 2],
                "[SEP]": [wordpieces.sep],
            }
            tokens = [token for part, _ in parts for token in content[part]]
            segments = [segment for part, segment in parts for _ in content[part]]
            padding = inputs.tokens_NL.shape[1] - len(tokens)
            assert inputs.tokens_NL[row].tolist() == tokens + [wordpieces.pad] * padding
            assert inputs.attention_NL[row].tolist() == [1] * len(tokens) + [0] * padding
            assert inputs.segments_NL[row, : len(tokens)].tolist() == segments
            if two:
                begin = int(inputs.second_N[row])
                assert inputs.tokens_NL[row, begin : begin + len(second)].tolist() == second.tolist()
            place = inputs.layout.cls
            assert (place is None) == (name == "T5")
            assert place is None or tokens[place] == wordpieces.cls


@given(st.lists(pieces, min_size=1, max_size=4))
def test_single_sequences_have_one_separator(queries: list[np.ndarray]) -> None:
    inputs = pair_inputs(queries, None, WORDPIECES, max_first=64, max_length=67)
    for row, query in enumerate(queries):
        length = int(inputs.attention_NL[row].sum())
        assert inputs.tokens_NL[row, :length].tolist() == [WORDPIECES.cls, *query, WORDPIECES.sep]
        assert not inputs.segments_NL[row].any()


def test_masking_hides_and_remembers() -> None:
    queries = [np.array([10, 11, 12], dtype=np.uint16), np.array([20, 21], dtype=np.uint16)]
    masked = mask_queries(queries, [np.array([0, 2]), np.array([1])], WORDPIECES)
    m = WORDPIECES.mask
    assert [query.tolist() for query in masked.queries] == [[m, 11, m], [20, m]]
    assert masked.targets_BM[masked.valid_BM].tolist() == [10, 12, 21]
    assert masked.valid_BM.tolist() == [[True, True], [True, False]]
    assert queries[0].tolist() == [10, 11, 12], "the corpus itself must stay as it is"


@given(st.lists(st.tuples(pieces, pieces, pieces), min_size=1, max_size=5))
def test_titles_stand_before_bodies_and_are_not_pointed_at(
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> None:
    queries, titles, bodies = (list(column) for column in zip(*rows, strict=True))
    inputs = reader_inputs(queries, bodies, WORDPIECES, titles=titles, max_query=12, max_length=60)
    for row, (query, title, body) in enumerate(rows):
        head = [*title, WORDPIECES.sep] if len(title) else []
        expected = [WORDPIECES.cls, *query, WORDPIECES.sep, *head, *body, WORDPIECES.sep]
        assert inputs.tokens_NL[row, : len(expected)].tolist() == expected
        assert inputs.second_N[row] == len(query) + 2 + len(head)  # spans begin in the body
        assert inputs.segments_NL[row, : len(expected)].tolist() == [0] * (len(query) + 2) + [1] * (
            len(head) + len(body) + 1
        )


@given(st.lists(st.integers(1, 3 * AT_ONCE // 2), min_size=1, max_size=30))
def test_groups_for_a_cpu_hold_every_row_once_the_longest_first_and_not_too_much(lengths: list[int]) -> None:
    limits = {"max_first": 2 * AT_ONCE, "max_length": 2 * AT_ONCE}
    inputs = pair_inputs([np.full(length, 7) for length in lengths], None, WORDPIECES, **limits)
    groups = inputs.alike()
    order = np.concatenate(groups)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert (np.diff(inputs.lengths_N[order]) <= 0).all()
    for rows, following in zip(groups, [*groups[1:], None], strict=True):
        held = len(rows) * inputs.rows(rows).tokens_NL.shape[1]
        assert held <= AT_ONCE or len(rows) == 1
        assert following is None or held + inputs.lengths_N[rows[0]] > AT_ONCE, (
            "one more would have been too much"
        )
