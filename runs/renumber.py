"""One vocabulary for two encoders: `python runs/renumber.py ENCODER TOKENIZER OUT`

MPNet's wordpieces are BERT's under other numbers, and so are those of encoders made from either. OUT is
ENCODER with its word embeddings in the order of TOKENIZER, a folder with another encoder's tokenizer: both
then read the same corpus, and one can teach the other wordpiece by wordpiece. Every wordpiece must be known
to ENCODER; special tokens are matched by what they are for.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

EMBEDDINGS = "embeddings.word_embeddings.weight"
SPECIAL = {
    "[CLS]": "<s>",
    "[SEP]": "</s>",
    "[PAD]": "<pad>",
    "[MASK]": "<mask>",
}  # in BERT's words and MPNet's
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    known = Tokenizer.from_file(str(options.encoder / "tokenizer.json")).get_vocab()
    wanted = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json")).get_vocab()
    names = [SPECIAL.get(name, name) for name in sorted(wanted, key=wanted.__getitem__)]
    if missing := [name for name in names if name not in known]:
        raise SystemExit(f"{options.encoder} does not know {len(missing):,} wordpieces, {missing[:5]} …")
    weights = load_file(options.encoder / "model.safetensors")
    weights[EMBEDDINGS] = weights[EMBEDDINGS][torch.tensor([known[name] for name in names])]
    config = json.loads((options.encoder / "config.json").read_text(encoding="utf-8"))
    config |= {"vocab_size": len(names), "pad_token_id": wanted["[PAD]"]}
    options.out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()}, options.out / "model.safetensors"
    )
    (options.out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    for name in FILES:
        if (options.tokenizer / name).exists():
            shutil.copy(options.tokenizer / name, options.out / name)


if __name__ == "__main__":
    main()
