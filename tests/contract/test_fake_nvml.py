"""The simulated driver against the real clients: nvidia-ml-py unchanged, and the copy of pynvml that Ray brings along.

Each script runs in a process of its own: the library is found through LD_LIBRARY_PATH when the process starts.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.model.hardware import RecoveryAction
from paceline.model.ids import HostName
from paceline.sim import fleet
from paceline.sim.build import library
from paceline.sim.state import HostState
from waiting import until

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler")

GPU_IS_LOST = 15
HOST = HostName("host-0")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def host(tmp_path: Path) -> HostState:
    return HostState.create(tmp_path / "host.state", HOST, fleet.devices([HOST], 3, seed=2)[HOST])


class Client:
    """Runs scripts with pynvml on the simulated host. `nvml` names which pynvml."""

    def __init__(self, driver: Path, host: HostState, nvml: str = "pynvml") -> None:
        self.env = {**os.environ, "LD_LIBRARY_PATH": str(driver.parent), "PACELINE_SIM_STATE": str(host.path)}
        self.head = f"import json, os, sys\nimport {nvml} as n\n"

    def start(self, script: str, *args: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", self.head + script, *args],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *args: str) -> Any:
        process = self.start(script, *args)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return json.loads(out.splitlines()[-1])


@pytest.fixture(params=["pynvml", "ray._private.thirdparty.pynvml"])
def client(request: pytest.FixtureRequest, driver: Path, host: HostState) -> Client:
    return Client(driver, host, request.param)


@pytest.fixture
def official(driver: Path, host: HostState) -> Client:
    return Client(driver, host)


SWEEP = """
def text(value): return value.decode() if isinstance(value, bytes) else value
def key(device): return text(n.nvmlDeviceGetUUID(device))
def refusal(call):
    try: call()
    except n.NVMLError as e: return e.value
def look(h):
    pci, m = n.nvmlDeviceGetPciInfo(h), n.nvmlDeviceGetMemoryInfo(h)
    m2 = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
    uuid, serial, bus = key(h), text(n.nvmlDeviceGetSerial(h)), text(pci.busId)
    same = [n.nvmlDeviceGetHandleByUUID(uuid.encode()), n.nvmlDeviceGetHandleBySerial(serial.encode()),
            n.nvmlDeviceGetHandleByPciBusId(bus.encode()), n.nvmlDeviceGetHandleByPciBusId(bus[4:].lower().encode())]
    return {
        "name": text(n.nvmlDeviceGetName(h)), "uuid": uuid, "serial": serial, "same": [key(device) for device in same],
        "bus": bus, "legacy": text(pci.busIdLegacy),
        "index": n.nvmlDeviceGetIndex(h), "minor": n.nvmlDeviceGetMinorNumber(h),
        "memory": [m.total, m.used + m.free, m2.total, m2.used + m2.free + m2.reserved],
        "clocks": [n.nvmlDeviceGetClockInfo(h, t) for t in range(4)],
        "max": [n.nvmlDeviceGetMaxClockInfo(h, t) for t in range(4)],
        "temperature": n.nvmlDeviceGetTemperature(h, 0),
        "limits": [n.nvmlDeviceGetTemperatureThreshold(h, t) for t in range(4)],
        "power": n.nvmlDeviceGetPowerUsage(h), "energy": n.nvmlDeviceGetTotalEnergyConsumption(h),
        "cap": n.nvmlDeviceGetPowerManagementLimit(h), "enforced": n.nvmlDeviceGetEnforcedPowerLimit(h),
        "constraints": n.nvmlDeviceGetPowerManagementLimitConstraints(h),
        "ecc": [n.nvmlDeviceGetTotalEccErrors(h, t, c) for t in (0, 1) for c in (0, 1)],
        "ecc_mode": n.nvmlDeviceGetEccMode(h), "ecc_memory": n.nvmlDeviceGetMemoryErrorCounter(h, 1, 0, 2),
        "rows": n.nvmlDeviceGetRemappedRows(h), "reasons": n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
        "events": n.nvmlDeviceGetSupportedEventTypes(h), "pstate": n.nvmlDeviceGetPerformanceState(h),
        "processes": len(n.nvmlDeviceGetComputeRunningProcesses(h)),
        "graphics": len(n.nvmlDeviceGetGraphicsRunningProcesses(h)),
        "mig": n.nvmlDeviceGetMigMode(h), "mig_most": n.nvmlDeviceGetMaxMigDeviceCount(h),
        "pcie": [n.nvmlDeviceGetMaxPcieLinkGeneration(h), n.nvmlDeviceGetCurrPcieLinkWidth(h)],
        "throughput": n.nvmlDeviceGetPcieThroughput(h, 0), "utilisation": n.nvmlDeviceGetUtilizationRates(h).gpu,
        "capability": n.nvmlDeviceGetCudaComputeCapability(h),
        "refused": [
            refusal(lambda: n.nvmlDeviceGetFanSpeed(h)), refusal(lambda: n.nvmlDeviceGetNvLinkState(h, 0)),
            refusal(lambda: n.nvmlDeviceGetRetiredPages(h, 0)), refusal(lambda: n.nvmlDeviceGetVbiosVersion(h)),
        ],
    }
