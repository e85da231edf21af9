"""Each correlation fires when it must and stays silent when it must not."""

import pytest

from paceline.health.catalog import load
from paceline.health.correlate import (
    BURST_NS,
    BY_APPLICATION,
    BY_TEARDOWN,
    DERIVED,
    FABRIC_RULES,
    LOOK_BACK_NS,
    OVER_NVLINK,
    SECOND_NS,
    SILENT,
    Correlation,
    Kind,
    Sighting,
    code_of,
    explain,
)
from paceline.health.rules import load as rules
from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid, HostName, JobId

NOW = 10 * LOOK_BACK_NS


def seen(uuid: str, code: str | int, job: str = "", ago_s: float = 10, host: str = "", domain: str = "") -> Sighting:
    """`code` is an Xid or a rule."""
    name = f"xid:{code}" if isinstance(code, int) else code
    at_ns = NOW - int(ago_s * SECOND_NS)
    return Sighting(DeviceUuid(uuid), HostName(host or f"host of {uuid}"), domain, name, JobId(job), at_ns)


def kinds(*sightings: Sighting) -> list[Kind]:
    return [one.kind for one in explain(sightings, NOW)]


@pytest.mark.parametrize("code", sorted(BY_APPLICATION))
def test_one_code_on_two_devices_of_a_job_is_the_application(code: int) -> None:
    (one,) = explain([seen("b", code, "job", 10), seen("a", code, "job", 50), seen("c", code, "other")], NOW)
    why = f"Xid {code} on 2 devices of job job within 60 s"
    assert one == Correlation(
        Kind.APPLICATION,
        "correlate.application",
        (DeviceUuid("a"), DeviceUuid("b")),
        why,
        f"xid:{code}",
        job_id="job",
    )


@pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 109, 119, 120, 140, "ecc.uncorrected", "remap.failed"])
def test_what_no_program_can_cause_is_never_explained_by_one(code: str | int) -> None:
    assert Kind.APPLICATION not in kinds(seen("a", code, "job"), seen("b", code, "job"), seen("c", code, "job"))


def test_the_codes_are_those_of_the_catalog() -> None:
    meanings = load().meanings
    users = {code for code, meaning in meanings.items() if meaning.fault_class == "user_app"}
    assert users | {94} == BY_APPLICATION
    assert {meanings[code].fault_class for code in OVER_NVLINK} == {"fabric"}
    assert BY_TEARDOWN <= BY_APPLICATION
    assert not BY_APPLICATION & OVER_NVLINK


def test_the_rules_are_those_of_the_register() -> None:
    assert {*FABRIC_RULES, *DERIVED} - {SILENT} <= rules().keys()


def test_one_device_or_two_jobs_or_two_bursts_are_no_application() -> None:
    assert kinds(seen("a", 31, "job", 10), seen("a", 31, "job", 20)) == []
    assert kinds(seen("a", 31, "job"), seen("b", 31, "other")) == []
    assert kinds(seen("a", 31), seen("b", 31)) == [], "no job had them"
    assert kinds(seen("a", 31, "job", 10), seen("b", 31, "job", 11 + BURST_NS / SECOND_NS)) == []
    assert kinds(seen("a", 13, "job"), seen("b", 31, "job")) == [], "two codes"


@pytest.mark.parametrize("fault", [79, 48, 119, 74, "ecc.uncorrected"])
def test_a_program_that_is_the_victim_of_a_device_is_not_to_blame(fault: str | int) -> None:
    """The device falls off, and its peers fault and are torn down."""
    assert kinds(seen("a", fault, "job", 12), seen("b", 31, "job"), seen("c", 31, "job")) == []
    assert kinds(seen("a", fault, "job", 3600), seen("b", 31, "job"), seen("c", 31, "job")) == [Kind.APPLICATION]
    assert kinds(seen("a", fault, "other", 12), seen("b", 31, "job"), seen("c", 31, "job")) == [Kind.APPLICATION]


@pytest.mark.parametrize("code", [13, 31, 94, 63, 79, "throttle.hardware"])
def test_one_device_in_two_jobs_is_the_hardware(code: str | int) -> None:
    (one,) = explain([seen("a", code, "monday", 7200), seen("a", code, "tuesday", 10), seen("b", 45, "monday")], NOW)
    assert (one.kind, one.uuids) == (Kind.HARDWARE, (DeviceUuid("a"),))
    assert "on this one device in 2 jobs" in one.why


