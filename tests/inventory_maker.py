"""Says to an inventory what hosts, placement and runs would say, with a clock of its own."""

import time
from dataclasses import dataclass, field, replace

from paceline.inventory.store import Store
from paceline.model.events import Event, EventKind
from paceline.model.hardware import DeviceFacts, DeviceState, HostFacts, Sample, XidEvent
from paceline.model.health import Advice, Finding, NodeAdvice, NodeFinding, NodeReport
from paceline.model.ids import DeviceUuid, HostName, JobId, LeaseId, NodeId
from paceline.model.measurement import Measurement
from paceline.model.plan import LeaseView, Plan
from paceline.model.workload import AttemptProgress, CheckpointRecord, GangRequest, JobUpdate, RankPlace, RunState
from paceline.sdk.rows import AliveNode

SECOND_NS = 1_000_000_000
START_NS = 1_800_000_000 * SECOND_NS


def uuid(host: str, index: int) -> DeviceUuid:
    return DeviceUuid(f"GPU-{host}-{index}")


def facts(host: str, index: int, product: str = "NVIDIA H100 80GB HBM3") -> DeviceFacts:
    return DeviceFacts(
        uuid=uuid(host, index),
        index=index,
        serial=f"165{index:04}",
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        product=product,
        memory_bytes=80 << 30,
        power_cap_w=700.0,
        driver_version="580.95.05",
    )


def sample(host: str, index: int, at_ns: int, clock_mhz: int = 1980, busy_pct: int = 97) -> Sample:
    return Sample(
        uuid=uuid(host, index),
        at_ns=at_ns,
        sm_clock_mhz=clock_mhz,
        temperature_c=61,
        power_w=402.5,
        memory_used_bytes=60 << 30,
        utilisation_pct=busy_pct,
        ecc_corrected=0,
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        throttle_reasons=0,
        process_count=1,
    )


def xid_finding(host: str, index: int, code: int, at_ns: int, advice: Advice = Advice.QUARANTINE) -> Finding:
    return Finding("xid", 1, uuid(host, index), advice, at_ns, f"Xid {code}: GPU has fallen off the bus", {"xid": code})


def found(host: str, index: int, rule: str, advice: Advice, at_ns: int, **evidence: object) -> Finding:
    """A finding of any rule on a device."""
    return Finding(rule, 1, uuid(host, index), advice, at_ns, f"{rule} on {host}/{index}", dict(evidence))


def port_down(at_ns: int) -> NodeFinding:
    return NodeFinding("link.down", 1, NodeAdvice.CORDON, at_ns, "mlx5_0/1 is down", {"port": "mlx5_0/1"})


def ahead_ns() -> int:
    """Some minutes from now: a fleet that last spoke then does not fall silent behind a running server, however slow the machine is."""
    return time.time_ns() + 600 * SECOND_NS


