"""Laws of correlation, over any sightings."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from paceline.health.correlate import (
    BY_APPLICATION,
    BY_TEARDOWN,
    DERIVED,
    LOOK_BACK_NS,
    Correlation,
    Kind,
    Sighting,
    explain,
)
from paceline.model.ids import DeviceUuid, HostName, JobId

NOW = 10 * LOOK_BACK_NS
CODES = ["xid:13", "xid:31", "xid:45", "xid:74", "xid:79", "xid:95", "ecc.uncorrected", "link.down", "silent"]
SIGHTINGS = st.lists(
    st.builds(
        lambda uuid, domain, code, job, ago_s: Sighting(
            DeviceUuid(uuid), HostName(f"host{uuid}"), domain, code, JobId(job), NOW - ago_s * 10**9
        ),
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from(["", "leaf", "rack"]),
        st.sampled_from([*CODES, *sorted(DERIVED)]),
        st.sampled_from(["", "j", "k"]),
        st.sampled_from([0, 1, 59, 60, 61, 3600, 90_000]),
    ),
    max_size=25,
)


@given(SIGHTINGS, st.randoms(use_true_random=False))
def test_order_and_repetition_are_no_input(sightings: list[Sighting], random: Random) -> None:
    mixed = sightings * 2
    random.shuffle(mixed)
    assert explain(mixed, NOW) == explain(sightings, NOW)


@given(SIGHTINGS)
def test_only_what_a_program_can_cause_excuses_a_device(sightings: list[Sighting]) -> None:
    for one in explain(sightings, NOW):
        if one.kind is Kind.APPLICATION:
            assert int(one.code_or_rule.removeprefix("xid:")) in BY_APPLICATION
            assert len(one.uuids) >= 2


@given(SIGHTINGS)
def test_teardown_blames_no_device(sightings: list[Sighting]) -> None:
    blamed = {one.code_or_rule for one in explain(sightings, NOW) if one.kind is Kind.HARDWARE}
    assert not blamed & {f"xid:{code}" for code in BY_TEARDOWN}


@given(SIGHTINGS)
def test_a_correlation_names_only_devices_that_were_seen_with_it(sightings: list[Sighting]) -> None:
    for one in explain(sightings, NOW):
        with_it = {row.uuid for row in sightings if one.code_or_rule in ("", row.code_or_rule)}
        assert set(one.uuids) <= with_it
        assert list(one.uuids) == sorted(set(one.uuids) - {""})


@given(SIGHTINGS)
def test_what_a_correlation_says_is_no_sighting(sightings: list[Sighting]) -> None:
    """Fed back, it changes nothing: no rule keeps itself alive."""
    told = explain(sightings, NOW)
    fed = [
        Sighting(uuid, HostName("h"), domain, one.rule_id, JobId("j"), NOW)
        for one in told
        for uuid in one.uuids
        for domain in one.domains or ("",)
    ]
    assert explain([*sightings, *fed], NOW) == told


@given(SIGHTINGS, st.sets(st.sampled_from(["rack", "leaf", "feed"])))
def test_where_a_host_stands_neither_blames_nor_excuses_a_device(sightings: list[Sighting], places: set[str]) -> None:
    """A sighting for each domain of a host counts as one."""

    def of_devices(seen: list[Sighting]) -> list[Correlation]:
        return [one for one in explain(seen, NOW) if one.kind is not Kind.FABRIC]

    told = [replace(one, domain=place) for one in sightings for place in places or {""}]
    assert of_devices(told) == of_devices([replace(one, domain="") for one in sightings])


@given(SIGHTINGS)
def test_a_burst_is_one_correlation_however_many_domains_its_hosts_share(sightings: list[Sighting]) -> None:
    fabric = [one for one in explain(sightings, NOW) if one.kind is Kind.FABRIC]
    for one in fabric:
        assert len(one.hosts) >= 2
        assert list(one.hosts) == sorted(set(one.hosts))
        assert not any(set(one.hosts) <= set(other.hosts) for other in fabric if other is not one)