n.nvmlInit(); n.nvmlInit()
out = {"driver": text(n.nvmlSystemGetDriverVersion()), "nvml": text(n.nvmlSystemGetNVMLVersion()),
       "cuda": n.nvmlSystemGetCudaDriverVersion(), "count": n.nvmlDeviceGetCount()}
out["devices"] = [look(n.nvmlDeviceGetHandleByIndex(i)) for i in range(out["count"])]
n.nvmlShutdown()
out["still"] = n.nvmlDeviceGetCount()
n.nvmlShutdown()
out["after"] = refusal(n.nvmlDeviceGetCount)
print(json.dumps(out))
"""


def test_a_sweep_reads_what_the_host_was_built_with(client: Client, host: HostState) -> None:
    seen = client.run(SWEEP)
    assert (seen["count"], seen["still"], seen["after"], seen["cuda"]) == (3, 3, 1, 13000)
    for index, (row, spec) in enumerate(zip(seen["devices"], fleet.devices([HOST], 3, seed=2)[HOST], strict=True)):
        assert (row["name"], row["uuid"], row["serial"], row["bus"]) == (
            spec.product,
            spec.uuid,
            spec.serial,
            spec.pci_bus_id,
        )
        assert row["legacy"] == spec.pci_bus_id[4:]
        assert row["same"] == [spec.uuid] * 4
        assert (row["index"], row["minor"]) == (index, index)
        assert row["memory"] == [80 << 30] * 4
        assert (row["cap"], row["enforced"], row["constraints"]) == (700_000, 700_000, [200_000, 700_000])
        assert 60_000 < row["power"] < 80_000, "an idle H100 draws about 70 W"
        assert 20 <= row["temperature"] < min(row["limits"])
        assert (row["reasons"], row["utilisation"], row["processes"], row["graphics"]) == (1, 0, 0, 0)
        assert (row["mig"], row["mig_most"], row["ecc_mode"], row["capability"]) == ([0, 0], 0, [1, 1], [9, 0])
        assert (row["ecc"], row["ecc_memory"], row["rows"]) == ([0, 0, 0, 0], 0, [0, 0, 0, 0])
        assert row["refused"] == [3, 3, 3, 13]
        assert all(now <= most for now, most in zip(row["clocks"], row["max"], strict=True))
    assert all(host.device(slot).calls > 30 for slot in range(3))


def test_field_values_answer_one_by_one(official: Client, host: HostState) -> None:
    host.set(0, ecc_uncorrected=3, remap_pending=1, recovery_action=2, throttle_hw_thermal_ns=77, power_mw=123_000)
    script = """
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
ids = [4, 144, 145, 230, 270, 185, 186, 83, 194, (138, 0), 9999]
values = n.nvmlDeviceGetFieldValues(h, ids)
names = {0: "dVal", 1: "uiVal", 3: "ullVal", 5: "siVal"}
def read(v): return None if v.nvmlReturn else getattr(v.value, names[v.valueType])
print(json.dumps([[v.fieldId, v.nvmlReturn, read(v)] for v in values]))
"""
    seen = {field: (result, value) for field, result, value in official.run(script)}
    assert seen[4] == (0, 3)
    assert seen[144] == (0, 1)
    assert seen[145] == (0, 0)
    assert seen[230] == (0, 2)
    assert seen[270] == (0, 77)
    assert seen[185] == seen[186] == (0, 123_000)
    assert seen[194] == (0, -2)
    assert seen[138] == seen[9999] == (3, None)


def test_links_mig_and_throttled_time_are_as_they_were_set(client: Client, host: HostState) -> None:
    host.set(0, pcie_width=8, pcie_gen=3, pcie_gen_max=4)
    host.set(1, mig_mode=1)
    host.set(2, throttle_hw_thermal_ns=1000)
    host.throttle(2, "thermal")
    script = """
