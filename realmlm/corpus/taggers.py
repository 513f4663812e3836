"""Taggers: find the salient spans of a sentence, those that only knowledge of the world can fill in.

All fulfil the protocol `Tagger`. The default, `RuleTagger`, recognises names by their capitals and by the
corpus's own titles, and dates and quantities by patterns. Where these overlap, dates come before quantities
and quantities before names; of two names the longer one wins.
"""

import re
from collections import Counter, deque
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
    """What every tagger offers."""

    name: str

    def tag(self, sentences: Sequence[str]) -> list[list[Mention]]:
        """The mentions of each sentence, whatever other sentences are in the call. They are in order, do not
        overlap and are never empty, and none is all that there is to read in its sentence."""


# --- patterns: no white space but the plain and the no-break space, so that no match reaches beyond a line --

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
# a bare number from 1000 to 2100 is a year after one of these words or marks, or at the end of a clause
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
# where a date or a quantity may begin: found quickly, so that the long patterns are tried in few places only
_NUMERIC_START = re.compile(rf"(?<!\w)(?<!\d[.,–-])(?:[\d$€£¥₹A-Z]|{_ORDINAL}|{_COUNT_WORD})")

# words inside a name that have no capital; further down, words that are no part of one even with a capital
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
    """The words that are also written without a capital: in at least one of twenty occurrences in `texts`."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_LETTERS.findall(text))
    capital: Counter[str] = Counter()
    for word, count in counts.items():
        if not word[0].islower():
            capital[word.lower()] += count
    small = {word: count for word, count in counts.items() if word[0].islower()}
    return frozenset(word for word, count in small.items() if 20 * count >= count + capital[word])


class RuleTagger:
    """Marks names, dates and quantities by rules for English; the titles of a corpus are names, too.

    A single word that begins a sentence (or a quotation, or a bracket) has its capital from there and is a
    name only if it is an acronym, or missing from `lower_case` (the words that are also written without a
    capital), or, without that list, a title. A title of several words of which only the first has a capital
    ("Solar eclipse") is also marked in small letters, as a term.
    """

    name = "rules"

    def __init__(self, titles: Iterable[str], lower_case: Iterable[str] | None = None) -> None:
        names = {name for title in titles if _is_name(name := " ".join(_TITLE_NOTE.sub("", title).split()))}
        self._lower_case = None if lower_case is None else frozenset(lower_case)
        self._single_titles = frozenset(name for name in names if " " not in name)
        several = names - self._single_titles
        # eBay; single words with a capital are found without a list
        odd = {name for name in self._single_titles if not name[0].isupper()}
        self._names = _Phrases(name for name in several | odd if not name.islower())
        self._terms = _Phrases({name[0].lower() + name[1:] for name in several if _is_term(name)})

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
            if len(words) > 1 or self._names_alone(words[0], initial=_is_initial(text, start)):
                yield Mention(start, end, "name")

    def _names_alone(self, word: str, *, initial: bool) -> bool:
        """Is a single word with a capital a name, where it is `initial` (begins a sentence) or is not?"""
        if len(word) < 2 or _ROMAN.fullmatch(word):
            return False
        # a second capital does not come from the position: NATO, McAdam, Anglo-Dutch
        if not initial or word[1:] != word[1:].lower():
            return True
        if self._lower_case is None:
            return word in self._single_titles
        # Long-term is no name if "long" is a word
        return re.split(r"\W", word, maxsplit=1)[0].lower() not in self._lower_case


_TITLE_NOTE = re.compile(r"\s*\([^()]*\)$")  # tells titles apart and is no part of a name: Mercury (planet)


def _is_name(title: str) -> bool:
    """May a title be looked for as a name? Characters that cannot be printed (line breaks, NUL) would match
    what `tag` puts between and into sentences."""
    listing = title.startswith(("List of ", "Lists of "))
    return title.isprintable() and bool(_LETTERS.search(title)) and not listing


def _is_term(title: str) -> bool:
    """Is a title a common noun, written small within a sentence? Not if its first or last word is a function
    word."""
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
    if match is None or _AFTER_YEAR.match(text, match.end()):
        return match
    return match if _BEFORE_YEAR.search(text[max(0, start - 10) : start]) else None


def _is_function(word: str) -> bool:
    return re.split("['’]", word.lower(), maxsplit=1)[0] in _FUNCTION_WORDS


def _is_initial(text: str, start: int) -> bool:
    before = text[max(0, start - 3) : start].rstrip(" \u00a0")
    return not before or before[-1] in _OPENING


class _Phrases:
    """Finds phrases on word borders, the longest one at each place, from left to right without overlap.

    It has a set of all phrases and, for each first word, their lengths to try: the cost does not grow with
    the number of phrases.
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
                inside_word = _WORD.match(text, end - 1) and _WORD.match(text, end)
                if text[start:end] in self._phrases and not inside_word:
                    yield start, end
                    last = end
                    break


