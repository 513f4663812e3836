"""What is installed here, what it can run on, and what is missing for which command."""

import importlib.util
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from realmlm.parallel import cores

CORE = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "filelock", "tyro", "platformdirs")
"""Everything imports and trains with these, and has a command line."""
OPTIONAL = (  # module, extra that brings it, what it is for, the commands that need it
    ("uvicorn", "serve", "the service", "serve"),
    ("fastapi", "serve", "the service", "serve"),
    ("prometheus_client", "serve", "the service", "serve"),
    ("httptools", "serve", "a quicker service", "serve"),
    ("uvloop", "serve", "a quicker service", "serve"),
    ("pypdf", "", "PDF", "ask --docs, corpus, edit"),
    ("docx", "", "Word documents", "ask --docs, corpus, edit"),
    ("python_calamine", "", "spreadsheets", "ask --docs, corpus, edit"),
    ("striprtf", "", "Rich Text Format", "ask --docs, corpus, edit"),
    ("selectolax", "", "HTML", "ask --docs, corpus, edit"),
    ("markdown_it", "", "Markdown", "ask --docs, corpus, edit"),
    ("mwparserfromhell", "formats", "Wikipedia dumps", "corpus"),
    ("pyarrow", "parquet", "Parquet and Arrow files", "ask --docs, corpus, edit"),
    ("ahocorasick", "", "finding answers in passages", "finetune, evaluate"),
    ("spacy", "spacy", "the tagger spacy", "spans --tagger spacy"),
    ("tensorflow", "tensorflow", "the authors' checkpoints", "import-hf"),
    ("ray", "ray", "a Ray cluster", "corpus, spans, index, evaluate --engine ray, --refresh.engine ray"),
    ("s3fs", "s3", "places at s3://…", "corpus, spans, index, evaluate, ask, search"),
    ("tensorboard", "tensorboard", "the TensorBoard callback", "in Python"),
)


def examine() -> str:
    """All of it as text."""
    lines = [f"Python {platform.python_version()}, {platform.platform()}", ""]
    lines += [f"  {name:16} {_version(name) or 'MISSING: pip install realmlm'}" for name in CORE]
    lines += ["", "devices", *(f"  {line}" for line in _devices())]
    missing = [entry for entry in OPTIONAL if importlib.util.find_spec(entry[0]) is None]
    lines += _compiler()
    lines += ["", "missing" if missing else "nothing is missing for any command"]
    for module, extra, why, needs in missing:
        wanted = f"'realmlm[{extra}]'" if extra else "realmlm"
        lines.append(f"  {module:16} {why}: {needs}; pip install {wanted}")
    return "\n".join(lines)


def _compiler() -> list[str]:
    """Triton is nothing without one."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        return []
    from realmlm.device import COMPILER, c_compiler

    without = "triton is installed, but there is no C compiler: a GPU is used without kernels, slower"
    return [] if c_compiler() else ["", f"{without}; {COMPILER}"]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _devices() -> list[str]:
    memory = ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    found = [f"cpu      {cores()} cores{memory}, {platform.processor() or platform.machine()}"]
    if importlib.util.find_spec("torch") is None:
        return found
    import torch

    found[0] += f", {torch.get_num_threads()} threads"
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        found.append(f"cuda:{number}   {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    if not torch.cuda.is_available():
        made_for = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        found.append(f"no GPU that torch can use (this torch is built {made_for})")
    if sys.platform == "darwin" and torch.backends.mps.is_available():
        found.append("mps      the GPU of this Mac; realmlm runs on its CPU")
    return found