n.nvmlInit(); h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
def refusal(call):
    try: call()
    except n.NVMLError as e: return e.value
print(json.dumps({
  "pcie": [[n.nvmlDeviceGetCurrPcieLinkGeneration(d), n.nvmlDeviceGetMaxPcieLinkGeneration(d),
            n.nvmlDeviceGetCurrPcieLinkWidth(d), n.nvmlDeviceGetMaxPcieLinkWidth(d)] for d in h],
  "mig": n.nvmlDeviceGetMigMode(h[1]),
  "refused": [refusal(lambda: n.nvmlDeviceGetRemappedRows(h[1])), refusal(lambda: n.nvmlDeviceGetUtilizationRates(h[1]))],
  "rows": [v.nvmlReturn for v in n.nvmlDeviceGetFieldValues(h[1], [144, 145])],
  "throttled": [v.value.ullVal for _ in range(2) for v in n.nvmlDeviceGetFieldValues(h[2], [270, 271])],
}))
"""
    seen = client.run(script)
    assert seen["pcie"] == [[3, 4, 8, 16], [1, 5, 16, 16], [1, 5, 16, 16]]
    assert (seen["mig"], seen["refused"], seen["rows"]) == ([1, 1], [3, 3], [3, 3])
    first, brake, second, _ = seen["throttled"]
    assert 1000 < first < second
    assert brake == 0


def test_events_of_every_kind_reach_who_asked_for_them(official: Client, host: HostState, tmp_path: Path) -> None:
    script = """
n.nvmlInit(); es = n.nvmlEventSetCreate(); h = n.nvmlDeviceGetHandleByIndex(0)
wanted = n.nvmlEventTypeDoubleBitEccError | n.nvmlEventTypeGpuUnavailableError | n.nvmlEventTypeGpuRecoveryAction
n.nvmlDeviceRegisterEvents(h, wanted & n.nvmlDeviceGetSupportedEventTypes(h), es)
open(sys.argv[1], "w").close()
print(json.dumps([n.nvmlEventSetWait_v2(es, 20000).eventType for _ in range(3)]))
"""
    process = official.start(script, str(tmp_path / "ready"))
    until((tmp_path / "ready").exists, 30)
    host.inject_xid(0, 31)  # nobody asked for it
    for kind in (0x2, 0x4000):
        host.post_event(0, kind)
    host.set_recovery_action(0, RecoveryAction.GPU_RESET)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out) == [0x2, 0x4000, 0x8000]


def test_a_process_makes_its_device_busy_and_a_dead_one_does_not(client: Client, host: HostState) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=30)
    host.set_pace(1, 2.0)
    host.set_processes(1, [(os.getpid(), 5 << 30), (gone.pid, 1 << 30)])
    script = """
