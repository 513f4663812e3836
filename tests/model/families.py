"""The families of encoders that the suite is run for, each with a tokenizer in its own style."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from realmlm.corpus.wordpieces import BERT_SPECIAL, Layout, Wordpieces
from realmlm.worlds import world_wordpieces

PIECES = [
    piece
    for piece, number in sorted(world_wordpieces().tokenizer.get_vocab().items(), key=lambda item: item[1])
][len(BERT_SPECIAL) :]
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

# --- tokenizers: the world's pieces in each family's own style ----------------------------------------------


def wordpiece(special: tuple[str, ...] = BERT_SPECIAL) -> dict[str, Any]:
    return {"vocab": {piece: number for number, piece in enumerate([*special, *PIECES])}}


def unigram(special: tuple[str, ...]) -> dict[str, Any]:
    """Every piece costs the same: the text is cut into as few as possible."""
    letters = [chr(number) for number in range(ord("!"), ord("~") + 1)]
    own = dict.fromkeys(
        [
            "▁",
            *(piece.removeprefix("##") if piece.startswith("##") else f"▁{piece}" for piece in PIECES),
            *letters,
        ]
    )
    return {"vocab": [*((token, 0.0) for token in special), *((piece, -10.0) for piece in own)]}


def byte_pairs(special: tuple[str, ...]) -> dict[str, Any]:
    """Every piece is put together letter by letter."""
    merges: dict[tuple[str, str], None] = {}
    for piece in PIECES:
        letters = piece.removeprefix("##") if piece.startswith("##") else f"Ġ{piece}"
        merges |= {(letters[:end], letters[end]): None for end in range(1, len(letters))}
    vocabulary = dict.fromkeys(
        [
            *special,
            *sorted(pre_tokenizers.ByteLevel.alphabet()),
            *(first + second for first, second in merges),
        ]
    )
    return {"vocab": {piece: number for number, piece in enumerate(vocabulary)}, "merges": list(merges)}


def from_class(name: str, settings: Callable[[], dict[str, Any]]) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        return getattr(transformers, name)(**settings())

    return make


def modernbert_tokenizer() -> Any:
    """transformers has no class for it, only the published file: byte pairs in BERT's order."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(**byte_pairs(BERT_SPECIAL)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(BERT_SPECIAL))
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")