@pytest.mark.parametrize("code", sorted(BY_TEARDOWN))
def test_the_end_of_processes_is_no_evidence(code: int) -> None:
    assert kinds(*(seen("a", code, f"job{n}", 100 * n) for n in range(50))) == []


def test_a_buggy_program_that_comes_again_is_not_the_hardware() -> None:
    """Submitted twice, on the same two devices each time."""
    again = [seen(uuid, 31, job, ago) for uuid in "ab" for job, ago in (("first", 7200), ("second", 10))]
    assert kinds(*again) == [Kind.APPLICATION, Kind.APPLICATION]
    late = [seen("a", 31, "first", 7200), seen("b", 31, "first", 3600), seen("a", 31, "second")]
    assert kinds(*late) == [], "in the first job the other device had it too"


def test_one_job_or_another_device_is_no_hardware() -> None:
    assert kinds(seen("a", 79, "job", 7200), seen("a", 79, "job", 10)) == []
    assert kinds(seen("a", 79, "monday"), seen("b", 79, "tuesday")) == []
    assert kinds(seen("a", 79), seen("a", 79, "job")) == []


@pytest.mark.parametrize("code", [*sorted(FABRIC_RULES), 74, 149])
def test_several_hosts_of_one_domain_are_the_fabric(code: str | int) -> None:
    (one,) = explain([seen("", code, host=host, domain="leaf-3") for host in ("ada", "bea", "cyd")], NOW)
    assert (one.kind, one.domains, one.rule_id) == (Kind.FABRIC, ("leaf-3",), "correlate.fabric")
    assert one.hosts == ("ada", "bea", "cyd")
    assert "on 3 hosts of leaf-3 (ada, bea, cyd)" in one.why


def test_silence_and_links_that_go_together_are_one_cause() -> None:
    (one,) = explain(
        [seen("", SILENT, host="ada", domain="pdu-1"), seen("", "link.down", host="bea", domain="pdu-1")], NOW
    )
    assert (one.code_or_rule, one.why.split(" on ")[0]) == ("", "link.down, silent")


def test_one_host_or_two_domains_or_two_bursts_are_no_fabric() -> None:
    assert kinds(seen("a", 74, host="ada", domain="r1"), seen("b", 74, host="ada", domain="r1")) == []
    assert kinds(seen("", SILENT, host="ada", domain="r1"), seen("", SILENT, host="bea", domain="r2")) == []
    assert kinds(seen("", SILENT, host="ada"), seen("", SILENT, host="bea")) == [], "no domain is known"
    assert kinds(seen("", SILENT, host="ada", domain="r1", ago_s=500), seen("", SILENT, host="bea", domain="r1")) == []
    assert kinds(seen("a", 79, host="ada", domain="r1"), seen("b", 79, host="bea", domain="r1")) == []


def test_the_widest_domain_is_named() -> None:
    """A power feed takes two racks: neither rack is to blame. Domains that explain as much are named together: they are one cause."""
    racks = [seen("", SILENT, host=host, domain=rack) for rack, hosts in (("r1", "ab"), ("r2", "cd")) for host in hosts]
    feed = [seen("", SILENT, host=host, domain=name) for name in ("pdu-1", "leaf-9") for host in "abcd"]
    assert [one.domains for one in explain(racks, NOW)] == [("r1",), ("r2",)]
    [wide] = explain(racks + feed, NOW)
    assert (wide.domains, wide.hosts) == (("leaf-9", "pdu-1"), tuple("abcd"))
    assert wide.why == "silent on 4 hosts of leaf-9, pdu-1 (a, b, c, d) within 60 s"


def test_findings_made_of_findings_are_no_sightings() -> None:
    assert kinds(*(seen("a", rule, job) for rule in DERIVED for job in ("monday", "tuesday"))) == []


def test_a_day_later_all_is_forgotten() -> None:
    old = LOOK_BACK_NS / SECOND_NS
    assert kinds(seen("a", 79, "monday", old), seen("a", 79, "tuesday")) == []


def test_an_xid_is_named_by_its_code_and_a_rule_by_its_id() -> None:
    def named(rule: str, **evidence: int) -> str:
        return code_of(Finding(rule, 1, DeviceUuid("a"), Advice.OBSERVE, 1, "s", dict(evidence)))

    assert named("xid", xid=79) == "xid:79"
    assert named("xid.repeated", xid=31) == "xid.repeated"
    assert named("ecc.uncorrected") == "ecc.uncorrected"
