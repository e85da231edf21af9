"""Prometheus metrics. Gauges are read from the inventory at each scrape; only requests are counted in memory."""

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.inventory.store import HealthFigures, Store
from paceline.model.hardware import DeviceState
from paceline.model.workload import RunState
from paceline.sdk.rows_health import AlertKind


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
        figures = self._store.health_figures(now_ns)
        yield from _decisions(figures)
        yield from _alerts(figures)
        yield from _agents(figures)
        yield _links(figures)


def _decisions(figures: HealthFigures) -> Iterator[Metric]:
    states = GaugeMetricFamily("paceline_host_devices", "Devices by host and state", labels=["host", "state"])
    for (host, state), count in sorted(figures.states.items()):
        states.add_metric([host, state], count)
    yield states
    verdicts = CounterMetricFamily("paceline_verdicts", "Verdicts by rule and mode", labels=["rule", "mode"])
    labels = CounterMetricFamily(
        "paceline_verdict_labels", "Verdicts that somebody has looked at", labels=["rule", "mode", "label"]
    )
    for one in figures.verdicts:
        verdicts.add_metric([one.rule_id, one.mode.value], one.verdicts)
        labels.add_metric([one.rule_id, one.mode.value, "true"], one.labelled - one.labelled_false)
        labels.add_metric([one.rule_id, one.mode.value, "false"], one.labelled_false)
    yield verdicts
    yield labels
    held = "Decisions of the last ten minutes that the circuit breaker has held"
    yield GaugeMetricFamily("paceline_breaker_held", held, value=figures.held)


def _alerts(figures: HealthFigures) -> Iterator[Metric]:
    kept = GaugeMetricFamily("paceline_alerts", "Alerts of the last month by kind", labels=["kind"])
    for kind in AlertKind:
        kept.add_metric([kind.value], figures.alerts.get(kind.value, 0))
    yield kept
    waiting = GaugeMetricFamily("paceline_alerts_waiting", "Alerts that a target has still to take", labels=["target"])
    for target, count in sorted(figures.waiting.items()):
        waiting.add_metric([target], count)
    yield waiting


def _agents(figures: HealthFigures) -> Iterator[Metric]:
    """What watching costs. `process` is actor (the health actor) or reader (its child that talks to NVML)."""
    cpu = CounterMetricFamily("paceline_agent_cpu_seconds", "CPU time of a host's watch", labels=["host"])
    rss = GaugeMetricFamily("paceline_agent_rss_bytes", "Memory of a host's watch", labels=["host", "process"])
    wait = GaugeMetricFamily(
        "paceline_agent_nvml_seconds", "Time of one reading of all devices in NVML", labels=["host", "quantile"]
    )
    starts = CounterMetricFamily("paceline_agent_reader_starts", "Starts of the NVML reader", labels=["host"])
    for host, stats in figures.agents.items():
        cpu.add_metric([host], stats.cpu_s)
        rss.add_metric([host, "actor"], stats.rss_bytes)
        rss.add_metric([host, "reader"], stats.reader_rss_bytes)
        wait.add_metric([host, "0.5"], stats.nvml_p50_us / 1e6)
        wait.add_metric([host, "0.99"], stats.nvml_p99_us / 1e6)
        starts.add_metric([host], stats.reader_starts)
    yield from (cpu, rss, wait, starts)


def _links(figures: HealthFigures) -> Metric:
    up = GaugeMetricFamily("paceline_link_up", "1 while a port is up", labels=["host", "port", "kind"])
    for link in figures.links:
        up.add_metric([link.host, link.name, link.kind], link.up)
    return up


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
