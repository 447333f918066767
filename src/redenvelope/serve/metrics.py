"""What the service counts, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

__all__ = ["Metrics", "escaped"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._slots: dict[str, list[int]] = {}
        self._sums: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter()
        self.batches = 0
        self.batched = 0

    def answered(self, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        with self._lock:
            self._requests[route, status] += 1
            slots = self._slots.setdefault(route, [0] * (len(_SECONDS) + 1))
            slots[bisect_left(_SECONDS, seconds)] += 1
            self._sums[route] += seconds  # type: ignore[assignment]

    def refused(self, code: str) -> None:
        """Something was refused."""
        with self._lock:
            self.refusals[code] += 1

    def text(self, gauges: Mapping[str, Iterable[tuple[str, float]]]) -> str:
        """All counters, and `gauges`: by name, labels and values."""
        with self._lock:
            lines = [
                *_head("http_requests_total", "counter", "Requests by route and status."),
                *(
                    f'redenvelope_http_requests_total{{route="{route}",status="{status}"}} {count}'
                    for (route, status), count in sorted(self._requests.items())
                ),
                *_head("http_seconds", "histogram", "Seconds until an answer."),
                *self._histograms(),
                *_head("refusals_total", "counter", "Refusals by code."),
                *(f'redenvelope_refusals_total{{code="{code}"}} {n}' for code, n in sorted(self.refusals.items())),
                *_head("decisions_total", "counter", "Decisions of this process by action."),
                *(
                    f'redenvelope_decisions_total{{action="{escaped(name)}"}} {n}'
                    for name, n in sorted(self.decisions.items())
                ),
                *_head("batches_total", "counter", "Groups of decisions that were planned together."),
                f"redenvelope_batches_total {self.batches}",
                *_head("batched_decisions_total", "counter", "Decisions in those groups."),
                f"redenvelope_batched_decisions_total {self.batched}",
            ]
        for name, rows in gauges.items():
            lines += _head(name, "gauge", name.replace("_", " ").capitalize() + ".")
            lines += [f"redenvelope_{name}{labels} {value:g}" for labels, value in rows]
        return "\n".join([*lines, ""])

    def _histograms(self) -> Iterable[str]:
        for route, slots in sorted(self._slots.items()):
            total = 0
            for edge, count in zip((*_SECONDS, "+Inf"), slots, strict=True):
                total += count
                yield f'redenvelope_http_seconds_bucket{{route="{route}",le="{edge}"}} {total}'
            yield f'redenvelope_http_seconds_sum{{route="{route}"}} {self._sums[route]:.6f}'
            yield f'redenvelope_http_seconds_count{{route="{route}"}} {total}'


def _head(name: str, kind: str, said: str) -> list[str]:
    return [f"# HELP redenvelope_{name} {said}", f"# TYPE redenvelope_{name} {kind}"]


def escaped(text: str) -> str:
    """A label's value as Prometheus reads it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
