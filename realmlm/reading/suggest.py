"""Questions that documents can answer, made from their own sentences: something to begin with.

A sentence that says who did something, when or where it was or how large it is, what is the first of its kind
or what a row of a table holds, is turned into the question it answers:

    The Eiffel Tower was completed in 1889.      When was the Eiffel Tower completed?   (1889)
    Olkhon is the largest island in the lake.    What is the largest island in the lake?   (Olkhon)
    part: hinge; supplier: Alder & Sons          What is the supplier of hinge?   (Alder & Sons)

The rules know little English and pass over what they are not sure of. Nobody is offered a question before the
model was asked and found the answer where the question was made from.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise, zip_longest

import numpy as np

from realmlm.corpus.store import Corpus, Passage
from realmlm.corpus.taggers import Mention, RuleTagger
from realmlm.reading.records import Answer
from realmlm.sentences import split_sentences

OFFERED = 4
TOGETHER = 4  # questions asked at once
MOST_ASKED = 120  # questions asked before fewer than wanted are offered
LOOKED_AT = 1_000  # passages, drawn at random, that sentences are taken from: 0.2 s
LEAST_P = 0.5  # of an answer, where the model has no word for how sure it is
LONGEST = 100  # characters of a question


def _pairs(words: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in words.split())


# past tense -> infinitive: what only someone does, and what a thing may do too
_BY_SOMEONE = _pairs("""
    wrote:write painted:paint invented:invent discovered:discover designed:design composed:compose
    founded:found built:build directed:direct introduced:introduce published:publish proposed:propose
    patented:patent developed:develop launched:launch created:create conquered:conquer carved:carve
    translated:translate isolated:isolate photographed:photograph drew:draw coined:coin proved:prove
    established:establish demonstrated:demonstrate predicted:predict observed:observe measured:measure
    commissioned:commission completed:complete opened:open signed:sign led:lead edited:edit drafted:draft
    bought:buy sold:sell approved:approve managed:manage explored:explore crossed:cross excavated:excavate
    described:describe defeated:defeat ordered:order planned:plan organised:organise organized:organize
""")
_BY_ANYTHING = _BY_SOMEONE | _pairs("""
    died:die began:begin became:become ended:end started:start won:win flew:fly reached:reach entered:enter
    left:leave joined:join moved:move landed:land sank:sink fell:fall erupted:erupt returned:return
    closed:close appeared:appear adopted:adopt gained:gain lost:lose took:take received:receive
    married:marry succeeded:succeed
