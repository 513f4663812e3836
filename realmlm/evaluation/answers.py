"""Is a predicted answer right? The measures of the open-QA benchmarks, computed as the evaluation of ORQA and
REALM does. docs/measures.md has the definitions, and where others differ.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from realmlm.corpus.questions import Question, compile_answer

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=1024)  # right or wrong and F1 ask for the same
def normalize(text: str) -> str:
    """ORQA's normalisation, which is SQuAD's after Unicode decomposition (NFD): lower case, no ASCII
    punctuation, no English articles, single spaces. Accents stay."""
    text = unicodedata.normalize("NFD", text).lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, answers: Iterable[str]) -> bool:
    """Does the prediction equal one of the answers after normalisation?"""
    normalized = normalize(prediction)
    return any(normalized == normalize(answer) for answer in answers)


def regex_match(prediction: str, answers: Iterable[str]) -> bool:
    """Does one of the patterns match at the *beginning* of the prediction, ignoring case?

    Both DrQA and ORQA score CuratedTREC with `pattern.match` on the raw prediction: anything may follow the
    match, nothing may precede it. So "Crete in Greece" is right for `Crete` and "in Crete" is not.
    """
    return any(compile_answer(pattern).match(prediction) for pattern in answers)


def f1(prediction: str, answers: Iterable[str]) -> float:
    """The harmonic mean of precision and recall over normalised words, for the best of the answers; 0 without
    a common word."""
    predicted = normalize(prediction).split()
    return max((_f1(predicted, normalize(answer).split()) for answer in answers), default=0.0)


def _f1(predicted: list[str], reference: list[str]) -> float:
    if not set(predicted) & set(reference):
        return 0.0
    common = (Counter(predicted) & Counter(reference)).total()
    return 2 * common / (len(predicted) + len(reference))


def is_correct(prediction: str, question: Question) -> bool:
    """Is it right by the benchmark's measure: regex match if the answers are patterns, else exact match?"""
    return (regex_match if question.is_regex else exact_match)(prediction, question.answers)
