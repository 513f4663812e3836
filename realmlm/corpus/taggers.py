"""Taggers: which spans of a sentence are worth masking, because only knowledge of the world can fill them in.

All keep the promises of `Tagger`. The light default, `RuleTagger`, knows names by capitalisation and by the
corpus's own titles, and dates and quantities by patterns; where they overlap, dates go before quantities
before names, and of two names the longer one stays.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from realmlm.errors import BadInput, require

KINDS = ("name", "date", "quantity", "term")


@dataclass(frozen=True)
class Mention:
    """Characters `start` to `end` (past the last) of a sentence, and what they are: one of `KINDS`."""

    start: int
    end: int
    kind: str


class Tagger(Protocol):
    """Marks sentences one by one: what a sentence gets does not depend on the others of the call.

    Mentions are in order, do not overlap, are never empty, and leave at least one word of the sentence
    unmarked each.
    """

    name: str

    def tag(self, sentences: Sequence[str]) -> list[list[Mention]]: ...


# --- patterns: no white space but the plain and the no-break space, so that nothing reaches over the end of a

_UPPER = "".join(letter for letter in map(chr, range(0x2000)) if letter.isupper() or letter.istitle())
_SPACE = "[ \u00a0]"

_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_SHORT_MONTH = r"(?:(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)"
_DAY = r"(?:3[01]|[12]\d|0?[1-9])(?:st|nd|rd|th)?(?!\d)"
_YEAR = r"(?:1\d{3}|20\d\d|2100)(?![\d%]|[,.]\d)"
_ERA = rf"(?:{_SPACE}?(?:BCE?|CE|AD|B\.C\.E?\.?|A\.D\.)(?!\w))"
_ORDINAL = (
    "(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|fourteenth|fifteenth|sixteenth"
    "|seventeenth|eighteenth|nineteenth|twentieth|twenty-first)"
)
_COUNT_WORD = (
    "(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
    "|(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)(?:-(?:one|two|three|four|five|six|seven|eight|nine))?)"
)
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d++(?:\.\d+)?)"
_NUMBER = rf"{_DIGITS}(?:[–-]{_DIGITS})?(?!\w*\d)"  # 2.5 and 2.5–2.6
_SCALE = "(?:hundred|thousand|million|billion|trillion)"
_UNIT = (
    r"(?:[kcmnµ]m|m|km/h|mph|kmh|[kmµ]g|g|lbs?|oz|ha|[kMGT]?Hz|[kMGT]?W|[kMGT]?Wh|[kMGT]B|[kMG]bit/s|[kM]?V|mA|[kM]?Pa|°[CF]?|km2|km²|m2|m²"
    r"|(?:(?:kilo|centi|milli|micro|nano|square|cubic)[ -]?)?(?:met(?:re|er)s?|miles?|feet|foot|ft|inch(?:es)?|yards?|acres?|hectares?)"
    r"|(?:kilo|milli)?grams?|tons?|tonnes?|pounds?|ounces?|lit(?:re|er)s?|gallons?|barrels?|(?:kilo|mega|giga)?(?:watts?|hertz|bytes?)"
    r"|volts?|degrees?|light-years?|seconds?|minutes?|hours?|days?|weeks?|months?|years?|decades?|centuries|people|inhabitants|residents"
    r"|dollars?|euros?|francs?|marks|rubles?|rupees?|yen|cents?)"
)

_DATE = re.compile(
    rf"""
    {_DAY}{_SPACE}(?:of{_SPACE})?(?:{_MONTH}\b|{_SHORT_MONTH})(?:,?{_SPACE}{_YEAR}{_ERA}?)?           # 12 March 1874, 12th of March
  | (?:{_MONTH}\b|{_SHORT_MONTH}){_SPACE}{_DAY}(?:[–-]{_DAY})?(?:,?{_SPACE}{_YEAR}{_ERA}?)?(?![,.]?\d)   # March 12, 1874; March 12–14
  | (?:{_MONTH}\b|{_SHORT_MONTH}),?{_SPACE}(?:of{_SPACE})?{_YEAR}{_ERA}?                              # March 1874
  | (?<=[a-z]{_SPACE}){_MONTH}\b(?!{_SPACE}[{_UPPER}])                                                # (in) March, but not March Hare
  | {_YEAR}-(?:1[0-2]|0[1-9])-(?:3[01]|[12]\d|0[1-9])(?!\d)                                           # 1874-03-12
  | (?:3[01]|[12]\d|0?[1-9])/(?:3[01]|[12]\d|0?[1-9])/(?:\d\d)?\d\d(?!\d)                             # 12/3/1874
  | \d{{1,4}}(?:[–-]\d{{1,4}})?{_ERA} | AD{_SPACE}\d{{1,4}}(?![\d,])                                  # 44 BC, AD 79
  | (?:1\d|20)\d0s\b                                                                                  # 1990s
  | (?:\d{{1,2}}(?:st|nd|rd|th)|{_ORDINAL})(?:{_SPACE}|-)(?:century|centuries)\b{_ERA}?               # 19th century
  | {_YEAR}[–-](?:{_YEAR}|\d\d(?![\d%]))(?!-)                                                         # 1914–1918, 1914–18
  | (?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b
    """,
    re.VERBOSE,
)
# a bare number from 1000 to 2100 is a year after one of these words or marks, or where the clause ends with
# it
_BARE_YEAR = re.compile(rf"{_YEAR}(?!{_SPACE}?-?(?:{_SCALE}|{_UNIT}|percent|per{_SPACE}cent)\b)(?!\w)")
_BEFORE_YEAR = re.compile(
    r"(?:(?:\b(?:in|of|by|since|from|to|until|till|before|after|during|around|about|circa|c|ca|early|late|mid|the|and|or|between|through"
    r"|a|his|her|its|their|spring|summer|autumn|fall|winter|born|died|b|d|season)\b\.?|['’]s)[ \u00a0]|[(\[/–-]|\n|^)\Z",
    re.IGNORECASE,
)
_AFTER_YEAR = re.compile(r"[)\];:,]|[.?!]?$", re.MULTILINE)

_QUANTITY = re.compile(
    rf"""
    (?:US|AU|CA|NZ|HK|A|C)?[$€£¥₹]{_SPACE}?{_NUMBER}(?:(?:{_SPACE}|-){_SCALE}\b|[kmbn]{{1,2}}\b)?     # US$4.5 million
  | (?:{_NUMBER}|{_COUNT_WORD}\b)(?:{_SPACE}{_SCALE}\b)?(?:{_SPACE}?%|(?:{_SPACE}|-)?(?:percent|per{_SPACE}cent|{_UNIT})(?![\w²]))
  | (?:{_NUMBER}|{_COUNT_WORD}\b)(?:{_SPACE}|-){_SCALE}\b
  | \d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?(?![\d,.]*\d)                                                     # 12,345
    """,
    re.VERBOSE,
)
# where a date or a quantity may begin: quick to find, so that the long patterns are tried in few places only
_NUMERIC_START = re.compile(rf"(?<!\w)(?<!\d[.,–-])(?:[\d$€£¥₹A-Z]|{_ORDINAL}|{_COUNT_WORD})")

# words that stand inside a name without a capital, and words that are no part of one although a sentence
# begins with them
_PARTICLE = "(?:of|the|de|du|des|da|dos|di|del|della|la|le|el|al|van|von|der|den|zu|bin|ibn|y|&)"
_ABBREVIATION = r"(?:Mr|Mrs|Ms|Dr|St|Ste|Prof|Gen|Col|Capt|Lt|Sgt|Rev|Fr|Sen|Gov|Mt|Ft|No|Jr|Sr)\."
_NAME_WORD = (
    rf"(?:(?:[{_UPPER}]\.){{2,}}|[{_UPPER}]\.(?={_SPACE}[{_UPPER}])|{_ABBREVIATION}(?={_SPACE}[{_UPPER}])"
    rf"|[{_UPPER}]\w*(?:(?:['’](?!s\b)|[-–&])\w+)*)"
)
_NAME = re.compile(
    rf"(?<!\w){_NAME_WORD}(?:{_SPACE}(?:{_PARTICLE}{_SPACE}){{0,2}}(?:[ae]l-|d['’])?{_NAME_WORD})*(?:{_SPACE}\d{{1,3}}(?![\w%]|[.,:–-]\d))?"
)
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an the this that these those i he she it its we you they his her hers their theirs our your my me him us them who
        whom whose which what where when why how there here in on at by for from to of with without within into onto upon under
        over above below between among amongst through throughout during before after since until till while whilst as if unless
        although though because despite except against along across around about beyond near toward towards via per like unlike
        than and or but nor so yet both either neither each every all any some many most much more few several other others
        another such same one two three four five six seven eight nine ten no not only also even just still however therefore thus
        hence moreover furthermore meanwhile nevertheless nonetheless otherwise instead then now later earlier today once again
        often sometimes usually is are was were be been being has have had do does did can could may might must shall should will
        would according following including due see further additionally similarly finally eventually first second third initially
        originally recently currently soon perhaps indeed rather too very""",
    )
)
_ROMAN = re.compile(r"[IVXLCDM]+")
_OPENING = frozenset("\n\"“”„«‘'([{:;.!?…•*/—–")
_WORD = re.compile(r"\w")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_LETTERS = re.compile(r"[^\W\d_]{2,}")


