"""Processes that begin where the imports, seconds of work, are already made."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["tests.train.killers", "tests.train.together", "transformers.models.modernbert.modeling_modernbert"]
)
