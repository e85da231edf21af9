import socket
from pathlib import Path

from paceline.sim.fleet import identify
from paceline.sim.state import HostState
from paceline.telemetry.host import BOOT_ID, host_facts


def test_a_real_machine() -> None:
    facts = host_facts("10.0.0.1", {})
    assert (facts.host, facts.address, facts.simulated) == (socket.gethostname(), "10.0.0.1", False)
    assert facts.boot_id == BOOT_ID.read_text().strip()


def test_a_simulated_host_has_the_name_in_its_state_file(tmp_path: Path) -> None:
    name = HostState.create(tmp_path / "state", "gpu-a", [identify("c", "gpu-a", 0)]).host
    facts = host_facts("127.0.0.1", {"PACELINE_SIM_STATE": str(tmp_path / "state")})
    assert (facts.host, facts.simulated) == (name, True)


def test_a_name_may_be_given() -> None:
    assert host_facts("127.0.0.1", {"PACELINE_HOST_NAME": "gpu-7"}).host == "gpu-7"
