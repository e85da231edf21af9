"""How a device is drawn on the heat map."""

import itertools

from paceline.control import heat
from paceline.model.hardware import DeviceState


def test_slower_is_paler_and_unmeasured_is_neither() -> None:
    assert [heat.shade(score) for score in (0.97, 1.0, 1.01, 1.05, 1.1, 1.5)] == ["h0", "h0", "h1", "h2", "h3", "h4"]
    assert heat.shade(None) == "hx"
    limits = [limit for limit, _, _ in heat.SHADES]
    assert all(a < b for a, b in itertools.pairwise(limits))


def test_every_state_has_a_letter_of_its_own_kind() -> None:
    letters = {state: heat.initial(state) for state in DeviceState}
    waiting = {DeviceState.NEW, DeviceState.PROBING, DeviceState.PROBATION}
    assert {letters[state] for state in waiting} == {"P"}
    assert letters[DeviceState.REPAIR] == letters[DeviceState.RETIRED] == "R", "a retired device is not drawn"
    drawn = [letters[s] for s in DeviceState if s not in waiting | {DeviceState.RETIRED}]
    assert len(drawn) == len(set(drawn))
