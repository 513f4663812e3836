"""What `GET /metrics` shows."""

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED_METERS = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder in which several processes count together: any of them then shows the sums of all. The
library reads it when it is imported."""


class Meters:
    """Counters and clocks of a service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here: dict[str, Any] = {"registry": self.registry}
        by = ["route", "status"]
        self.requests = Counter("realmlm_requests", "Requests by route and status.", by, **here)
        answering = "Seconds from request to answer."
        self.seconds = Histogram("realmlm_request_seconds", answering, ["route"], **here)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        together = "Requests that were answered together."
        self.batch = Histogram("realmlm_batch_size", together, buckets=sizes, **here)
        self.waited = Histogram("realmlm_queue_seconds", "Seconds that a batch waited.", **here)
        summed: dict[str, Any] = {"multiprocess_mode": "livesum", **here}
        self._waiting = Gauge("realmlm_waiting", "Requests waiting.", **summed)
        self._workers = Gauge("realmlm_workers", "Processes that answer.", **summed)
        self._passages = Gauge(
            "realmlm_passages", "Passages searched.", multiprocess_mode="mostrecent", **here
        )
        known = "1 if all changes in files or corpus have been loaded."
        self._up_to_date = Gauge("realmlm_up_to_date", known, multiprocess_mode="livemin", **here)
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}  # looked up once

    def on_request(self, route: str, status: int, seconds: float) -> None:
        """Note a request that has ended."""
        if (known := self._known.get((route, status))) is None:
            known = (self.requests.labels(route, status), self.seconds.labels(route))
            self._known[route, status] = known
        counter, clock = known
        counter.inc()
        clock.observe(seconds)

    def on_batch(self, size: int, waited: float, waiting: int) -> None:
        """Note the size of a batch, the seconds that it waited, and how many are waiting now."""
        self.batch.observe(size)
        self.waited.observe(waited)
        self._waiting.set(waiting)

    def ready(self) -> None:
        """From now on this process answers."""
        self._workers.set(1)

    def shown(self, *, waiting: int, passages: int, up_to_date: bool) -> bytes:
        """All of it for Prometheus, with how it stands at this moment."""
        self._waiting.set(waiting)
        self._passages.set(passages)
        self._up_to_date.set(up_to_date)
        registry = self.registry
        if folder := os.environ.get(SHARED_METERS):
            registry = CollectorRegistry()
            MultiProcessCollector(registry, folder)
        return generate_latest(registry)
