"""Stopping a run from outside, after the step that it is at."""

import signal
import threading
from typing import Any

from realmlm.log import say

# Ctrl-C; what a scheduler (Slurm, Kubernetes) sends before it kills
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Ctrl-C, or a scheduler's signal, waits for the step to end and be saved; a second one does not."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in STOP_SIGNALS}
        return self

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        say("stopping after this step; interrupt again to stop at once")

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