""")
_BE = ("is", "are", "was", "were")
_PARTICIPLE = re.compile(r"\w+(?:ed|en|own|orn|ung|uilt|ound|ade|aid|ept|eld|old|ent)\b")
_SIZE = re.compile(r" (high|tall|long|wide|deep|old|thick|heavy)\b")
_ABOUT = ("", "about ", "around ", "more than ", "over ", "nearly ", "almost ")
_THE_ONLY = re.compile(r"((?:The |A |An )?[\w’'.&-]+(?: [\w’'.&-]+){0,4}) (is|are) (the [^,;:.()]+)")
_KEPT = re.compile(r"(?P<key>[^\W\d_][\w ]{1,24}): (?P<value>[^;]{2,40})(?:; |$)")  # a cell of a table
_BEFORE = {  # the word asked with -> what stands before its answer
    "When": ("date", re.compile(r"(?:^| )(?:in|on|since|around|about)(?: (?:about|around))? $")),
    "Where": ("name", re.compile(r"(?:^| )(?:in|at|near)(?: the(?: (?:city|town|village) of)?)? $")),
    "Who": ("name", re.compile(r"(?:^| )by(?: the)? $")),
}
_CLAUSE = re.compile(r"[\w’'/&–-]+(?:\.[\w’'/&–-]+)*(?: [\w’'/&–-]+(?:\.[\w’'/&–-]+)*)*")  # no stop, no comma
# what can only be understood with other sentences, or begins or needs another clause
_ELSEWHERE = re.compile(
    r"\b(?:he|she|it|they|we|you|i|him|her|them|us|his|hers|its|their|our|your|my|this|that|these|those|here"
    r"|there|then|who|whom|whose|which|what|when|where|while|because|if|and|but|or|later|also|former|latter"
    r"|same|other|another|below|above|following|between|both|either|neither)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Candidate:
    """A question, and where its answer stands in a passage: characters `start` to `end`."""

    question: str
    passage: int
    start: int
    end: int

    def answered_by(self, answer: Answer) -> bool:
        """Is the answer sure, and from the place that the question was made from?"""
        sure = answer.sure == "likely" if answer.sure else answer.probability >= LEAST_P
        if not sure or answer.caution or not answer.evidence:
            return False
        first = answer.evidence[0]
        if first.passage_id != self.passage or first.start is None or first.end is None:
            return False
        if first.start <= self.start and self.end <= first.end:
            return True
        # a part of it, of whole words: "helmet" for "an iron helmet", not "optim" for "--optim.batch"
        begins = first.start == self.start or first.passage[first.start - 1].isspace()
        ends = first.end == self.end or first.passage[first.end].isspace()
        return begins and ends and self.start <= first.start and first.end <= self.end


def suggest(corpus: Corpus, ask: Callable[[list[str]], Sequence[Answer]]) -> Iterator[str]:
    """Questions that were asked and answered from where they were made from, one after the other."""
    untried = islice(candidates(corpus), MOST_ASKED)
    while some := list(islice(untried, TOGETHER)):
        answers = ask([candidate.question for candidate in some])
        for candidate, answer in zip(some, answers, strict=True):
            if candidate.answered_by(answer):
                yield candidate.question


def candidates(corpus: Corpus) -> Iterator[Candidate]:
    """Questions made from passages drawn at random, the same each time: one of a passage, of each kind (who,
    when, where, how, what) in turn."""
    rng = np.random.default_rng([corpus.edits, int(corpus.fingerprint[:8], 16)])
    ids = corpus.ids
    drawn = np.unique(rng.integers(len(ids), size=LOOKED_AT)) if len(ids) > LOOKED_AT else np.arange(len(ids))
    passages = corpus.passages(ids[rng.permutation(drawn)].tolist())
    tagger = RuleTagger({part for passage in passages for part in passage.title.split(" › ")})
    by_kind: defaultdict[str, list[Candidate]] = defaultdict(list)
    for passage in passages:
        if made := list(_of_passage(passage, tagger)):
            one = made[rng.integers(len(made))]
            by_kind[one.question.split()[0]].append(one)
    in_turn = chain.from_iterable(zip_longest(*by_kind.values()))
    return (candidate for candidate in in_turn if candidate is not None)


def _of_passage(passage: Passage, tagger: RuleTagger) -> Iterator[Candidate]:
    borders = split_sentences(passage.text)
    sentences = [passage.text[start:end] for start, end in borders]
    for (first, _), sentence, mentions in zip(borders, sentences, tagger.tag(sentences), strict=True):
        for question, start, end in chain(_of_row(sentence), _of_sentence(sentence, mentions)):
            if len(question) <= LONGEST:
                yield Candidate(question, passage.id, first + start, first + end)


def _of_row(sentence: str) -> Iterator[tuple[str, int, int]]:
    """A row of a table, "part: hinge; supplier: Alder & Sons": each cell is what the first one has."""
    cells = list(_KEPT.finditer(sentence))
    if len(cells) < 2 or cells[0].start() or any(a.end() != b.start() for a, b in pairwise(cells)):
        return
    for cell in cells[1:]:
        key = cell["key"]
        # "What is the limits of": of words that end so some are verbs, some plurals
        if (key.endswith("ss") or not key.endswith("s")) and re.search(r"[^\W_]{2}|\d", cell["value"]):
            yield f"What is the {key} of {cells[0]['value']}?", *cell.span("value")


def _of_sentence(sentence: str, mentions: Sequence[Mention]) -> Iterator[tuple[str, int, int]]:
    """The questions that a sentence answers, each with the place of the answer in it."""
    if (first := _THE_ONLY.match(sentence)) and _self_contained(first[1]) and _self_contained(first[3]):
        yield f"What {first[2]} {first[3]}?", *first.span(1)
    if not mentions or mentions[0].kind not in ("name", "term"):
        return
    subject = mentions[0]
    opening = sentence[: subject.start]
    verb = sentence[subject.end :].split(" ")[1:2]
    if opening not in ("", "The ", "A ", "An ") or not verb:
        return
    begin = subject.end + len(verb[0]) + 2  # what is said of the subject
    named = opening.lower() + sentence[subject.start : subject.end]
    said = re.split(r"[,;:()]|[.?!](?= |$)| and | by ", sentence[begin:])[0].strip()
    about = any(begin <= mention.start < begin + len(said) for mention in mentions)
    if verb[0] in _BY_SOMEONE and not opening and about and _self_contained(said):
        yield f"Who {verb[0]} {said}?", subject.start, subject.end
    for mention in mentions[1:]:
        said = sentence[begin : mention.start]
        for question in _to_mention(named, verb[0], said, mention, sentence[mention.end :]):
            yield question, mention.start, mention.end


def _to_mention(named: str, verb: str, said: str, mention: Mention, rest: str) -> Iterator[str]:
    """The questions that a mention answers in a sentence `named` `verb` `said` `mention` `rest`."""
    size = _SIZE.match(rest)
    if verb in ("is", "are") and mention.kind == "quantity" and size and said in _ABOUT:
        yield f"How {size[1]} {verb} {named}?"
    for asked, (kind, before) in _BEFORE.items():
        at = before.search(said) if mention.kind == kind else None
        done = said[: at.start()] if at else ""
        if at is None or not _self_contained(done):
            continue
        plain = asked != "Where" or (len(done.split()) <= 3 and not re.search(r"\b(?:in|at|on)\b", done))
        if verb in _BE and _PARTICIPLE.match(done) and plain:
            yield f"{asked} {verb} {named} {done}{' by' * (asked == 'Who')}?"
        elif verb in _BY_ANYTHING and asked == "When" and (done or verb not in _BY_SOMEONE):
            yield f"When did {named} {' '.join(filter(None, (_BY_ANYTHING[verb], done)))}?"


def _self_contained(said: str) -> bool:
    """Is it part of one clause that can be understood without the sentences around it?"""
    return not said or (_CLAUSE.fullmatch(said) is not None and _ELSEWHERE.search(said) is None)