def lower_case_words(texts: Iterable[str]) -> frozenset[str]:
    """The words that also live without a capital: at least one in twenty of their occurrences in `texts`
    begins with a small letter."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_LETTERS.findall(text))
    capital: Counter[str] = Counter()
    for word, count in counts.items():
        if not word[0].islower():
            capital[word.lower()] += count
    return frozenset(
        word for word, count in counts.items() if word[0].islower() and 20 * count >= count + capital[word]
    )


class RuleTagger:
    """Names, dates and quantities by rules for English; the titles of a corpus are names too.

    A capital that the beginning of a sentence (or quotation, or bracket) explains makes no name of a single
    word, unless the word is an acronym, or `lower_case` (the words known to live without a capital) lacks it,
    or, without that list, it is a title. A title of several words of which only the first has a capital
    ("Solar eclipse") also counts, as a term, in small letters.
    """

    name = "rules"

    def __init__(self, titles: Iterable[str], lower_case: Iterable[str] | None = None) -> None:
        kept = {" ".join(_TITLE_NOTE.sub("", title).split()) for title in titles}
        # what cannot be printed (line breaks, null characters) would match what `tag` puts between and into
        # sentences
        kept = {
            title
            for title in kept
            if title.isprintable()
            and _LETTERS.search(title)
            and not title.startswith(("List of ", "Lists of "))
        }
        self._lower_case = None if lower_case is None else frozenset(lower_case)
        self._single_titles = frozenset(title for title in kept if " " not in title)
        several = kept - self._single_titles
        plain = {title[0].lower() + title[1:] for title in several if _is_term(title)}
        odd = {
            title for title in self._single_titles if not title[0].isupper()
        }  # eBay; a capital is found without the list
        self._names = _Phrases(title for title in several | odd if not title.islower())
        self._terms = _Phrases(plain)

    def tag(self, sentences: Sequence[str]) -> list[list[Mention]]:
        text = "\n".join(sentences)
        numeric = list(_numeric(text))
        rest = _blank(text, numeric)
        names = [Mention(start, end, "name") for start, end in self._names.find(rest)]
        names += [Mention(start, end, "term") for start, end in self._terms.find(rest)]
        names += self._capitalised(rest)
        return _by_sentence(sentences, sorted([*numeric, *_longest(names)], key=_start))

    def _capitalised(self, text: str) -> Iterator[Mention]:
        for match in _NAME.finditer(text):
            start, end = match.span()
            words = match.group().replace("\u00a0", " ").split(" ")
            while words and ((_is_initial(text, start) and _is_function(words[0])) or words[0].islower()):
                start += len(words.pop(0)) + 1
            if all(map(_is_function, words)):
                continue
            if len(words) > 1 or self._is_name(words[0], initial=_is_initial(text, start)):
                yield Mention(start, end, "name")

    def _is_name(self, word: str, *, initial: bool) -> bool:
        if len(word) < 2 or _ROMAN.fullmatch(word):
            return False
        # the position does not explain a second capital: NATO, McAdam, Anglo-Dutch
        if not initial or word[1:] != word[1:].lower():
            return True
        if self._lower_case is None:
            return word in self._single_titles
        # Long-term is explained by "long"
        return re.split(r"\W", word, maxsplit=1)[0].lower() not in self._lower_case


# what tells titles apart is no part of the name: Mercury (planet)
_TITLE_NOTE = re.compile(r"\s*\([^()]*\)$")


def _is_term(title: str) -> bool:
    """Is a title the name of a thing in general, written small within a sentence? Not where it begins or ends
    like mere grammar."""
    words = title.lower().split()
    return title[1:].islower() and not {words[0], words[-1]} & _FUNCTION_WORDS


def _numeric(text: str) -> Iterator[Mention]:
    """Dates and quantities, from left to right; where both fit, the date."""
    last = 0
    for candidate in _NUMERIC_START.finditer(text):
        start = candidate.start()
        if start < last:
            continue
        match = _DATE.match(text, start) or _bare_year(text, start)
        kind = "date"
        if match is None:
            match = _QUANTITY.match(text, start)
            kind = "quantity"
        if match is not None:
            last = match.end()
            yield Mention(start, last, kind)


def _bare_year(text: str, start: int) -> re.Match[str] | None:
    match = _BARE_YEAR.match(text, start)
    if match and (
        _BEFORE_YEAR.search(text[max(0, start - 10) : start]) or _AFTER_YEAR.match(text, match.end())
    ):
        return match
    return None


def _is_function(word: str) -> bool:
    return re.split("['’]", word.lower(), maxsplit=1)[0] in _FUNCTION_WORDS


def _is_initial(text: str, start: int) -> bool:
    before = text[max(0, start - 3) : start].rstrip(" \u00a0")
    return not before or before[-1] in _OPENING


class _Phrases:
    """Finds phrases on word borders, the longest one at each place, from left to right without overlap.

    A set of all phrases and, for each first word, the lengths to look up: the cost does not grow with the
    number of phrases.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        self._phrases = frozenset(phrases)
        lengths: dict[str, set[int]] = {}
        for phrase in self._phrases:
            lengths.setdefault(_TOKEN.findall(phrase)[0], set()).add(len(phrase))
        self._lengths = {word: sorted(several, reverse=True) for word, several in lengths.items()}

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        last = 0
        for token in _TOKEN.finditer(text):
            start = token.start()
            if start < last or (lengths := self._lengths.get(token[0])) is None:
                continue
            for end in (start + length for length in lengths if start + length <= len(text)):
                if text[start:end] in self._phrases and not (
                    _WORD.match(text, end - 1) and _WORD.match(text, end)
                ):
                    yield start, end
                    last = end
                    break


