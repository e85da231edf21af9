"""`paceline sim`: a Ray cluster of simulated GPU hosts on this machine, and faults to throw at it."""

import math
import os
import shlex
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from paceline.model.errors import BadRequest, HostSetup
from paceline.model.hardware import RecoveryAction

if TYPE_CHECKING:
    from paceline.sim.cluster import ClusterInfo
    from paceline.sim.layout import Device
    from paceline.sim.state import HostState

WIDTH = 100

app = typer.Typer(no_args_is_help=True, help="A Ray cluster of simulated GPU hosts, and faults to throw at it.")
console = Console(width=WIDTH, highlight=False)
chatter = Console(stderr=True)

HostArgument = Annotated[str, typer.Argument(help="name of the host, e.g. host-1")]
GpuArgument = Annotated[int, typer.Argument(help="slot of the device on its host, from 0: the index that Ray gave it")]
CallOption = Annotated[str, typer.Option(help="one NVML call by pynvml's name, or * for all")]
EnvOption = Annotated[list[str] | None, typer.Option(help="NAME=VALUE for every Ray process; may be repeated")]


@app.command()
def up(
    hosts: Annotated[int, typer.Option(min=1, max=32, help="simulated hosts, a raylet each")] = 3,
    gpus: Annotated[int, typer.Option(min=1, max=16, help="devices on each host")] = 8,
    seed: Annotated[int, typer.Option(help="which real GPUs lend their speeds")] = 0,
    step_s: Annotated[float, typer.Option(help="step time of the median device in paced training, seconds")] = 0.05,
    env: EnvOption = None,
    timeout_s: Annotated[float, typer.Option(help="longest wait, seconds")] = 180.0,
) -> None:
    """Start the cluster, or what is missing of it. A dead head comes back with its state; the hosts reconnect."""
    cluster = _cluster()
    with chatter.status("starting") as status:
        info = cluster.up(
            _home(),
            hosts,
            gpus,
            seed=seed,
            nominal_step_s=step_s,
            env=_pairs(env or []),
            progress=status.update,
            deadline_s=timeout_s,
        )
    _show(info)
    console.print(
        'Next: [bold]paceline up[/] joins it · [bold]eval "$(paceline sim env)"[/] for ray job submit'
        " · paceline sim down"
    )


@app.command()
def down() -> None:
    """Stop exactly what `sim up` started, and remove its temporary files. The logs stay."""
    with chatter.status("stopping"):
        stopped = _cluster().down(_home())
    console.print("The simulated cluster is down" if stopped else "There was no simulated cluster")


@app.command()
def status() -> None:
    """Show the hosts, their devices, and the speed and faults of each."""
    info = _cluster().info(_home())
    _show(info)
    for host in info.hosts:
        _show_devices(_state(host.name))


@app.command()
def env() -> None:
    """Print the lines that let this shell reach the cluster: eval "$(paceline sim env)"."""
    for name, value in sorted(_cluster().client_env(_home()).items()):
        print(f"export {name}={shlex.quote(value)}")


@app.command()
def xid(
    host: HostArgument,
    gpu: GpuArgument,
    code: Annotated[int, typer.Argument(min=1, help="e.g. 48, 63, 79 (falls off the bus), 94")],
    event_only: Annotated[bool, typer.Option(help="leave the device's counters as they are")] = False,
) -> None:
    """Raise an Xid on a device: the driver's event, and what its counters show after it."""
    state = _state(host)
    state.inject_xid(gpu, code, consequences=not event_only)
    gone = "; it has fallen off the bus" if gpu not in state.present() else ""
    _done(state, gpu, f"Xid {code}{gone}")


@app.command()
def pace(
    host: HostArgument,
    gpu: GpuArgument,
    factor: Annotated[float, typer.Argument(help="1 is the median, 2 is half as fast")],
) -> None:
    """Change how fast a device is; training on it feels it from the next step."""
    state = _state(host)
    state.set_pace(gpu, factor)
    _done(state, gpu, f"takes {factor:g} times as long as the median device")


