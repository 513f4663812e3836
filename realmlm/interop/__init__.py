"""Imports published REALM checkpoints (transformers' layout, the authors' variables) and exports models."""