n.nvmlInit(); h, other = n.nvmlDeviceGetHandleByIndex(1), n.nvmlDeviceGetHandleByIndex(0)
print(json.dumps({"processes": [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
  "busy": n.nvmlDeviceGetUtilizationRates(h).gpu, "idle": n.nvmlDeviceGetUtilizationRates(other).gpu,
  "power": n.nvmlDeviceGetPowerUsage(h), "clock": n.nvmlDeviceGetClockInfo(h, 1),
  "used": n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used,
  "per_process": [[p.pid, p.smUtil > 0] for p in n.nvmlDeviceGetProcessesUtilizationInfo(h, 0)]}))
"""
    seen = client.run(script)
    assert seen["processes"] == [[os.getpid(), 5 << 30]]
    assert seen["used"] == 5 << 30
    assert seen["per_process"] == [[os.getpid(), True]]
    assert seen["busy"] > 90
    assert seen["power"] > 600_000
    assert seen["clock"] == 990
    assert seen["idle"] == 0


def test_rays_own_reporter_sees_names_load_and_processes(driver: Path, host: HostState) -> None:
    host.set_processes(2, [(os.getpid(), 1 << 30)])
    script = """
from ray.dashboard.modules.reporter.gpu_providers import NvidiaGpuProvider
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager as manager
p = NvidiaGpuProvider()
assert p.is_available()
rows = p.get_gpu_utilization()
columns = ["name", "uuid", "utilization_gpu", "processes_pids", "power_mw", "temperature_c"]
print(json.dumps({"count": manager.get_current_node_num_accelerators(),
  "type": manager.get_current_node_accelerator_type(),
  "rows": [[list(r[c]) if c == "processes_pids" else r[c] for c in columns] for r in rows]}))
"""
    seen = Client(driver, host, "json").run(script)
    assert (seen["count"], seen["type"]) == (3, "H100")
    assert [row[0] for row in seen["rows"]] == [fleet.PRODUCT] * 3
    assert [row[3] for row in seen["rows"]] == [[], [], [os.getpid()]]
    assert seen["rows"][2][2] > 90
    assert all(row[4] and row[5] for row in seen["rows"])


WAIT = """
n.nvmlInit()
es = n.nvmlEventSetCreate()
for i in range(n.nvmlDeviceGetCount()):
    n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(i), n.nvmlEventTypeXidCriticalError, es)
open(sys.argv[1], "w").close()
seen = []
while len(seen) < int(sys.argv[2]):
    e = n.nvmlEventSetWait_v2(es, 20000)
    try: who = n.nvmlDeviceGetUUID(e.device)
    except n.NVMLError as error: who = error.value
    seen.append([who, e.eventType, e.eventData])
try: n.nvmlEventSetWait_v2(es, 10)
except n.NVMLError as e: seen.append(e.value)
n.nvmlEventSetFree(es)
print(json.dumps(seen))
"""


def test_every_waiter_sees_each_xid_once_and_none_from_before(
    official: Client, host: HostState, tmp_path: Path
) -> None:
    host.inject_xid(0, 31)  # before anyone has registered: lost, as with the driver
    waiters = [official.start(WAIT, str(tmp_path / f"ready{number}"), "2") for number in range(2)]
    until(lambda: all((tmp_path / f"ready{number}").exists() for number in range(2)), 30)
    host.inject_xid(2, 48)
    host.inject_xid(1, 79)
    for waiter in waiters:
        out, err = waiter.communicate(timeout=60)
        assert waiter.returncode == 0, err
        events = json.loads(out)
        assert events[0] == [host.device(2).uuid.decode(), 8, 48]
        assert (events[1][1:], events[2]) == ([8, 79], 10)  # 10: nothing more, the wait timed out
    assert host.present() == (0, 2)


def test_a_device_that_falls_off_the_bus(client: Client, host: HostState, tmp_path: Path) -> None:
    script = """
n.nvmlInit(); old = n.nvmlDeviceGetHandleByIndex(1)
open(sys.argv[1], "w").close(); sys.stdin = open(sys.argv[2]); sys.stdin.read()
last = n.nvmlDeviceGetHandleByIndex(1)
out = {"count": n.nvmlDeviceGetCount(), "index_of_last": n.nvmlDeviceGetIndex(last)}
out["minor"] = n.nvmlDeviceGetMinorNumber(last)
calls = {"old": lambda: n.nvmlDeviceGetTemperature(old, 0), "third": lambda: n.nvmlDeviceGetHandleByIndex(2)}
for name, call in calls.items():
    try: call()
    except n.NVMLError as e: out[name] = e.value
