"""A learned tagger: an encoder labels each word, as in sentences with marked names (IOB2); dates by patterns.

N sentences, L wordpieces, H hidden size, C labels.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from realmlm.corpus.taggers import Mention, with_numbers
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.device import pick_device
from realmlm.errors import ArtefactDamaged, BadInput
from realmlm.log import progress, say
from realmlm.model.encoders import Encoder, build_encoder, encoder_config, load_encoder
from realmlm.model.inputs import query_inputs
from realmlm.model.int8 import read_weights, write_weights
from realmlm.model.precision import half_precision
from realmlm.settings import TrainTagger
from realmlm.storage.artefacts import open_artefact, publish
from realmlm.storage.files import read_text

_WORD = re.compile(r"\w+|[^\w\s]")
_LANGUAGE = re.compile(r"^[a-z]{2,3}:(?=.)")  # WikiAnn writes the language before each word
_LONGEST = 128  # wordpieces of a sentence that are looked at
# sentences
_BATCH = 64
_BATCH_GPU = 512
_IGNORED = -100  # the label of wordpieces that do not begin a word


@dataclass(frozen=True)
class Labelled:
    """A sentence in words, with a label each: O, or B- and I- before a kind of name."""

    words: tuple[str, ...]
    labels: tuple[str, ...]


def read_labelled(file: Path) -> list[Labelled]:
    """Sentences as in CoNLL: a word and its label (last column) a line, an empty line between sentences."""
    sentences = []
    for block in re.split(r"\n[ \t]*\n", read_text(file).strip()):
        lines = [line for line in block.splitlines() if not line.startswith("-DOCSTART-")]
        rows = [line.split() for line in lines if line.strip()]
        for row in rows:
            if len(row) < 2 or not re.fullmatch(r"O|[BI]-\S+", row[-1]):
                line = " ".join(row)
                raise BadInput(f"{file}: '{line}' is no word with a label (O, B-…, I-…); one word a line")
        if rows:
            words = tuple(_LANGUAGE.sub("", row[0]) for row in rows)
            sentences.append(Labelled(words, tuple(row[-1] for row in rows)))
    if not sentences:
        form = "write one word with its label a line, an empty line between sentences"
        raise BadInput(f"{file}: no sentence in it; {form}")
    return sentences


class TokenClassifier(nn.Module):
    """log p(label) of every wordpiece."""

    def __init__(self, encoder: Encoder, labels: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.hidden, labels)

    def forward(self, tokens: Sequence[np.ndarray], wordpieces: Wordpieces) -> Tensor:
        inputs = query_inputs(tokens, wordpieces, max_query=_LONGEST).to(self.head.weight.device)
        before = len(inputs.layout.before)
        longest = max(len(sentence[:_LONGEST]) for sentence in tokens)
        return self.head(self.encoder(inputs)[:, before : before + longest]).float().log_softmax(-1)


class LearnedTagger:
    """Names as the classifier finds them, dates and quantities by patterns."""

    def __init__(self, folder: Path, device: str = "auto") -> None:
        self._folder = folder
        self._device = device
        hint = f"train one: realmlm tagger --train FILE --test FILE --out {folder}"
        manifest = open_artefact(folder, kind="tagger", hint=hint)
        self.name = f"learned:{manifest.fingerprint[:12]}"
        self.labels: list[str] = manifest.config["labels"]
        self.wordpieces = Wordpieces.load(folder)
        with torch.random.fork_rng(devices=[]):  # the head draws its weights
            encoder = Encoder(build_encoder(manifest.config["encoder"], draw=False))
            self.model = TokenClassifier(encoder, len(self.labels))
        try:
            self.model.load_state_dict(read_weights(folder / "model.safetensors"))
        except (OSError, ValueError, RuntimeError) as error:
            raise ArtefactDamaged(f"{folder / 'model.safetensors'} cannot be loaded: {error}") from error
        self.model.to(pick_device(device)).eval()

    @property
    def on_gpu(self) -> bool:
        return self.model.head.weight.device.type == "cuda"

    def __reduce__(self) -> tuple[Any, ...]:  # a worker loads the model itself
        return LearnedTagger, (self._folder, self._device)

    def tag(self, sentences: Sequence[str]) -> list[list[Mention]]:
        """The names, dates and quantities of each sentence."""
        marked: list[list[Mention]] = []
        at_once = _BATCH_GPU if self.on_gpu else _BATCH
        for first in range(0, len(sentences), at_once):
            some = sentences[first : first + at_once]
            words = [[match.span() for match in _WORD.finditer(sentence)] for sentence in some]
            pairs = zip(some, words, strict=True)
            texts = [[sentence[start:end] for start, end in spans] for sentence, spans in pairs]
            found = predict(self.model, self.wordpieces, self.labels, texts)
            for sentence, spans, labels in zip(some, words, found, strict=True):
                names = [Mention(spans[a][0], spans[b - 1][1], "name") for a, b, _ in entities(labels)]
                marked.append(with_numbers(sentence, names))
        return marked


@torch.inference_mode()
def predict(
    model: TokenClassifier, wordpieces: Wordpieces, labels: list[str], sentences: Sequence[Sequence[str]]
) -> list[list[str]]:
    """A label for each word of each sentence; O for words beyond what is looked at."""
    split = [_pieces(wordpieces, words) for words in sentences]
    device = model.head.weight.device
    with half_precision(device, model.encoder.hidden, wanted=device.type == "cuda"):
        best_NL = model([tokens for tokens, _ in split], wordpieces).argmax(-1).cpu().numpy()
    found = []
    for row, (words, (_, firsts)) in enumerate(zip(sentences, split, strict=True)):
        seen = [labels[best_NL[row, place]] if 0 <= place < _LONGEST else "O" for place in firsts]
        found.append(seen[: len(words)])
    return found


def _pieces(wordpieces: Wordpieces, words: Sequence[str]) -> tuple[np.ndarray, list[int]]:
    """Wordpieces of a sentence in words, and which of them each word begins with (−1: none)."""
    encoding = wordpieces.tokenizer.encode(list(words), is_pretokenized=True, add_special_tokens=False)
    firsts = [-1] * len(words)
    for place, word in enumerate(encoding.word_ids):
        if word is not None and firsts[word] < 0:
            firsts[word] = place
    return np.array(encoding.ids or [wordpieces.unk or 0], dtype=np.int64), firsts


def entities(labels: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(first, past the last, kind) of every name; an I- that continues nothing begins one."""
    start = 0
    kind = ""
    for place, label in enumerate([*labels, "O"]):
        if kind and label != f"I-{kind}":
            yield start, place, kind
            kind = ""
        if label != "O" and not kind:
            start = place
            kind = label[2:]


