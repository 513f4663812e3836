"""A model with the retriever of one and the reader of another: `python runs/splice.py OUT TOWERS READER`

As in the paper's ablation: what is joint pre-training of the retriever worth to a reader that had no part in
it? READER's weights take the place of those of the reader in TOWERS; both must be of one shape. With --share
the reader goes so far from READER's weights towards those in TOWERS, if the one began as the other. --scale
is that of f(x,z): a retriever that was pre-trained jointly gives flatter scores, and a reader that has
learned beside sharper ones goes on best where they are as sharp as before.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from realmlm import Realm


@torch.no_grad()
def spliced(towers: Path, reader: Path, *, share: float = 0.0, scale: float | None = None) -> Realm:
    model, other = (Realm.from_pretrained(place) for place in (towers, reader))
    mine, theirs = model.reader.state_dict(), other.reader.state_dict()
    if {name: mine[name].shape for name in mine} != {name: theirs[name].shape for name in theirs}:
        sys.exit(f"the readers of {towers} and {reader} are of different shapes")
    for name, weights in theirs.items():
        # equal word embeddings that do not learn are held once, for the towers too: they stay as they are
        if not torch.equal(mine[name], weights):
            mine[name].copy_(torch.lerp(weights, mine[name], share) if share else weights)
    if scale is not None:
        model.learn_scale()
        assert model.query.log_scale is not None
        model.query.log_scale.fill_(torch.tensor(scale).log())
    model.config = replace(model.config, calibration=None)  # it is true of none but the model it was made for
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("out", "towers", "reader"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--share", type=float, default=0.0)
    parser.add_argument("--scale", type=float)
    options = parser.parse_args()
    made = spliced(options.towers, options.reader, share=options.share, scale=options.scale)
    made.save_pretrained(options.out)


if __name__ == "__main__":
    main()