@dataclass
class Fleet:
    store: Store
    now_ns: int = START_NS
    gpus: dict[str, int] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)

    def pass_s(self, seconds: float) -> int:
        self.now_ns += int(seconds * SECOND_NS)
        return self.now_ns

    def host(self, name: str, gpus: int) -> None:
        """A host joins and sends its first report."""
        self.gpus[name] = gpus
        self.store.report(self.report_of(name), self.now_ns)

    def report_of(self, name: str, node: str = "", **changes: object) -> NodeReport:
        node_id = NodeId(node or f"node-{name}")
        self.seqs[node_id] = self.seqs.get(node_id, 0) + 1
        made = NodeReport(
            node_id=node_id,
            boot="boot-1",
            seq=self.seqs[node_id],
            sent_ns=self.now_ns,
            host=HostFacts(HostName(name), "10.0.0.1", "b1", simulated=True),
            devices=tuple(facts(name, i) for i in range(self.gpus[name])),
            samples=tuple(sample(name, i, self.now_ns) for i in range(self.gpus[name])),
            xids=(),
            findings=(),
        )
        return replace(made, **changes)

    def say(self, name: str, node: str = "", **changes: object) -> bool:
        return self.store.report(self.report_of(name, node, **changes), self.now_ns)

    def alive(self, *names: str) -> None:
        """Ray calls the raylets of these hosts alive, and no others."""
        listed = [AliveNode(node_id=NodeId(f"node-{n}"), host_hint=n, address="10.0.0.1") for n in names]
        self.store.nodes_alive(listed, self.now_ns, self.now_ns)

    def measurement(self, host: str, index: int, seconds: float = 0.010, error: str = "") -> Measurement:
        repetitions = () if error else (seconds, seconds * 1.001, seconds * 0.999)
        return Measurement(uuid(host, index), "gemm", 1, self.now_ns, repetitions, not error, error)

    def measure(self, host: str, *seconds: float) -> None:
        """Probe all devices of a host; `seconds` by index, 10 ms for the rest."""
        times = [*seconds, *[0.010] * (self.gpus[host] - len(seconds))]
        self.store.measurements([self.measurement(host, i, s) for i, s in enumerate(times)], self.now_ns)

    def healthy(self, name: str, gpus: int) -> None:
        """A host whose devices are measured, equal and given to Ray."""
        self.host(name, gpus)
        self.measure(name)
        self.store.holds([], [uuid(name, i) for i in range(gpus)], self.now_ns)

    def fall(self, host: str, index: int, code: int = 79) -> None:
        """The device falls off the bus: the driver raises an Xid and NVML shows it no more."""
        event = XidEvent(uuid(host, index), code, self.now_ns, "nvml")
        left = tuple(facts(host, i) for i in range(self.gpus[host]) if i != index)
        self.say(host, devices=left, xids=(event,), findings=(xid_finding(host, index, code, self.now_ns),))

    def quarantined(self, host: str, index: int, code: int = 79) -> None:
        """The device falls, and placement has taken it out of Ray's hands."""
        self.fall(host, index, code)
        self.store.holds([uuid(host, index)], [], self.now_ns)

    def lease(self, job: str, attempt: int, *devices: DeviceUuid, run: str = "run", cause: int = 0) -> LeaseView:
        request = GangRequest(JobId(job), run, attempt, len(devices), 0.03)
        plan = Plan(self.store.revision(), devices, 0.01, 1.0, "the fastest equals")
        return self.store.create_lease(request, plan, self.now_ns)

    def attempt(self, lease: LeaseView, kind: str, step: int = 0, reason: str = "") -> None:
        places = {d.uuid: d for d in self.store.devices()}
        ranks = tuple(
            RankPlace(n, places[u].node_id, places[u].index, self.pid_of_rank(n)) for n, u in enumerate(lease.devices)
        )
        ranks = ranks if kind == "started" else ()
        attempt_id = lease.attempt_id
        progress = AttemptProgress(attempt_id, lease.lease_id, kind, self.now_ns, step, ranks, reason=reason)
        self.store.attempt(progress, self.now_ns)

    @staticmethod
    def pid_of_rank(rank: int) -> int:
        return 100 + rank

    def job(self, job: str, state: RunState, reason: str = "", run: str = "run") -> None:
        self.store.job_update(JobUpdate(JobId(job), run, state, self.now_ns, reason), self.now_ns)

    def checkpoint(self, lease: LeaseView, step: int, loss: float) -> None:
        record = CheckpointRecord(lease.attempt_id, f"ckpt-{step}", step, self.now_ns, {"loss": loss})
        self.store.checkpoint(record, self.now_ns)

    def ride_through_a_fault(self) -> LeaseView:
        """Two hosts, a run on four devices, an Xid 79 under rank 1, and the second attempt at work. Returns its lease."""
        self.healthy("ada", 8)
        self.healthy("bea", 8)
        self.job("job-1", RunState.RUNNING)
        first = self.lease("job-1", 1, *(uuid("ada", i) for i in range(4)))
        self.attempt(first, "started")
        self.attempt(first, "resumed", 0)
        for step in range(50, 250, 50):
            self.pass_s(2)
            self.checkpoint(first, step, 4.0 / (1 + step / 50))
            self.say("ada")
            self.say("bea")
        self.pass_s(1)
        self.fall("ada", 1)
        self.pass_s(1)
        self.attempt(first, "ended", reason="moved off a sick device")
        self.job("job-1", RunState.RECOVERING, "a device of the gang is sick")
        self.store.holds([uuid("ada", 1)], [], self.now_ns)
        second = self.lease("job-1", 2, *(uuid("ada", i) for i in (0, 2, 3, 4)))
        self.attempt(second, "started")
        self.pass_s(1)
        self.attempt(second, "resumed", 200)
        self.job("job-1", RunState.RUNNING)
        return second

    def state(self, host: str, index: int) -> DeviceState:
        return self.store.device(uuid(host, index)).state

    def events(self, kind: EventKind | None = None) -> list[Event]:
        return [e for e in self.store.events(limit=5000) if kind is None or e.kind is kind]

    def held_lease(self, lease_id: LeaseId) -> LeaseView | None:
        return next((x for x in self.store.fleet().leases if x.lease_id == lease_id), None)
