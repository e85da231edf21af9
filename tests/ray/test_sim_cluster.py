"""A whole simulated cluster on real raylets: it comes up, comes back after a killed head and a killed host, and leaves
nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paceline.model.errors import Conflict, NotFound
from paceline.runtime.processes import MARK
from paceline.sim import cluster, fleet
from paceline.sim.dashboard import RayNode, get_json, ray_nodes
from waiting import until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler"),
]

ASK = """
import json, os, ray
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
@ray.remote(num_gpus=1, num_cpus=0)
def look():
    import pynvml
    from paceline.sim.pace import pace_of
    index = int(os.environ["CUDA_VISIBLE_DEVICES"])
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)), pace_of(index).factor]
print(json.dumps(ray.get([look.remote() for _ in range(int(os.environ["WANT"]))])))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    try:
        cluster.up(home, hosts=2, gpus=2, seed=3, env={"PACELINE_TEST": "yes"})
        yield home
    finally:
        cluster.down(home)


def nodes(home: Path) -> tuple[RayNode, ...]:
    info = cluster.info(home)
    return ray_nodes(info.dashboard_url, info.ray_token_path.read_text())


def alive_hosts(home: Path) -> dict[str, tuple[str, int]]:
    """Node id and GPUs of each host that Ray calls alive."""
    found = (node for node in nodes(home) if node.alive and "paceline.io/host" in node.labels)
    return {node.labels["paceline.io/host"]: (node.node_id, node.gpus) for node in found}


def leftovers(home: Path) -> list[psutil.Process]:
    """Processes of this cluster, by mark or by the temporary folder in their command line."""
    record = json.loads((home / "sim" / "cluster.json").read_text())
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK, "").startswith(record["mark"]) or record["temp_dir"] in " ".join(
                process.cmdline()
            )
        except psutil.Error:
            continue
        if ours:
            found.append(process)
    return found


def test_ray_counts_the_devices_itself(home: Path) -> None:
    assert {name: gpus for name, (_, gpus) in alive_hosts(home).items()} == {"host-0": 2, "host-1": 2}
    assert all(node.labels.get("ray.io/accelerator-type") == "H100" for node in nodes(home) if node.gpus)
    env = {**os.environ, **cluster.client_env(home), "WANT": "4"}
    out = subprocess.run(
        [sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=90, check=True
    ).stdout
    built = fleet.devices(fleet.host_names(2), 2, seed=3)
    specs = [device for host in built.values() for device in host]
    assert sorted(map(tuple, json.loads(out.splitlines()[-1]))) == sorted((spec.uuid, spec.pace) for spec in specs)


def test_the_dashboard_shows_every_device_by_name(home: Path) -> None:
    info = cluster.info(home)
    token = info.ray_token_path.read_text()

    def shown() -> set[tuple[str, str]]:
        rows = get_json(f"{info.dashboard_url}/nodes?view=summary", token)["data"]["summary"]
        return {(gpu["name"], gpu["uuid"]) for row in rows for gpu in row.get("gpus", [])}

    built = fleet.devices(fleet.host_names(2), 2, seed=3)
    want = {(device.product, device.uuid) for host in built.values() for device in host}
    assert until(lambda: shown() == want, 30, "the reporter agents have reported")
    assert oct(info.ray_token_path.stat().st_mode)[-3:] == "600"


def test_up_again_changes_nothing_and_another_size_is_refused(home: Path) -> None:
    before = (home / "sim" / "cluster.json").read_text()
    assert cluster.up(home, hosts=2, gpus=2).alive
    assert (home / "sim" / "cluster.json").read_text() == before
    with pytest.raises(Conflict, match="2 hosts with 2 GPUs"):
        cluster.up(home, hosts=1, gpus=2)


def test_a_killed_head_comes_back_to_the_same_hosts(home: Path) -> None:
    before, address = alive_hosts(home), cluster.info(home).address
    assert cluster.kill_head(home) > 3
    assert not cluster.info(home).head_alive
    assert all(host.alive for host in cluster.info(home).hosts)
    after = cluster.up(home, hosts=2, gpus=2)
    assert (after.alive, after.address) == (True, address)
    assert alive_hosts(home) == before, "the same raylets, with the ids they had"


def test_a_killed_host_comes_back_without_the_device_that_it_lost(home: Path) -> None:
    before = alive_hosts(home)
    assert cluster.kill_host(home, "host-1") > 0
    assert [host.alive for host in cluster.info(home).hosts] == [True, False]
    cluster.host_state(home, "host-1").lose(0)
    info = cluster.up(home, hosts=2, gpus=2)
    assert [(host.alive, host.present) for host in info.hosts] == [(True, 2), (True, 1)]
    after = alive_hosts(home)
    assert after["host-0"] == before["host-0"]
    assert after["host-1"][1] == 1
    assert after["host-1"][0] != before["host-1"][0]


def test_down_stops_everything_of_ours_and_nothing_else(home: Path) -> None:
    foreign = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", "ray raylet"], stdin=subprocess.PIPE
    )
    record = json.loads((home / "sim" / "cluster.json").read_text())
    try:
        ours = leftovers(home)
        assert len(ours) > 6
        assert cluster.down(home)
        assert not [process for process in ours if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        assert not Path(record["temp_dir"]).exists()
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait(timeout=10)
    assert not cluster.down(home), "there is nothing left to stop"
    with pytest.raises(NotFound):
        cluster.info(home)
