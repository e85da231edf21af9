"""The page of health and the metrics, as a server gives them out: what they say, and that a dashboard finds what it names."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from inventory_maker import Fleet, ahead_ns, found, port_down, uuid
from paceline.control import auth
from paceline.control.app import create_app
from paceline.inventory.store import Store
from paceline.model.hardware import LinkSample
from paceline.model.health import Advice, AgentStats
from waiting import until

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "health.json"


class Cells(HTMLParser):
    """The links of the heat map, the headings of its rows, and anything that a strict policy would block."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: list[dict[str, str]] = []
        self.rows = self.inline = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.inline += "style" in found or any(name.startswith("on") for name in found)
        if tag == "th" and found.get("scope") == "row":
            self.rows += 1
        if tag == "a" and "cell" in found.get("class", "").split():
            self.cells.append(found)


@pytest.fixture
def site(sqlite_store: Store) -> Iterator[tuple[TestClient, Fleet]]:
    token = auth.issue_token(sqlite_store, "ada")
    with TestClient(create_app(sqlite_store), follow_redirects=False) as client:
        client.cookies.set(auth.COOKIE, token)
        until(lambda: sqlite_store.health_figures(0).waiting, 30, "the outbox knows the log")
        fleet = Fleet(sqlite_store, now_ns=ahead_ns())
        fleet.ride_through_a_fault()
        yield client, fleet


def test_the_heat_map_has_a_cell_for_each_device_that_says_what_it_is(site: tuple[TestClient, Fleet]) -> None:
    client, fleet = site
    fleet.measure("bea", 0.0106)
    fleet.store.cordon_device(uuid("bea", 2), "a test", "ada", fleet.now_ns)
    page = Cells(client.get("/health").text)
    assert (page.rows, len(page.cells), page.inline) == (2, 16, 0)
    by_device = {cell["href"].rsplit("/", 1)[1]: cell for cell in page.cells}
    sick = by_device[uuid("ada", 1)]
    assert "s-quarantined" in sick["class"]
    assert sick["aria-label"] == sick["title"]
    assert sick["title"].startswith("ada/1: QUARANTINED, Xid 79: GPU has fallen off the bus; score 1.000")
    slow = by_device[uuid("bea", 0)]
    assert "h2" in slow["class"].split()
    assert "score 1.060, 5.7% behind the fastest" in slow["title"]
    cordoned = by_device[uuid("bea", 2)]
    assert "cordoned" in cordoned["class"].split()
    assert "cordoned by ada: a test" in cordoned["title"]
    assert "at work for job-1/run/2" in by_device[uuid("ada", 0)]["title"]


def test_the_page_tells_of_verdicts_alerts_rules_and_the_breaker(site: tuple[TestClient, Fleet]) -> None:
    client, fleet = site
    assert "The circuit breaker holds" not in client.get("/health").text
    fleet.say("bea", findings=tuple(found("bea", i, "xid", Advice.QUARANTINE, fleet.now_ns) for i in range(8)))
    port = LinkSample("mlx5_0/1", "ib", fleet.now_ns, False, None, 3, None)
    fleet.say("ada", links=(port,), node_findings=(port_down(fleet.now_ns),))
    text = client.get("/health").text
    for words in ("<h2>Verdicts</h2>", "<h2>Alerts</h2>", "<h2>Rules</h2>", "Ports that are down", "mlx5_0/1"):
        assert words in text
    assert "rule link.down" in text


def test_an_empty_fleet_and_a_stranger_are_told_so(sqlite_store: Store) -> None:
    token = auth.issue_token(sqlite_store, "ada")
    with TestClient(create_app(sqlite_store), follow_redirects=False) as client:
        assert client.get("/health").headers["location"] == "/login?next=/health"
        client.cookies.set(auth.COOKIE, token)
        assert "No host has reported yet" in client.get("/health").text


def test_what_a_device_says_is_written_as_text(site: tuple[TestClient, Fleet]) -> None:
    client, fleet = site
    fleet.store.quarantine(uuid("bea", 1), '"><script>alert(1)</script>', "ada", fleet.now_ns)
    assert "<script>alert(1)" not in client.get("/health").text


def metrics(client: TestClient) -> str:
    return client.get("/metrics").text


def test_metrics_tell_states_verdicts_alerts_and_the_cost_of_the_watch(site: tuple[TestClient, Fleet]) -> None:
    client, fleet = site
    stats = AgentStats(12.5, 90 << 20, 40 << 20, 900, 2500, 2, "read")
    port = LinkSample("mlx5_0/1", "ib", fleet.now_ns, False, None, 3, None)
    fleet.say("ada", agent=stats, links=(port,))
    [verdict] = fleet.store.verdicts(rule_id="xid")
    fleet.store.label(verdict.id, False, "ada", fleet.now_ns)
    text = metrics(client)
    for line in (
        'paceline_host_devices{host="ada",state="QUARANTINED"} 1.0',
        'paceline_verdicts_total{mode="enforce",rule="xid"} 1.0',
        'paceline_verdict_labels_total{label="false",mode="enforce",rule="xid"} 1.0',
        "paceline_breaker_held 0.0",
        'paceline_alerts{kind="quarantine"} 1.0',
        'paceline_alerts_waiting{target="log"} ',
        'paceline_agent_cpu_seconds_total{host="ada"} 12.5',
        'paceline_agent_rss_bytes{host="ada",process="reader"}',
        'paceline_agent_nvml_seconds{host="ada",quantile="0.99"} 0.0025',
        'paceline_agent_reader_starts_total{host="ada"} 2.0',
        'paceline_link_up{host="ada",kind="ib",port="mlx5_0/1"} 0.0',
    ):
        assert line in text or line in text.replace('rule="xid",mode="enforce"', 'mode="enforce",rule="xid"'), line


def test_the_dashboard_names_metrics_and_labels_that_are_there(site: tuple[TestClient, Fleet]) -> None:
    client, fleet = site
    stats = AgentStats(1.0, 1, 1, 1, 1, 1, "read")
    fleet.say("ada", agent=stats, links=(LinkSample("eth0", "ethernet", fleet.now_ns, True, 100.0, 0, 0),))
    known: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(paceline_\w+?)(?:\{(.*)\})? ", metrics(client), re.MULTILINE):
        known.setdefault(name, set()).update(re.findall(r"(\w+)=\"", labels))
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) >= 15
    for expression in asked:
        names = re.findall(r"paceline_\w+", expression)
        assert names
        for name in names:
            assert name in known, f"{name} of {expression} is no metric"
        labels = {
            label for inside in re.findall(r"\{(.*?)\}", expression) for label in re.findall(r"(\w+)[=!]", inside)
        }
        labels |= {x.strip() for by in re.findall(r"by \((.*?)\)", expression) for x in by.split(",")}
        assert labels <= set.union(*(known[name] for name in names)), expression
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
