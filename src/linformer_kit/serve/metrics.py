"""What /metrics tells, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .scheduler import Scheduler, Unit

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        PlatformCollector(registry=registry)
        ProcessCollector(registry=registry)
        self.answers = Counter(
            "linformer_requests", "Answers by route and status.", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "linformer_request_seconds", "From the arrival of a request to the end of its answer.",
            ["route"], registry=registry, buckets=SECONDS,
        )  # fmt: skip
        self.accepted = Gauge(
            "linformer_requests_accepted", "Accepted and not answered yet.", registry=registry
        )
        self.waiting = Gauge(
            "linformer_queue_units", "Pieces and slices in the queue.", registry=registry
        )
        self.tokens_read = Counter(
            "linformer_tokens_read", "Tokens read by models.", ["model"], registry=registry
        )
        self.tokens_written = Counter(
            "linformer_tokens_written", "Tokens written by models.", ["model"], registry=registry
        )
        self.batch = Histogram(
            "linformer_batch_size", "Pieces in a batch.", registry=registry, buckets=SIZES
        )
        self.computing = Counter(
            "linformer_computing_seconds", "Time of the worker.", registry=registry
        )

    def saw(self, batch: Sequence[Unit], seconds: float) -> None:
        """By the worker, after each batch."""
        self.batch.observe(len(batch))
        self.computing.inc(seconds)

    def watch(self, scheduler: Scheduler) -> None:
        self.waiting.set_function(lambda: scheduler.waiting)

    def text(self) -> bytes:
        return generate_latest(self.registry)