def score(truth: Iterable[Sequence[str]], found: Iterable[Sequence[str]]) -> float:
    """F1 over whole names of the right kind."""
    common = total = 0
    for right, ours in zip(truth, found, strict=True):
        expected = set(entities(right))
        seen = set(entities(ours))
        common = common + len(expected & seen)
        total = total + len(expected) + len(seen)
    return 2 * common / total if total else 0.0


def train_tagger(settings: TrainTagger) -> float:
    """Train on marked sentences and write the tagger; gives F1 on the test sentences."""
    taught = read_labelled(settings.train)
    asked = read_labelled(settings.test)
    labels = sorted({label for sentence in taught for label in sentence.labels})
    wordpieces = Wordpieces.load(settings.tokenizer or settings.checkpoint)
    device = pick_device(settings.device)
    torch.manual_seed(settings.seed)
    body = load_encoder(settings.checkpoint)
    with publish(settings.out, kind="tagger") as draft:
        model = TokenClassifier(Encoder(body), len(labels)).to(device)
        _fit(settings, model, wordpieces, labels, taught)
        model.eval()
        found = []
        for first in range(0, len(asked), _BATCH):
            words = [sentence.words for sentence in asked[first : first + _BATCH]]
            found += predict(model, wordpieces, labels, words)
        f1 = score([sentence.labels for sentence in asked], found)
        write_weights(draft.path / "model.safetensors", model.state_dict())
        wordpieces.save(draft.path / "tokenizer.json")
        draft.config = {"encoder": encoder_config(body), "labels": labels, "f1": round(100 * f1, 2)}
        draft.counts = {"train": len(taught), "test": len(asked)}
    return f1


def _fit(
    settings: TrainTagger,
    model: TokenClassifier,
    wordpieces: Wordpieces,
    labels: list[str],
    taught: list[Labelled],
) -> None:
    number = {label: place for place, label in enumerate(labels)}
    steps = settings.epochs * (len(taught) // settings.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.lr, total_steps=max(steps, 1), pct_start=0.1, anneal_strategy="linear"
    )
    rng = np.random.default_rng(settings.seed)
    device = model.head.weight.device
    model.train()
    with progress("training the tagger", steps, unit="steps") as bar:
        for _ in range(settings.epochs):
            order = rng.permutation(len(taught))
            for first in range(0, len(order) - settings.batch + 1, settings.batch):
                some = [taught[place] for place in order[first : first + settings.batch]]
                split = [_pieces(wordpieces, sentence.words) for sentence in some]
                longest = min(_LONGEST, max(len(tokens) for tokens, _ in split))
                target_NL = np.full((len(some), longest), _IGNORED)
                for row, (sentence, (_, firsts)) in enumerate(zip(some, split, strict=True)):
                    for label, place in zip(sentence.labels, firsts, strict=True):
                        if 0 <= place < longest:
                            target_NL[row, place] = number[label]
                with half_precision(device, model.encoder.hidden):
                    log_NLC = model([tokens for tokens, _ in split], wordpieces)
                target_n = torch.from_numpy(target_NL).flatten().to(device)
                loss = F.nll_loss(log_NLC.flatten(0, 1), target_n, ignore_index=_IGNORED)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                bar.advance()
    say(f"last loss {loss.item():.3f}" if steps else "no step was made: fewer sentences than a batch")
