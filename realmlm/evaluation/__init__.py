"""How well: answer measures, answers found in passages, retrieval, baselines. Importing this stays light: no
torch, no optional library."""

from realmlm.evaluation.answers import exact_match, f1, is_correct, normalize, regex_match

__all__ = ["exact_match", "f1", "is_correct", "normalize", "regex_match"]