@app.command()
def links(
    host: HostArgument,
    factor: Annotated[float, typer.Argument(help="1 is a sound machine, 2 takes twice as long")],
) -> None:
    """Change how fast the devices of a host exchange data; the next full probe of it tells."""
    _state(host).set_link_pace(factor)
    print(f"{host}: exchanges between its devices take {factor:g} times as long as on a sound machine")


@app.command()
def hang(
    host: HostArgument,
    gpu: GpuArgument,
    seconds: Annotated[float, typer.Option(help="0 ends it; inf: until ended")] = math.inf,
    call: CallOption = "*",
) -> None:
    """Make NVML hang on a device, as on a sick GPU."""
    state = _state(host)
    state.set_hang(gpu, seconds, call)
    _done(state, gpu, f"{call} hangs for {seconds:g} s" if seconds > 0 else f"{call} answers again")


@app.command()
def error(
    host: HostArgument,
    gpu: GpuArgument,
    nvml_error: Annotated[
        int, typer.Option("--code", help="NVML error, e.g. 15 GPU is lost, 999 unknown; 0 ends it")
    ] = 15,
    call: CallOption = "*",
    clear: Annotated[bool, typer.Option("--clear", help="end every error and hang of the device")] = False,
) -> None:
    """Make NVML answer with an error on a device."""
    state = _state(host)
    if clear:
        state.clear_faults(gpu)
        _done(state, gpu, "no faults any more")
        return
    state.set_error(gpu, call, nvml_error)
    _done(state, gpu, f"{call} answers with NVML error {nvml_error}" if nvml_error else f"{call} answers again")


@app.command()
def throttle(
    host: HostArgument,
    gpu: GpuArgument,
    reason: Annotated[str, typer.Argument(help="thermal, power-brake, power-cap (no fault), or none: ends it")],
) -> None:
    """Hold the clocks of a device down, as heat or the power brake does."""
    state = _state(host)
    state.throttle(gpu, None if reason == "none" else reason)
    _done(state, gpu, f"throttled: {reason}")


@app.command("set")
def set_reading(
    host: HostArgument,
    gpu: GpuArgument,
    readings: Annotated[
        list[str],
        typer.Argument(help="NAME=NUMBER, e.g. ecc_uncorrected=1 remap_pending=1 remap_failed=1 pcie_width=8"),
    ],
) -> None:
    """Set what the counters of a device show, without an event: errors, remapped rows, PCIe link."""
    state = _state(host)
    pairs = _pairs(readings)
    state.set(gpu, **{name: _number(name, value) for name, value in pairs.items()})
    _done(state, gpu, ", ".join(f"{name} is {value}" for name, value in pairs.items()))


@app.command()
def recovery(
    host: HostArgument,
    gpu: GpuArgument,
    action: Annotated[str, typer.Argument(help="gpu-reset, node-reboot, drain-p2p, drain-and-reset, none …")],
) -> None:
    """Let the driver ask for a recovery action, with its event."""
    state = _state(host)
    name = action.upper().replace("-", "_")
    if name not in RecoveryAction.__members__:
        known = ", ".join(one.name.lower().replace("_", "-") for one in RecoveryAction)
        raise BadRequest("PL-REQ-023", f"No such recovery action: {action}", f"One of: {known}")
    state.set_recovery_action(gpu, RecoveryAction[name])
    _done(state, gpu, f"the driver asks for {action}")


@app.command()
def kmsg(
    host: HostArgument, line: Annotated[str, typer.Argument(help="e.g. 'NVRM: Xid (PCI:0000:1b:00): 79, …'")]
) -> None:
    """Write a line into the kernel log of a host."""
    state = _state(host)
    state.write_kmsg(line)
    console.print(f"{state.host}: written into its kernel log", soft_wrap=True)


@app.command()
def lose(host: HostArgument, gpu: GpuArgument) -> None:
    """Take a device off the bus without a word."""
    state = _state(host)
    state.lose(gpu)
    _done(state, gpu, "has fallen off the bus")