print(json.dumps(out))
"""
    ready, go = tmp_path / "ready", tmp_path / "go"
    os.mkfifo(go)
    process = client.start(script, str(ready), str(go))
    until(ready.exists, 30)
    host.inject_xid(1, 79)
    go.write_text("now")
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out) == {"count": 2, "index_of_last": 1, "minor": 2, "old": GPU_IS_LOST, "third": 2}


def test_injected_errors_strike_where_they_were_put(client: Client, host: HostState) -> None:
    host.set_error(0, "*", GPU_IS_LOST)
    host.set_error(1, "nvmlDeviceGetTemperature", 999)
    script = """
n.nvmlInit(); out = []
def attempt(call):
    try: call(); out.append(0)
    except n.NVMLError as e: out.append(e.value)
attempt(lambda: n.nvmlDeviceGetHandleByIndex(0))
one = n.nvmlDeviceGetHandleByIndex(1)
attempt(lambda: n.nvmlDeviceGetTemperature(one, 0)); attempt(lambda: n.nvmlDeviceGetPowerUsage(one))
attempt(lambda: n.nvmlDeviceGetTemperature(n.nvmlDeviceGetHandleByIndex(2), 0))
print(json.dumps(out))
"""
    assert client.run(script) == [GPU_IS_LOST, 999, 0, 0]
    assert (host.fired(0), host.fired(1, "nvmlDeviceGetTemperature")) == (1, 1)
    host.clear_faults(0)
    host.set_error(1, "nvmlDeviceGetTemperature", 0)
    assert client.run(script) == [0, 0, 0, 0]


def test_a_host_fault_strikes_calls_without_a_device(official: Client, host: HostState) -> None:
    host.set_error(None, "nvmlInit", 9)
    script = "\ntry: n.nvmlInit(); print(0)\nexcept n.NVMLError as e: print(e.value)"
    assert official.run(script) == 9
    assert host.fired(None, "nvmlInit") == 1


def test_a_hang_lasts_until_it_is_cleared(official: Client, host: HostState, tmp_path: Path) -> None:
    host.set_hang(1, call="nvmlDeviceGetPowerUsage")
    script = """
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1)
print(json.dumps([n.nvmlDeviceGetTemperature(h, 0) > 0, n.nvmlDeviceGetPowerUsage(h) > 0]))
"""
    process = official.start(script)
    until(lambda: host.fired(1, "nvmlDeviceGetPowerUsage") == 1, 30)
    assert process.poll() is None, "it hangs"
    host.set_hang(1, 0, "nvmlDeviceGetPowerUsage")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err, json.loads(out)) == (0, "", [True, True])


def test_a_reader_never_sees_half_a_change(official: Client, host: HostState, tmp_path: Path) -> None:
    """Two fields are always written as a pair; a reader that mixed two writes would see them differ."""
    script = """
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); torn = 0; values = set()
open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[2]):
    a, b = [v.value.ullVal for v in n.nvmlDeviceGetFieldValues(h, [3, 271])]
    torn += a != b; values.add(a)
print(json.dumps([torn, len(values)]))
"""
    process = official.start(script, str(tmp_path / "ready"), str(tmp_path / "stop"))
    until((tmp_path / "ready").exists, 30)
    for number in range(3000):
        host.set(0, ecc_corrected=number, throttle_power_brake_ns=number)
    (tmp_path / "stop").touch()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    torn, distinct = json.loads(out)
    assert torn == 0
    assert distinct > 10, "the reader did see the changes"


def test_without_a_state_the_driver_is_not_loaded(driver: Path, host: HostState, tmp_path: Path) -> None:
    script = "\ntry: n.nvmlInit(); print(0)\nexcept n.NVMLError as e: print(json.dumps([e.value, str(e)]))"
    client = Client(driver, host)
    client.env["PACELINE_SIM_STATE"] = ""
    assert client.run(script) == [9, "Driver Not Loaded"]
    (tmp_path / "other").write_bytes(b"\0" * 1_000_000)
    client.env["PACELINE_SIM_STATE"] = str(tmp_path / "other")
    assert client.run(script)[0] == 18
