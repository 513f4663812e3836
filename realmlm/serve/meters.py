"""What `GET /metrics` shows."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


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
        self.waiting = Gauge("realmlm_waiting", "Requests waiting.", **here)
        self.passages = Gauge("realmlm_passages", "Passages searched.", **here)
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}  # looked up once

    def on_request(self, route: str, status: int, seconds: float) -> None:
        """Note a request that has ended."""
        if (known := self._known.get((route, status))) is None:
            known = (self.requests.labels(route, status), self.seconds.labels(route))
            self._known[route, status] = known
        counter, clock = known
        counter.inc()
        clock.observe(seconds)

    def on_batch(self, size: int, waited: float) -> None:
        """Note the size of a batch and the seconds that it waited."""
        self.batch.observe(size)
        self.waited.observe(waited)
