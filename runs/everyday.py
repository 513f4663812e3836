"""Questions about everyday papers, to learn reading them: `python runs/everyday.py OUT`

Leases, minutes, bills, manuals, lists of people and prices, all made up here. OUT gets
questions/everyday-reading.jsonl for runs/small.sh: each question with a piece of its paper and where the
answer stands. The same facts are written as sentences, as forms, as items and as rows; beside the answer
stand others of its kind (a second date, the neighbour's number), and a role, a label or a row tells which is
asked for. small/everyday.jsonl and small/everyday-dev.jsonl are papers of other kinds that nothing is trained
on, asked about in other words and with other names.
"""

import argparse
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from lines import write

from realmlm.sources.headings import BETWEEN
from realmlm.sources.markup import row_line

QUESTIONS = 10_000
DOCUMENTS, DEV = 60, 400  # kept apart
ROOM = 420  # characters of a piece: about as many as a passage of 128 wordpieces has
LONGEST = 60  # characters of an answer
EACH = 6  # questions about a paper, at most

# Words, kinds of papers, and kinds kept apart: each part begins with a line that says how it is written.
PARTS = re.split(r"(?m)^%% .*\n", Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
_, WORDS_TEXT, KINDS_TEXT, KINDS_APART_TEXT = PARTS
DATES = """{d} {B} {Y} / {d} {B} {Y} / {A} {d} {B} {Y} / {Y}-{m:02}-{d:02} / {B} {d}, {Y} / {d:02}/{m:02}/{Y}
 / {A:.3} {d} {B:.3} {Y} / {d}{th} {B} {Y} / {A}, {d} {B} / {d}.{m}.{Y} / {A} {d}{th} {B} / {d} {B}
 / {A}, {B} {d}, {Y} / {A} the {d}{th} of {B}"""
TIMES = "{h}:{m:02} / {g}.{m:02} {p} / {g}:{m:02} {p} / {h:02}.{m:02} / {g}:{m:02}{p}"
MONEY = "£{} / £{} / €{} / ${} / {} euros / CHF {} / {} kr / {} EUR / US${} / Rs {}"
NUMBER_OF = """What is {who}'s phone number? / How can I ring {who}? / What number do I call to reach {who}?
 / {who} telephone number? / On which number can {who} be reached? / phone {who} / Number for {who}?
 / I need to ring {who}, which number is it?"""
MAIL_OF = "What is {who}'s e-mail address? / Where do I write to {who}? / e-mail of {who}?"
APART_OF = "Where can I get hold of {who}, @? / How is {who} contacted, @?"
GENERAL = "What is the {label} of @? / {label} of @? / @: {label}? / {label}, @"
OF_ROW = "What is the {label} of {e}? / {e}: {label}? / Which {label} is given for {e}? / {label} of {e}"
LAYOUTS = ("{sentence} ",) * 4 + (
    *("{form}\n", "{form}\n", "- {sentence}\n", "* {form}\n", "{form}; ", "{label}\n{words}\n"),
    *("{label:<24} {words}\n", "{turn}. {sentence}\n", "{ask}\n{sentence}\n"),
)
ROWS = ("read", "read", "columns", "columns", "form", "above", "item", "told", "told", "told")

OPEN, CLOSE = 0xE000, "\uf8ff"  # stand around what may be asked for until a piece is cut
MARKS = re.compile("[\ue000-\uf8ff]")


def split(text: str, between: str = " / ") -> list[str]:
    return [part.strip() for part in text.replace("\n ", " ").split(between)]


def with_capital(text: str) -> str:
    return re.sub(r"^([\ue000-\uf8ff]?)([a-z])", lambda found: found[1] + found[2].upper(), text)


def within(label: str) -> str:
    """A label in a sentence."""
    return label if label[1:2].isupper() else label[:1].lower() + label[1:]


def mended(text: str) -> str:
    """Articles as their words want them."""
    text = re.sub(r"\b([Aa]) (?=[\ue000-\uf8ff]?[aeioAEIO])", r"\1n ", text)
    return re.sub(r"\b([Tt]he|an?|our|my) ([\ue000-\uf8ff]?)(the|a|an)\b", r"\2\3", text)


WORDS = {name: split(words, ",") for name, words in (line.split(":", 1) for line in WORDS_TEXT.splitlines())}
LINKED = {"abbr": "long", "option": "does", "PARTY": "party", "DAY": "day", "FEE": "fee", "OBJECT": "object"}


class Voice:
    """Words for one paper: dates and sums are written in one way and grow, nothing is said twice."""

    def __init__(self, dice: random.Random, apart: bool) -> None:
        self.dice, self.apart = dice, apart
        self.dates, self.times, self.money = (dice.choice(split(ways)) for ways in (DATES, TIMES, MONEY))
        self.option = dice.choice(("-{s}", "--{l}", "-{s}, --{l}", "-{s} --{l}"))
        self.cents = dice.random() < 0.5
        self.day, self.minutes = (
            date(2019, 1, 1) + timedelta(dice.randrange(3000)),
            dice.randrange(420, 900, 5),
        )
        self.sum, self.price = dice.randrange(60, 900), 0
        self.said: set[str] = set()
        self.linked: dict[str, str] = {}
        self.about = ""

    def fill(self, text: str) -> str:
        return re.sub(r"\{([A-Za-z]\w*)\}", lambda found: self.draw(found[1]), text)

    def draw(self, name: str) -> str:
        if name in self.linked:
            return self.linked.pop(name)
        for _ in range(30):
            words = self.word(name)
            if words not in self.said:
                break
        self.said.add(words)
        return words

    def word(self, name: str) -> str:
        dice = self.dice
        if name in ("date", "later", "month"):
            self.day += timedelta(dice.randrange(300, 900) if name == "later" else dice.randrange(3, 60))
            day = self.day
            th = "th" if 10 < day.day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
            form = "{B} {Y}" if name == "month" else self.dates
            return form.format(d=day.day, m=day.month, Y=day.year, th=th, A=f"{day:%A}", B=f"{day:%B}")
        if name == "time":
            self.minutes = 420 + (self.minutes - 420 + dice.randrange(15, 100, 5)) % 900
            hour, minute = divmod(self.minutes, 60)
            return self.times.format(h=hour, g=(hour - 1) % 12 + 1, m=minute, p="am" if hour < 12 else "pm")
        if name in ("sum", "price", "more", "pay"):
            if name == "sum":
                self.sum = amount = int(self.sum * dice.uniform(1.1, 2))
            elif name == "pay":
                amount = dice.randrange(21_000, 64_000, 50)
            else:
                self.price = amount = (
                    int(self.price * dice.uniform(1.2, 2)) + 1 if name == "more" else dice.randrange(2, 90)
                )
            cents = f".{dice.choice((50, 95, 20, 75, 99, 40)):02}" if self.cents and name != "pay" else ""
            return self.money.format(f"{amount:,}{cents}")
        if name == "person":
            return self._person()
        if name == "defined":
            name = dice.choice(("PARTY", "DAY", "FEE", "OBJECT"))
            words = self.word(name)
            self.linked["meant"] = self.draw(LINKED[name])
            return words
        if name in ("abbr", "option"):
            self.linked[LINKED[name]] = full = self.draw(LINKED[name])
            verb = full.split()[0]
            if name == "abbr":
                return "".join(word[0] for word in full.split() if word[0].isupper())
            return self.option.format(s=dice.choice((verb[0], verb[0].upper(), verb[-1])), l=verb)
        words_ = WORDS[name]
        if name.isupper() and name not in ("TOWN", "TAIL"):
            words_ = [word for turn, word in enumerate(words_) if (turn % 4 == 3) == self.apart]
        return self.fill(self.digits(dice.choice(words_)))

    def digits(self, text: str) -> str:
        kinds = {"#": "0123456789", "%": "123456789", "^": "ABCDEFHKLMNPRSTX"}
        return re.sub("[#%^]", lambda found: self.dice.choice(kinds[found[0]]), text)

    def _person(self) -> str:
        dice, his = self.dice, self.dice.random() < 0.5
        first, last = self.word("HIS" if his else "HER"), self.word("LAST")
        last += "-" + self.word("LAST") if dice.random() < 0.06 else ""
        title = dice.choice(("Mr", "Mr", "Mr", "Captain") if his else ("Ms", "Mrs", "Ms", "Sister"))
        title = dice.choice((title, title, "Dr", "Dr", "Professor"))
        way = dice.choice(("{f} {l}",) * 4 + ("{t} {f} {l}",) * 3 + ("{f} {i}. {l}", "{i}. {l}", "{t} {l}"))
        return way.format(t=title, f=first, l=last, i=dice.choice("ABCDEHJKLMPRST"))


@dataclass
class Paper:
    """Sections with their heading, the header of their columns and their lines; questions by their mark."""

    title: str
    sections: list[tuple[str, str, list[str]]] = field(default_factory=list)
    asks: list[list[str]] = field(default_factory=list)

    def ask(self, words: str, questions: list[str]) -> str:
        """These words, to be found again."""
        self.asks.append(questions)
        return f"{chr(OPEN + len(self.asks) - 1)}{words}{CLOSE}"

    def lines(self) -> list[str]:
        lines: list[str] = []
        for heading, head, below in self.sections:
            if lines and below:
                lines[-1] = lines[-1].rstrip(" ;") + "\n" * (not lines[-1].endswith("\n"))
            lines += [text for text in (heading, head, *below) if text] if below else []
        return lines

    def piece(self, number: int, dice: random.Random, cut: bool) -> tuple[str, str]:
        """Lines around what is asked for, and the title above them."""
        mark, title, head, lines = chr(OPEN + number), self.title, "", self.lines()
        if cut or len(self.sections) == 1:
            heading, head, lines = next(s for s in self.sections if any(mark in line for line in s[2]))
            title += BETWEEN * bool(heading) + heading.strip()
        first = last = next(turn for turn, line in enumerate(lines) if mark in line)
        size = len(head) + len(lines[first])
        while True:
            ways = [way for way in (first - 1, last + 1) if 0 <= way < len(lines)]
            ways = [way for way in ways if size + len(lines[way]) < ROOM]
            if not ways:
                return head + "".join(lines[first : last + 1]), title
            way = dice.choice(ways)
            first, last = min(first, way), max(last, way)
            size += len(lines[way])


class Kind:
    """What papers of a kind say, and what people ask about them."""

    def __init__(self, text: str) -> None:
        head, *self.lines = text.strip("\n").split("\n")
        self.is_list = head.startswith("#")
        self.key, titles, abouts = split(head.lstrip("# "), " | ")
        self.titles, self.abouts = split(titles), split(abouts)

    def paper(self, dice: random.Random, apart: bool, seen: set[str]) -> Paper:
        """One of them, about something not yet `seen`."""
        voice = Voice(dice, apart)
        key = next(key for _ in range(99) if (key := voice.fill(self.key)) not in seen or not apart)
        seen.add(key)
        title = voice.fill(
            dice.choice([title for title in self.titles if "$" in title or not apart]).replace("$", key)
        )
        title = title if re.search(r"\.\w+$", title) else with_capital(title)
        if dice.random() < 0.1 and not apart:
            title = re.sub(r"\W+", dice.choice("-_"), title.lower()) + dice.choice((".pdf", ".txt", ".docx"))
        paper, voice.about = Paper(title), dice.choice(self.abouts).replace("$", key)
        (self._rows if self.is_list else self._facts)(paper, voice, key)
        paper.asks = [
            [mended(ask.replace("@", voice.about).replace("$", key)) for ask in asks if ask != "-"]
            for asks in paper.asks
        ]
        return paper

    def _facts(self, paper: Paper, voice: Voice, key: str) -> None:
        dice, layout, turn = voice.dice, voice.dice.choice(LAYOUTS), 0
        paper.sections.append(("", "", []))
        for line in self.lines:
            first, *rest = split(line.replace("$", key), " | ")
            if first.startswith("="):
                paper.sections.append((dice.choice(split(first[1:])) + "\n", "", []))
                layout = dice.choice(LAYOUTS) if dice.random() < 0.3 else layout
                continue
            lines = paper.sections[-1][2]
            if first.startswith("+"):
                lines += [voice.fill(voice.digits(dice.choice(split(first))[2:])) + "\n"] * (
                    dice.random() < 0.7
                )
                continue
            if dice.random() < 0.12:
                continue
            turn += 1
            labels, value, sentences, asks = (split(part) for part in (first, *rest))
            label = voice.fill(dice.choice(labels))
            words = voice.fill(dice.choice(value))
            asks = [ask.replace("<label>", label) for ask in asks]
            if not voice.apart and label == labels[0] and dice.random() < 0.2:
                asks = split(GENERAL.replace("{label}", within(label)))
            said, beside = paper.ask(words, asks), ""
            if value == ["{person}"] and dice.random() < 0.35:
                is_mail = dice.random() < 0.2
                ways = APART_OF if voice.apart else MAIL_OF if is_mail else NUMBER_OF
                who = dice.choice((words, f"the {within(labels[0])}"))
                beside = paper.ask(
                    voice.draw("mail" if is_mail else "phone"), split(ways.replace("{who}", who))
                )
            way = "{}, {}" if "(" in beside else "{} ({})"
            full = way.format(said, beside) if beside else said
            form = f"{label}: {full}"
            sentence = voice.fill(dice.choice(sentences)).replace("{}", full)
            sentence = f"{form}." if sentence == "-" else with_capital(mended(sentence))
            ask = (
                label if asks == ["-"] else with_capital(mended(dice.choice(asks).replace("@", voice.about)))
            )
            lines.append(
                layout.format(label=label, words=full, form=form, sentence=sentence, turn=turn, ask=ask)
            )

    def _rows(self, paper: Paper, voice: Voice, key: str) -> None:
        dice, layout = voice.dice, voice.dice.choice(ROWS)
        columns = [[split(part) for part in line.split(" | ")] for line in self.lines if line[0] != ">"]
        told = dice.choice([way for line in self.lines if line[0] == ">" for way in split(line[1:])])
        kept = list(range(len(columns)))
        if layout != "told" and len(columns) > 3:
            kept = [0, *sorted(dice.sample(kept[1:], dice.randrange(2, len(columns))))]
        names = [dice.choice(column[0]) for column in columns]
        rows: list[list[str]] = []
        for _ in range(dice.randrange(4, 9)):
            cells = [voice.fill(voice.digits(column[1][0])) for column in columns]
            if cells[0] not in (MARKS.sub("", row[0]) for row in rows):
                rows.append(
                    [self._cell(paper, voice, names, cells, place, kept) for place in range(len(cells))]
                )
        names = [names[place] for place in kept]
        wide = [max(len(row[place]) for row in rows) + dice.randrange(2, 5) for place in kept]
        wide = [max(width, len(name) + 4) for width, name in zip(wide, names, strict=True)]
        bullet = dice.choice(("", "", "- ", "* "))
        head, lines = "", []
        for row in rows:
            cells = [row[place] for place in kept]
            pairs = list(zip(names, cells, strict=True))
            if layout == "told":
                line = voice.fill(told.replace("$", key))
                for place, cell in enumerate(row):
                    line = line.replace(f"{{{place}}}", cell)
                line = bullet + with_capital(mended(line))
            elif layout == "columns":
                head = (
                    "".join(f"{name:<{width - 2}}" for name, width in zip(names, wide, strict=True)).rstrip()
                    + "\n"
                )
                line = "".join(f"{cell:<{width}}" for cell, width in zip(cells, wide, strict=True)).rstrip()
            elif layout == "read":
                line = row_line(names, cells)
            elif layout == "form":
                line = "\n".join(f"{name}: {cell}" for name, cell in pairs)
            elif layout == "above":
                line = "\n".join((cells[0], *(f"{name}\n{cell}" for name, cell in pairs[1:])))
            else:
                line = f"- {cells[0]}: " + ", ".join(f"{within(name)} {cell}" for name, cell in pairs[1:])
            lines.append(line + "\n")
        paper.sections.append(("", head, lines))

    def _cell(
        self, paper: Paper, voice: Voice, names: list[str], cells: list[str], place: int, kept: list[int]
    ) -> str:
        """A cell with its questions, of which those stay that ask by what is shown."""
        if place not in kept:
            return cells[place]
        asks = split(self.lines[place].split(" | ")[2])
        if asks == ["NUMBER"]:
            asks = split((APART_OF if voice.apart else NUMBER_OF).replace("{who}", "{e}"))
        if place and asks != ["-"] and not voice.apart and voice.dice.random() < 0.15:
            asks = split(OF_ROW.replace("{label}", within(names[place])))
        asks = [ask.replace("{e}", cells[0]) for ask in asks]
        for other, cell in enumerate(cells):
            asks = [
                ask.replace(f"<{other}>", cell) for ask in asks if other in kept or f"<{other}>" not in ask
            ]
        return paper.ask(cells[place], asks)


def kinds(text: str) -> list[Kind]:
    return [Kind(part) for part in re.split(r"(?m)^#(?= |# )", text) if part.strip()]


def found(raw: str, number: int) -> tuple[str, str, int]:
    """Text without marks, this answer and where it begins; -1 if it is too long or stands there twice."""
    before, _, rest = raw.lstrip().partition(chr(OPEN + number))
    text, said, start = MARKS.sub("", raw).strip(" ;\n"), rest.split(CLOSE)[0], len(MARKS.sub("", before))
    assert text[start:].startswith(said)
    # answers are found by their words: those of another place must not be taken for these
    is_once = len(re.findall(rf"(?<!\w){re.escape(said)}(?!\w)", text, re.IGNORECASE)) == 1
    return text, said, start if is_once and len(said) <= LONGEST else -1


def asked(paper: Paper, dice: random.Random) -> Iterator[tuple[int, str]]:
    """Marks in some order, and a question for each."""
    for number in dice.sample(range(len(paper.asks)), len(paper.asks)):
        if paper.asks[number]:
            question = dice.choice(paper.asks[number])
            yield number, with_capital(question) if dice.random() < 0.8 else question


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    dice = random.Random(17)
    reading: list[dict[str, object]] = []
    train, apart = kinds(KINDS_TEXT), kinds(KINDS_APART_TEXT)
    seen: set[str] = set()
    while len(reading) < QUESTIONS:
        for kind in train:
            paper, cut = kind.paper(dice, False, seen), dice.random() < 0.5
            for number, question in list(asked(paper, dice))[:EACH]:
                raw, title = paper.piece(number, dice, cut)
                context, said, start = found(raw, number)
                if start >= 0:
                    row = {"question": question, "answer": [said], "context": context, "title": title}
                    reading.append(row | {"start": start})
    documents, dev = [], []
    for turn in range(DOCUMENTS):
        paper = apart[turn % len(apart)].paper(dice, True, seen)
        raw = "".join(paper.lines())
        documents.append({"id": f"e{turn}", "title": paper.title, "text": MARKS.sub("", raw).strip(" ;\n")})
        for number, question in asked(paper, dice):
            _, said, start = found(raw, number)
            dev += [{"question": question, "answer": [said]}] * (start >= 0)
    dev = dice.sample(dev, min(DEV, len(dev)))
    for name, rows in (
        ("questions/everyday-reading.jsonl", reading),
        ("small/everyday.jsonl", documents),
        ("small/everyday-dev.jsonl", dev),
    ):
        write(options.out / name, rows)


if __name__ == "__main__":
    main()
