"""The fleet: the same seed gives the same fleet, identities come from names, and one device is slow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.model.errors import BadRequest
from paceline.sim import fleet


def test_the_speeds_are_the_published_ones() -> None:
    longhorn = [row.relative_time for row in fleet.speeds() if row.cluster == "longhorn"]
    lonestar = [row.relative_time for row in fleet.speeds() if row.cluster == "lonestar6"]
    assert (len(longhorn), len(lonestar)) == (392, 219)
    assert [value for value in longhorn if value >= fleet.OUTLIER_FROM] == [max(longhorn)] == [1.20069]
    assert sum(value > 2 for value in lonestar) == 6


@given(st.integers(1, 12), st.integers(1, 16), st.integers())
def test_a_fleet_has_one_outlier_and_not_in_the_first_slot(hosts: int, gpus: int, seed: int) -> None:
    names = fleet.host_names(hosts)
    built = fleet.devices(names, gpus, seed)
    paces = [device.pace for name in names for device in built[name]]
    assert len(paces) == hosts * gpus
    assert paces[0] < fleet.TYPICAL_BELOW
    assert sum(pace >= fleet.OUTLIER_FROM for pace in paces) == (1 if len(paces) > 1 else 0)
    assert all(pace < fleet.TYPICAL_BELOW or pace >= fleet.OUTLIER_FROM for pace in paces)


@given(st.integers(1, 6), st.integers(1, 16), st.integers())
def test_identities_are_unique_and_come_from_names_alone(hosts: int, gpus: int, seed: int) -> None:
    names = fleet.host_names(hosts)
    built = fleet.devices(names, gpus, seed)
    every = [device for name in names for device in built[name]]
    assert len({device.uuid for device in every}) == len({device.serial for device in every}) == len(every)
    assert all(len({device.pci_bus_id for device in built[name]}) == gpus for name in names)
    other = fleet.devices(names, gpus, seed + 1)
    assert [device.uuid for name in names for device in other[name]] == [device.uuid for device in every]


def test_the_seed_decides_the_speeds() -> None:
    names = fleet.host_names(3)
    assert fleet.devices(names, 8, seed=4) == fleet.devices(names, 8, seed=4)
    assert fleet.devices(names, 8, seed=4) != fleet.devices(names, 8, seed=5)


def test_an_impossible_fleet_is_refused() -> None:
    for hosts, gpus in (((), 8), (("a", "a"), 8), (("a",), 0), (("a",), 17)):
        with pytest.raises(BadRequest):
            fleet.devices(hosts, gpus)
