"""`realmlm export`: what other programs use of a model and its index."""

from realmlm.interop.encoders import export_encoders
from realmlm.interop.vectors import export_vectors
from realmlm.settings import ExportEncoders, ExportVectors


def export(settings: ExportEncoders | ExportVectors) -> str:
    """Write towers or vectors; says what was made."""
    if isinstance(settings, ExportVectors):
        return export_vectors(settings)
    return export_encoders(settings)
