"""Where definitions part ways, and what each says. A text serves as prediction and as passage, its answers as
strings and as patterns.

The letters of `says`, in this order, a dash where the definition says no:

    E  exact match, ORQA's and REALM's: the text is the prediction
    R  regex match, ORQA's and REALM's: the answers are patterns
    W  recall `dpr`: the text is the passage
    P  recall `dpr` where the answers are patterns
    S  recall `orqa`
"""

from typing import NamedTuple


class Case(NamedTuple):
    text: str
    answers: list[str]
    says: str
    why: str


PLAIN = [
    Case("Tove", ["Tove"], "ERWPS", "the same"),
    Case("NASA", ["nasa"], "ERWP-", "only orqa's recall minds case"),
    Case("nasal", ["nasa"], "-R-PS", "part of a word: characters are there, the word is not"),
    Case("Newt Yorkshire", ["New York"], "-----", "no one joins or cuts words in the middle of an answer"),
    Case("in NYC now", ["NYC"], "--WPS", "a prediction must be the answer, a passage holds it"),
    Case("Quill Street", ["Quill"], "-RWPS", "regex match leaves free what follows"),
    Case("old Quill Street", ["Quill"], "--WPS", "… but not what comes before"),
    Case(" Quill", ["Quill"], "E-WPS", "a leading space comes before"),
    Case("", ["Tove"], "-----", "nothing predicted, nothing there"),
]
ARTICLES = [
    Case("The Quill", ["quill"], "E-WP-", "exact match drops articles of the prediction"),
    Case("Quill", ["the quill"], "E----", "… and of the answer; recall does not"),
    Case("an apple a day", ["apple day"], "E----", "within, too"),
    Case("vitamin A", ["vitamin"], "ERWPS", "a letter that looks like an article is one"),
    Case("a", ["the"], "E----", "articles alone: nothing is left of either"),
    Case("L'An", ["lan"], "E----", "punctuation goes first and glues: no article is left"),
    Case("The-Quill", ["quill"], "--WP-", "glued to 'thequill'"),
    Case("Theatre", ["atre"], "---PS", "'the' within a word is no article"),
    Case("der Quill", ["Quill"], "--WPS", "English articles only"),
    Case(
        "À la Tove",
        ["la Tove"],
        "--WPS",
        "decomposed, the letter before the accent is dropped as an article; the accent stays",
    ),
    Case("À", ["the\u0300"], "E----", "… so that two accents are left, which are equal"),
]
PUNCTUATION = [
    Case("U.S.", ["US"], "E----", "exact match drops full stops, recall keeps them as words"),
    Case("the US army", ["U.S."], "-----", "so an abbreviation is not found without its stops"),
    Case("a Uxsy thing", ["U.S."], "---P-", "read as a pattern, a full stop is any character"),
    Case("the U.S. army", ["U.S."], "--WPS", "with them it is"),
    Case("rock-n-roll", ["rocknroll"], "E----", "a hyphen goes without leaving a space"),
    Case("rock-n-roll", ["rock n roll"], "-----", "… and is a word of its own in recall"),
    Case("sister-in-law", ["in-law"], "--WPS", "so parts of a hyphenated word are found"),
    Case(
        "sister - in - law",
        ["sister-in-law"],
        "--W--",
        "spaces around it change nothing in words, but the characters",
    ),
    Case("O'Neill", ["ONeill"], "E----", "an apostrophe within a word is dropped"),
    Case("O\u2019Neill", ["O'Neill"], "-----", "a typographic one is not ASCII: it stays, and differs"),
    Case("“Tove”", ["Tove"], "--WPS", "so do typographic quotation marks"),
    Case('"Tove"', ["Tove"], "E-WPS", "ASCII ones go"),
    Case("–5 °C", ["5 °C"], "--WPS", "a dash is not ASCII punctuation"),
    Case("-5 °C", ["5 °C"], "E-WPS", "a minus sign is: the measure cannot tell -5 from 5"),
    Case("1,000", ["1000"], "E----", "separators of thousands go"),
    Case("3.14", ["314"], "E----", "and decimal points, alas"),
    Case("1,000 feet", ["000 feet"], "--WPS", "a comma ends a word, even in a number"),
    Case("10,000", ["10"], "-RWPS", "so the beginning of a number is found"),
    Case("1000", ["100"], "-R-PS", "without a comma it is one word"),
    Case("snake_case", ["snake"], "-RWPS", "an underscore is punctuation"),
    Case("snake_case", ["snakecase"], "E----", "for exact match, too"),
    Case("snake_case", [r"snake\b"], "-----", "but part of the word for a pattern's \\b"),
    Case("...", ["!"], "E----", "punctuation alone: nothing is left of either"),
    Case("What? No!", ["!"], "--WPS", "an answer that is punctuation is found where it stands"),
    Case("a 🚁 flies", ["🚁"], "--WPS", "an emoji likewise"),
    Case(
        "price $5",
        ["$"],
        "--WPS",
        "as a pattern it is the end of a line: always found, never at the beginning",
    ),
    Case("pricing", ["$"], "---P-", "… even where no such character stands"),
    Case("see https://x.y/z", ["https://x.y/z"], "--WPS", "junk answers of a question set count as they are"),
]
GAPS = [
    Case(
        "New  York\n",
        ["new york"],
        "E-W--",
        "runs of white space are one gap for words, not for characters and patterns",
    ),
    Case("Tove\tVeld", ["Tove Veld"], "E-W--", "a tab"),
    Case("New\u00a0York", ["New York"], "E-W--", "a space that does not break"),
    Case(
        "New\u200bYork",
        ["New York"],
        "--W--",
        "a space of no width is a gap in recall, a character in exact match",
    ),
    Case("New\u200bYork", ["NewYork"], "-----", "… so it is not nothing"),
    Case("hel\u00adlo", ["hello"], "-----", "a soft hyphen cuts the word in recall"),
    Case("hel\u00adlo", ["hel lo"], "--W--", "… into two"),
    Case("\u200fTove", ["Tove"], "--WPS", "a mark of writing direction stays in a prediction"),
    Case("New York", [r"New\s+York"], "-R-P-", "patterns say themselves how gaps look"),
]
EMPTY = [
    Case("", [""], "ERWPS", "nothing equals nothing"),
    Case(
        "anything", [""], "-RWPS", "an empty answer is found everywhere; question sets are read without them"
    ),
    Case("the", [""], "ERWPS", "an article is nothing"),
    Case("Tove Veld", [" "], "--WPS", "a blank answer has no words: everywhere"),
    Case("ToveVeld", [" "], "--W--", "… even where there is no blank"),
    Case("Tove", ["\u200b"], "--W--", "an answer of invisible characters has no words either"),
    Case("", ["\u200b"], "--W--", "… and is found in an empty passage"),
    Case("Tove", ["", "Tove"], "ERWPS", "beside another answer"),
]
UNICODE = [
    Case(
        "Café",
        ["Cafe\u0301"],
        "E-WP-",
        "composed and decomposed are one; regex match and orqa compare raw characters",
    ),
    Case("Cafe\u0301", ["Café"], "E-WP-", "… the other way about"),
    Case("Café", ["Cafe"], "---P-", "accents count; a pattern finds the letters before the accent"),
    Case("Cafe", ["Café"], "-----", "both ways"),
    Case(
        "Québec",
        ["Qu[eé]bec"],
        "-R---",
        "dpr decomposes the pattern: the class holds e and an accent, and takes one of them",
    ),
    Case("Quebec", ["Qu[eé]bec"], "-R-P-", "… so only the plain form is found"),
    Case("é", ["[à-é]"], "-R---", "… and a range may end before it begins: found nowhere"),
    Case(
        "Tove",
        [r"Tove|V\éld"],
        "-R---",
        "… and an escaped accent becomes an unknown escape: found nowhere, alternatives and all",
    ),
    Case("q\u0323\u0307", ["q\u0307\u0323"], "E-WP-", "marks in another order"),
    Case("한국", ["\u1112\u1161\u11ab\u1100\u116e\u11a8"], "E-WP-", "Hangul syllables and their letters"),
    Case("한국", ["국"], "---PS", "a syllable is no word"),
    Case("북경", ["부"], "---P-", "… and decomposed a syllable begins with another, shorter one"),
    Case("北京大学", ["北京"], "-R-PS", "without spaces there is one word"),
    Case("北京 大学", ["北京"], "-RWPS", "with them two"),
    Case("STRASSE", ["Straße"], "-----", "lower case is not case folding"),
    Case("STRAẞE", ["Straße"], "ERWP-", "the capital form has a lower case"),
    Case("ΚΥΠΡΟΣ", ["Κυπρος"], "ERWP-", "a final sigma at the end of a word"),
    Case(
        "ΚΥΠΡΟΣ",
        ["κυπροσ"],
        "-R-P-",
        "the other sigma is another letter, but not to a pattern that ignores case",
    ),
    Case("İzmir", ["izmir"], "-R---", "the dot is an accent once decomposed"),
    Case("Phyſic", ["Physic"], "-R-P-", "a long s is another letter, but not to a pattern that ignores case"),
    Case("ﬁnch", ["finch"], "-----", "ligatures stay: decomposition is canonical"),
    Case("Ｔｏｖｅ", ["Tove"], "-----", "so do wide letters"),
    Case("5 \u212a", ["5 K"], "ERWP-", "the Kelvin sign is a K"),
    Case("7 \u212b", ["7 Å"], "ERWP-", "the Ångström sign is an Å"),
    Case("m²", ["m2"], "-----", "a raised two is another number"),
    Case("m²", ["m"], "-R-PS", "… and part of the word"),
    Case("Ⅷ", ["ⅷ"], "ERWP-", "Roman numerals have two cases"),
    Case("Ⅷ", ["VIII"], "-----", "but are no letters"),
    Case("❤\ufe0f", ["❤"], "-RWPS", "the mark after a symbol is a word of its own"),
    Case("١٨٧١", ["1871"], "-----", "digits of other scripts are others"),
    Case("١٨٧١", [r"\d{4}"], "-R-P-", "but digits"),
]
ALIASES = [
    Case("Big Apple", ["New York", "NYC", "the Big Apple"], "E----", "any of them will do"),
    Case("in NYC now", ["New York", "NYC"], "--WPS", "in a passage, too"),
    Case("Zarn", ["Quill", "zarn", "Zarn"], "ERWPS", "the best of them counts"),
    Case("New York City", ["York City Hall", "New York State"], "-----", "parts of two do not add up"),
    Case("Veld", ["Tove, Veld"], "-----", "a list within one answer is one answer"),
]
PATTERNS = [
    Case("CRETE in Greece", ["cre?te"], "-R-P-", "case ignored, the rest is free"),
    Case("in Crete", [".*Crete$"], "-R-P-", "a pattern may allow for what comes before"),
    Case(
        "line one\nCrete",
        ["^Crete"],
        "---P-",
        "^ holds at every line, but a match begins where the prediction does",
    ),
    Case("Crete\nisland", ["Crete$"], "-R-P-", "$ holds at every line"),
    Case("Crete island", ["Crete$"], "-----", "not within one"),
    Case("Crete", ["(?i)crete"], "-R-P-", "flags within the pattern"),
    Case("x\ny", ["x.y"], "-----", "a dot is no end of line"),
    Case("x\ny", ["(?s)x.y"], "-R-P-", "… unless flagged"),
    Case("Tove", ["(?x) t o v e  # a name"], "-R-P-", "a pattern with spaces that do not count"),
    Case("TOVE", ["(?-i:Tove)"], "-----", "a pattern may mind case after all"),
    Case("Mount Tove", [r"(Mt\.?|Mount) Tove"], "-R-P-", "either"),
    Case("Crete", ["x*"], "-R-P-", "a match of nothing counts"),
    Case("in Crete", ["(?=Crete)"], "---P-", "so does one that only looks ahead"),
    Case("na na", [r"(na) \1"], "-R-P-", "what was found before"),
    Case("$5 million", [r"\$5"], "-R-P-", "a sign that is meant"),
    Case("Tove", ["[Tove"], "E----", "no valid pattern: wrong"),
    Case("Tove lived (here)", ["("], "--W-S", "nor this one, though as a string it is found"),
]
# DPR searches with the library `regex`, we with Python's `re`; `says` is DPR's, and we say the opposite of
# its P
ENGINES = [
    Case("café", [r"\bcafe\b"], "-----", "to `re` an accent that stands alone ends a word"),
    Case("ıspanak", ["ispanak"], "-R---", "to `re` an i without a dot is an i if case is ignored"),
    Case("2½", [r"\b2\b"], "---P-", "to `re` a fraction continues a word"),
]
CASES = [*PLAIN, *ARTICLES, *PUNCTUATION, *GAPS, *EMPTY, *UNICODE, *ALIASES, *PATTERNS]