def xlm_tokenizer() -> Any:
    """Its class is written in Python, out of reach for `tokenizers`: byte pairs that mark the ends of words,
    and that class's own order."""
    from transformers import PreTrainedTokenizerFast, XLMTokenizer

    special = ("<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>")
    words = [[*piece[:-1], f"{piece[-1]}</w>"] for piece in PIECES if not piece.startswith("##")]
    merges = list(
        dict.fromkeys(("".join(word[:end]), word[end]) for word in words for end in range(1, len(word)))
    )
    letters = sorted({letter for word in words for letter in (*word, word[-1].removesuffix("</w>"))})
    vocabulary = dict.fromkeys([*special, *letters, *(first + second for first, second in merges)])
    numbers = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(numbers, merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.add_special_tokens(list(special))
    own = SimpleNamespace(bos_token_id="<s>", sep_token_id="</s>")
    single, pair = (
        XLMTokenizer.build_inputs_with_special_tokens(own, ["$A"], second) for second in (None, ["$B"])
    )
    tokenizer.post_processor = processors.TemplateProcessing(single, pair, [("<s>", 0), ("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


# --- families -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Family:
    """A row of the table."""

    model_type: str
    tokenizer: Callable[[], Any]
    settings: dict[str, Any] = field(default_factory=dict)  # beside those of `fresh_encoder`
    remark: str = ""


BERT_TOKENIZER = from_class("BertTokenizer", wordpiece)
ROBERTA_TOKENIZER = from_class("RobertaTokenizer", lambda: byte_pairs(ROBERTA_SPECIAL))
DEBERTA_V2_TOKENIZER = from_class(
    "DebertaV2Tokenizer", lambda: unigram(("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"))
)

FAMILIES = {
    "BERT": Family(model_type="bert", tokenizer=BERT_TOKENIZER),
    "RoBERTa": Family(
        model_type="roberta", tokenizer=ROBERTA_TOKENIZER, remark="positions count from the padding's id + 1"
    ),
    "ALBERT": Family(
        model_type="albert",
        tokenizer=from_class(
            "AlbertTokenizer", lambda: unigram(("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))
        ),
        remark="one layer's weights for all layers; embeddings narrower than the layers",
    ),
    "ELECTRA": Family(
        model_type="electra",
        tokenizer=BERT_TOKENIZER,
        remark="embeddings narrower than the layers; generator or discriminator",
    ),
    "ModernBERT": Family(
        model_type="modernbert", tokenizer=modernbert_tokenizer, remark="no segments; the default family"
    ),
    "DistilBERT": Family(model_type="distilbert", tokenizer=BERT_TOKENIZER, remark="no segments"),
    "MobileBERT": Family(
        model_type="mobilebert",
        tokenizer=from_class("MobileBertTokenizer", wordpiece),
        remark=(
            "three neighbouring wordpieces embedded together, the padding left out; fresh ones with LayerNorm"
        ),
    ),
    "DeBERTa": Family(
        model_type="deberta",
        tokenizer=from_class("DebertaTokenizer", lambda: byte_pairs(BERT_SPECIAL)),
        remark=(
            "relative positions; no segments; always in full precision: transformers' mask overflows in half"
        ),
    ),
    "DeBERTa-v2": Family(
        model_type="deberta-v2",
        tokenizer=DEBERTA_V2_TOKENIZER,
        settings={"conv_kernel_size": 3, "conv_act": "gelu"},
        remark="with the convolution of its larger sizes",
    ),
    "DeBERTa-v3": Family(
        model_type="deberta-v2", tokenizer=DEBERTA_V2_TOKENIZER, remark="relative positions; no segments"
    ),
    "XLNet": Family(
        model_type="xlnet",
        tokenizer=from_class(
            "XLNetTokenizer",
            lambda: unigram(("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")),
        ),
        remark="reads in both directions at once; `<cls>` stands last, in a segment of its own",
    ),
    "XLM": Family(
        model_type="xlm",
        tokenizer=xlm_tokenizer,
        remark=(
            "transformers' tokenizer of it is written in Python: bring a tokenizer.json, or train one; no "
            "language ids, no segments"
        ),
    ),
    "XLM-RoBERTa": Family(
        model_type="xlm-roberta",
        tokenizer=from_class("XLMRobertaTokenizer", lambda: unigram(ROBERTA_SPECIAL)),
        remark="positions count from the padding's id + 1",
    ),
    "ERNIE": Family(model_type="ernie", tokenizer=BERT_TOKENIZER, remark="no task ids"),
    "LUKE": Family(
        model_type="luke",
        tokenizer=from_class("LukeTokenizer", lambda: byte_pairs(ROBERTA_SPECIAL)),
        remark="words only: its entities are neither read nor kept in memory",
    ),
    "BigBird": Family(
        model_type="big_bird",
        tokenizer=from_class(
            "BigBirdTokenizer", lambda: unigram(("<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))
        ),
        remark="full attention: passages are shorter than its sparse one needs",
    ),
    "Longformer": Family(
        model_type="longformer",
        tokenizer=ROBERTA_TOKENIZER,
        settings={"attention_window": 16},
        remark="query, or title, with global attention; the rest in its window",
    ),
    "MPNet": Family(
        model_type="mpnet",
        tokenizer=from_class(
            "MPNetTokenizer", lambda: wordpiece(("<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"))
        ),
        remark="positions count from 2; its own tokenizer has the padding as 1, as it must",
    ),
    "T5": Family(
        model_type="t5",
        tokenizer=from_class("T5Tokenizer", lambda: unigram(("<pad>", "</s>", "<unk>")) | {"extra_ids": 10}),
        remark="the encoder alone; no cls token: mean pooling; `<extra_id_0>` is the mask",
    ),
}
NO_SEGMENTS = {"modernbert", "distilbert", "deberta", "deberta-v2", "xlm", "mpnet", "t5"}
DEFAULT = ("BERT", "RoBERTa", "ALBERT", "ELECTRA", "ModernBERT")
REFUSED = {
    "gpt2": "it is no masked language model",
    "llama": "it is no masked language model",
    "bart": "it has a decoder as well",
    "fnet": "it cannot leave out the padding",
    "convbert": "its convolutions read the padding",
}


def shown(layout: Layout, wordpieces: Wordpieces) -> str:
    """`[CLS] x [SEP] z [SEP]`, and the segment ids below."""
    before, between, after = (
        [(str(wordpieces.tokenizer.id_to_token(token)), segment) for token, segment in part]
        for part in (layout.before, layout.between, layout.after)
    )
    parts = [*before, ("x", layout.first), *between, ("z", layout.second), *after]
    return f"`{' '.join(word for word, _ in parts)}` {''.join(str(segment) for _, segment in parts)}"
