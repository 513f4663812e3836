"""The mean of models that began as one: `python runs/average.py OUT MODEL…`

Models that were trained from the same weights on the same task, each with its own batches, lie close
together; the mean of their weights usually answers as well as the best of them, and takes no longer.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from realmlm import Realm


@torch.no_grad()
def average(places: list[Path]) -> Realm:
    """The first of them with the mean of all weights; what is the same in all stays so to the last bit."""
    models = [Realm.from_pretrained(place) for place in places]
    for model in models:  # it is true of none but the model it was made for
        model.config = replace(model.config, calibration=None)
    if any(model.config != models[0].config for model in models):
        sys.exit(f"models of different kinds have no mean: {', '.join(map(str, places))}")
    for weights, *others in zip(*(model.parameters() for model in models), strict=True):
        weights += torch.stack([other - weights for other in others]).mean(0) * len(others) / len(models)
    return models[0]


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    out, *places = (Path(place) for place in sys.argv[1:])
    average(places).save_pretrained(out)