@app.command()
def restore(host: HostArgument, gpu: GpuArgument) -> None:
    """Put a device back as after a repair: on the bus, without faults, counters at zero."""
    state = _state(host)
    state.restore(gpu)
    _done(state, gpu, "is back, without faults")


@app.command("kill-head")
def kill_head() -> None:
    """Kill the head at once, GCS and dashboard with it. `sim up` brings it back."""
    console.print(f"Killed the head: {_cluster().kill_head(_home())} processes. Bring it back: paceline sim up")


@app.command("kill-host")
def kill_host(host: HostArgument) -> None:
    """Kill one host at once, as if it had lost power. `sim up` brings it back."""
    console.print(f"Killed {host}: {_cluster().kill_host(_home(), host)} processes. Bring it back: paceline sim up")


def _cluster() -> ModuleType:
    """paceline.sim.cluster, which needs more than the client's packages."""
    try:
        from paceline.sim import cluster
    except ImportError as missing:
        hint = "pip install 'paceline[cluster]'"
        raise HostSetup("PL-HOST-005", f"This machine has only Paceline's client: {missing}", hint) from missing
    return cluster


def _home() -> Path:
    return Path(os.environ.get("PACELINE_HOME") or "~/.paceline").expanduser()


def _state(host: str) -> "HostState":
    state: HostState = _cluster().host_state(_home(), host)
    return state


def _number(name: str, value: str) -> int:
    try:
        return int(value, 0)
    except ValueError:
        raise BadRequest("PL-REQ-023", f"{name} wants a whole number, not {value!r}") from None


def _pairs(items: list[str]) -> dict[str, str]:
    wrong = [item for item in items if "=" not in item]
    if wrong:
        raise BadRequest("PL-REQ-023", f"Not NAME=VALUE: {wrong[0]}", "e.g. OMP_NUM_THREADS=2")
    return dict(item.split("=", 1) for item in items)


def _done(state: "HostState", gpu: int, what: str) -> None:
    console.print(f"{state.host} gpu {gpu} ({state.device(gpu).uuid.decode()}): {what}", soft_wrap=True)


def _show(info: "ClusterInfo") -> None:
    table = Table(width=WIDTH, title="Simulated cluster", title_justify="left")
    for column in ("node", "state", "GPUs"):
        table.add_column(column)
    table.add_column("logs", overflow="fold", ratio=1)
    table.add_row("head", _word(info.head_alive), "0", str(info.logs / "ray-head.log"))
    for host in info.hosts:
        lost = f" ({host.gpus - host.present} lost)" if host.present < host.gpus else ""
        table.add_row(host.name, _word(host.alive), f"{host.present}{lost}", str(info.logs / f"ray-{host.name}.log"))
    console.print(table)
    console.print(
        f"Ray address {info.address} · dashboard {info.dashboard_url} (token in {info.ray_token_path})", soft_wrap=True
    )


def _word(alive: bool) -> str:
    return "[green]runs[/]" if alive else "[red]dead[/]"


def _show_devices(state: "HostState") -> None:
    table = Table(width=WIDTH, title=f"{state.host}: {len(state.present())} devices on the bus", title_justify="left")
    for column in ("gpu", "uuid", "pace", "bus"):
        table.add_column(column, justify="right" if column in {"gpu", "pace"} else "left", no_wrap=True)
    table.add_column("faults", ratio=1)
    for slot in range(state.device_count):
        device = state.device(slot)
        bus = device.pci_bus_id.decode() if device.present else "[red]lost[/]"
        table.add_row(str(slot), device.uuid.decode(), f"{device.pace:.3f}", bus, _faults(device))
    console.print(table)


def _faults(device: "Device") -> str:
    words = []
    for fault in device.faults:
        if fault.error:
            words.append(f"{fault.call.decode()}: error {fault.error}")
        if fault.hang_until_ns > time.time_ns():
            words.append(f"{fault.call.decode()}: hangs")
    return ", ".join(words)
