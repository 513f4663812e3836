"""Checkpoints of the published REALM (transformers' layout, the authors' variables): brought in, and written
back."""
