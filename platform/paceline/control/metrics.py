"""Prometheus metrics. Gauges are read from the inventory at each scrape; only requests are counted in memory."""

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.inventory.store import Store
from paceline.model.hardware import DeviceState
from paceline.model.workload import RunState


class Metrics:
    """One registry an application, so that two in one process do not mix."""

    def __init__(self, store: Store, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "paceline_http_requests",
            "Requests by route and status",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.registry.register(_Inventory(store, clock_ns))

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Inventory(Collector):
    def __init__(self, store: Store, clock_ns: Callable[[], int]) -> None:
        self._store, self._clock_ns = store, clock_ns

    def describe(self) -> Iterator[Metric]:
        return iter(())  # the names are known without a look into the database

    def collect(self) -> Iterator[Metric]:
        counts = self._store.counts()
        yield _by_state("paceline_devices", "Devices by state", counts["devices"], [s.value for s in DeviceState])
        yield _by_state("paceline_jobs", "Runs by state", counts["jobs"], [s.value for s in RunState])
        snapshot = self._store.fleet()
        yield GaugeMetricFamily("paceline_leases", "Leases that are held", value=len(snapshot.leases))
        moving = sum(1 for lease in snapshot.leases if lease.moving_cause)
        yield GaugeMetricFamily("paceline_leases_moving", "Held leases that must be given up", value=moving)
        yield GaugeMetricFamily("paceline_revision", "Revision of the fleet snapshot", value=snapshot.revision)
        age = GaugeMetricFamily("paceline_report_age_seconds", "Age of a host's last report", labels=["host"])
        now_ns = self._clock_ns()
        for host in self._store.hosts():
            age.add_metric([host.host], max(0.0, (now_ns - host.reported_ns) / 1e9))
        yield age
        score = GaugeMetricFamily(
            "paceline_device_score", "Time relative to the cohort's median", labels=["host", "index", "uuid"]
        )
        for device in self._store.devices():
            if device.score is not None:
                score.add_metric([device.host, str(device.index), device.uuid], device.score)
        yield score


def _by_state(name: str, text: str, counts: dict[str, int], states: list[str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["state"])
    for state in states:
        family.add_metric([state], counts.get(state, 0))
    return family


class CountRequests:
    """ASGI middleware. The label is the route's pattern, never the path: ids must not become time series."""

    def __init__(self, app: ASGIApp, requests: Counter) -> None:
        self._app, self._requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            self._requests.labels(scope["method"], route, str(status)).inc()