class PhraseTagger:
    """Marks the phrases of a list wherever they stand on word borders, letter for letter; of several at one
    place the longest."""

    name = "phrases"

    def __init__(self, phrases: Iterable[str]) -> None:
        stripped = {phrase.strip() for phrase in phrases} - {""}
        if not stripped:
            raise BadInput("the list of phrases is empty; give one phrase per line")
        self._phrases = _Phrases(stripped)

    def tag(self, sentences: Sequence[str]) -> list[list[Mention]]:
        def found(sentence: str) -> list[Mention]:
            return [Mention(start, end, "term") for start, end in self._phrases.find(sentence)]

        return [_predictable(sentence, found(sentence)) for sentence in sentences]


_SPACY_KINDS = dict.fromkeys(("DATE", "TIME"), "date")
_SPACY_KINDS |= dict.fromkeys(("PERCENT", "MONEY", "QUANTITY"), "quantity")
_SPACY_SKIPPED = ("CARDINAL", "ORDINAL")


class SpacyTagger:
    """Marks the named entities that a spaCy pipeline finds, without bare numbers."""

    def __init__(self, model: str) -> None:
        spacy = require("spacy", extra="spacy", why="the spaCy tagger")
        self.model = model
        self.name = f"spacy:{model}"
        try:
            self._pipeline: Any = spacy.load(model)
        except OSError as error:
            fetch = f"python -m spacy download {model}"
            raise BadInput(f"spaCy has no model '{model}'; fetch it: {fetch}") from error

    def __reduce__(self) -> tuple[Any, ...]:  # a worker loads the model itself
        return SpacyTagger, (self.model,)

    def tag(self, sentences: Sequence[str]) -> list[list[Mention]]:
        found = map(self._entities, self._pipeline.pipe(sentences))
        return [_predictable(sentence, mentions) for sentence, mentions in zip(sentences, found, strict=True)]

    def _entities(self, document: Any) -> list[Mention]:
        return [
            Mention(entity.start_char, entity.end_char, _SPACY_KINDS.get(entity.label_, "name"))
            for entity in document.ents
            if entity.label_ not in _SPACY_SKIPPED
        ]


# --- what fulfils the protocol of `Tagger` ------------------------------------------------------------------


def with_numbers(sentence: str, names: list[Mention]) -> list[Mention]:
    """Names that another tagger found, and the dates and quantities found by pattern, which win where they
    overlap."""
    numeric = list(_numeric(sentence))

    def apart(name: Mention) -> bool:
        return all(name.end <= number.start or number.end <= name.start for number in numeric)

    return _predictable(sentence, sorted([*numeric, *filter(apart, names)], key=_start))


def _start(mention: Mention) -> int:
    return mention.start


def _blank(text: str, mentions: Iterable[Mention]) -> str:
    """The text with mentions overwritten with NUL, so that later rules cannot reach into them."""
    pieces = []
    last = 0
    for mention in mentions:
        pieces += [text[last : mention.start], "\0" * (mention.end - mention.start)]
        last = mention.end
    return "".join([*pieces, text[last:]])


def _longest(mentions: list[Mention]) -> list[Mention]:
    """From left to right, the longer of two that overlap; of two equally long ones the first."""
    chosen: list[Mention] = []
    for mention in sorted(mentions, key=_start):
        if not chosen or mention.start >= chosen[-1].end:
            chosen.append(mention)
        elif mention.end - mention.start > chosen[-1].end - chosen[-1].start:
            chosen[-1] = mention
    return chosen


def _by_sentence(sentences: Sequence[str], mentions: list[Mention]) -> list[list[Mention]]:
    """The mentions of each sentence, from those (in order) of all sentences joined by line breaks."""
    marked = []
    rest = deque(mentions)
    begin = 0
    for sentence in sentences:
        own = []
        while rest and rest[0].start < begin + len(sentence):
            mention = rest.popleft()
            own.append(Mention(mention.start - begin, mention.end - begin, mention.kind))
        marked.append(_predictable(sentence, own))
        begin += len(sentence) + 1
    return marked


def _predictable(sentence: str, mentions: list[Mention]) -> list[Mention]:
    """Without a mention that is all there is to read in the sentence: nothing would be left to predict it
    from."""
    return [
        mention
        for mention in mentions
        if _WORD.search(sentence, 0, mention.start) or _WORD.search(sentence, mention.end)
    ]