class PhraseTagger:
    """Marks the phrases of a list wherever they stand on word borders, letter for letter; of several at one
    place the longest."""

    name = "phrases"

    def __init__(self, phrases: Iterable[str]) -> None:
        kept = {phrase.strip() for phrase in phrases} - {""}
        if not kept:
            raise BadInput("the list of phrases is empty; give one phrase per line")
        self._phrases = _Phrases(kept)

    def tag(self, sentences: Sequence[str]) -> list[list[Mention]]:
        return [
            _keep(sentence, [Mention(start, end, "term") for start, end in self._phrases.find(sentence)])
            for sentence in sentences
        ]


_SPACY_KINDS = {
    "DATE": "date",
    "TIME": "date",
    "PERCENT": "quantity",
    "MONEY": "quantity",
    "QUANTITY": "quantity",
}
_SPACY_SKIPPED = ("CARDINAL", "ORDINAL")


class SpacyTagger:
    """The named entities of a spaCy pipeline, bare numbers left out."""

    def __init__(self, model: str) -> None:
        spacy = require("spacy", extra="spacy", why="the spaCy tagger")
        self.model = model
        self.name = f"spacy:{model}"
        try:
            self._pipeline: Any = spacy.load(model)
        except OSError as error:
            raise BadInput(
                f"spaCy has no model '{model}'; fetch it: python -m spacy download {model}"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:  # a worker loads the model itself
        return SpacyTagger, (self.model,)

    def tag(self, sentences: Sequence[str]) -> list[list[Mention]]:
        documents = self._pipeline.pipe(sentences)
        return [
            _keep(sentence, self._entities(document))
            for sentence, document in zip(sentences, documents, strict=True)
        ]

    def _entities(self, document: Any) -> list[Mention]:
        return [
            Mention(entity.start_char, entity.end_char, _SPACY_KINDS.get(entity.label_, "name"))
            for entity in document.ents
            if entity.label_ not in _SPACY_SKIPPED
        ]


# --- what keeps the promises of `Tagger` --------------------------------------------------------------------


def with_numbers(sentence: str, names: list[Mention]) -> list[Mention]:
    """Names found elsewhere, with the dates and quantities of the patterns; where they overlap, the pattern
    stays."""
    numeric = list(_numeric(sentence))
    apart = [
        name
        for name in names
        if all(name.end <= number.start or number.end <= name.start for number in numeric)
    ]
    return _keep(sentence, sorted([*numeric, *apart], key=_start))


def _start(mention: Mention) -> int:
    return mention.start


def _blank(text: str, mentions: Iterable[Mention]) -> str:
    """The text with mentions overwritten, so that later rules cannot reach into them."""
    pieces = []
    last = 0
    for mention in mentions:
        pieces += [text[last : mention.start], "\0" * (mention.end - mention.start)]
        last = mention.end
    return "".join([*pieces, text[last:]])


def _longest(mentions: list[Mention]) -> list[Mention]:
    """From left to right, the longer of two that overlap; the first of two equally long ones."""
    kept: list[Mention] = []
    for mention in sorted(mentions, key=_start):
        if not kept or mention.start >= kept[-1].end:
            kept.append(mention)
        elif mention.end - mention.start > kept[-1].end - kept[-1].start:
            kept[-1] = mention
    return kept


def _by_sentence(sentences: Sequence[str], mentions: list[Mention]) -> list[list[Mention]]:
    """Mentions in order within the sentences joined by line breaks, handed out to their sentences."""
    marked = []
    first = 0
    begin = 0
    for sentence in sentences:
        past = first
        while past < len(mentions) and mentions[past].start < begin + len(sentence):
            past += 1
        own = [
            Mention(mention.start - begin, mention.end - begin, mention.kind)
            for mention in mentions[first:past]
        ]
        marked.append(_keep(sentence, own))
        first = past
        begin = begin + len(sentence) + 1
    return marked


def _keep(sentence: str, mentions: list[Mention]) -> list[Mention]:
    """Without the mentions that are all there is to read in the sentence: nothing would be left to predict
    them from."""
    return [
        mention
        for mention in mentions
        if _WORD.search(sentence, 0, mention.start) or _WORD.search(sentence, mention.end)
    ]
