"""The few things an operator does by hand. Each needs a reason, and is kept in the history with the name of his token."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from paceline.cli.options import DEADLINE_S, AddressOption, DeviceName, HostName, PlaceName, ReasonOption
from paceline.model.health import RepairAction
from paceline.sdk import words
from paceline.sdk.client import Client
from paceline.sdk.rows import DeviceRow, HostRow


class Action(StrEnum):
    """The repair ladder, as it is typed."""

    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    REPLACE = "replace"


assert [action.name for action in Action] == [action.name for action in RepairAction], "each step can be typed"


class Answer(StrEnum):
    TRUE = "true"
    FALSE = "false"


@contextmanager
def _device(address: str | None, name: str) -> Iterator[tuple[Client, DeviceRow]]:
    """A client, and the device that is called `name`."""
    with Client(address, deadline_s=DEADLINE_S) as client:
        yield client, words.find_device(client.devices(), name)


def _say_device(row: DeviceRow) -> None:
    print(f"{words.place(row)} is {row.state}: {row.reason}")


def _say_host(row: HostRow) -> None:
    print(f"{row.host} is {row.state}: {row.reason}")


def quarantine(device: DeviceName, reason: ReasonOption, address: AddressOption = None) -> None:
    """Take a device out of service. Work on it is moved elsewhere."""
    with _device(address, device) as (client, found):
        row = client.quarantine(found.uuid, reason)
    _say_device(row)
    print(f"Next: paceline story device {row.uuid} · paceline release {words.place(row)} --reason …")


def release(device: DeviceName, reason: ReasonOption, address: AddressOption = None) -> None:
    """Let a quarantined device prove itself again. It goes to work after clean probes, not at once."""
    with _device(address, device) as (client, found):
        _say_device(client.release(found.uuid, reason))


def retire(device: DeviceName, reason: ReasonOption, address: AddressOption = None) -> None:
    """Take a device out of the fleet for good."""
    with _device(address, device) as (client, found):
        _say_device(client.retire(found.uuid, reason))


def cordon(name: PlaceName, reason: ReasonOption, address: AddressOption = None) -> None:
    """Keep a node or a device from new work. The work on it goes on."""
    with Client(address, deadline_s=DEADLINE_S) as client:
        if words.is_host(client.hosts(), name):
            _say_host(client.cordon(name, reason))
            return
        row = client.cordon_device(words.find_device(client.devices(), name).uuid, reason)
    print(f"{words.place(row)} is {row.state}, and cordoned: {row.cordon_reason}")


def uncordon(name: PlaceName, reason: ReasonOption, address: AddressOption = None) -> None:
    """Give a cordoned or drained node, or a cordoned device, back to work."""
    with Client(address, deadline_s=DEADLINE_S) as client:
        if words.is_host(client.hosts(), name):
            _say_host(client.uncordon(name, reason))
            return
        _say_device(client.uncordon_device(words.find_device(client.devices(), name).uuid, reason))


def drain(
    node: HostName,
    reason: ReasonOption,
    deadline: Annotated[
        str, typer.Option(metavar="TIME", help="until when work must have moved: 90s, 10m, 2h")
    ] = "10m",
    address: AddressOption = None,
) -> None:
    """Cordon a node and move the work on it elsewhere."""
    with Client(address, deadline_s=DEADLINE_S) as client:
        row = client.drain(words.find_host(client.hosts(), node).host, words.seconds(deadline), reason)
    _say_host(row)
    if row.leased:
        print(f"{row.leased} devices of it are leased; their work must move within {deadline}")
    print(f"Next: paceline describe host {row.host} · paceline uncordon {row.host} --reason …")


def probe(node: HostName, reason: ReasonOption, address: AddressOption = None) -> None:
    """Have the sound devices of a node exchange data and add up together, once they are idle."""
    with Client(address, deadline_s=DEADLINE_S) as client:
        row = client.probe(words.find_host(client.hosts(), node).host, reason)
    idle = (
        "its sound devices are idle: it begins now" if not row.leased else f"it waits for {row.leased} leased devices"
    )
    print(f"full probe of {row.host}: {idle}")
    print(f"Next: paceline describe host {row.host}")


def repair(
    device: DeviceName,
    reason: ReasonOption,
    action: Annotated[Action | None, typer.Option(help="default: the step that is advised")] = None,
    address: AddressOption = None,
) -> None:
    """Begin a repair of a quarantined device: the next step of the ladder, or one that you choose."""
    with _device(address, device) as (client, found):
        row = client.repair(found.uuid, RepairAction[action.name] if action else None, reason)
    _say_device(row)
    print(f"Next: do it, then paceline repair-done {words.place(row)} --ok|--failed --reason …")


def repair_done(
    device: DeviceName,
    reason: ReasonOption,
    ok: Annotated[bool, typer.Option("--ok/--failed", help="whether the repair did what it should")],
    address: AddressOption = None,
) -> None:
    """End a repair. Repaired, the device proves itself by probes; else it stays out, and the next step is due."""
    with _device(address, device) as (client, found):
        row = client.repair_done(found.uuid, ok, reason)
        advice = client.device_health(found.uuid).advice
    _say_device(row)
    if advice is not None:
        print(f"Next: {advice.action.name.lower()}: {advice.reason}")


def label(
    verdict: Annotated[int, typer.Argument(min=1, help="number of a verdict: paceline get verdicts")],
    right: Annotated[Answer, typer.Argument(metavar="true|false", help="whether the verdict was right")],
    address: AddressOption = None,
) -> None:
    """Say whether a verdict was right. The false-positive rate of its rule follows from it."""
    with Client(address, deadline_s=DEADLINE_S) as client:
        row = client.label(verdict, right is Answer.TRUE)
        rule = next(rule for rule in client.rules() if rule.rule_id == row.rule_id)
    print(f"verdict {row.id} of {row.rule_id} was {'right' if row.label else 'wrong'}")
    print(f"{rule.labelled_false} of {rule.labelled} labelled verdicts of {rule.rule_id} were wrong")


def add_to(app: typer.Typer) -> None:
    for command in (quarantine, release, retire, cordon, uncordon, drain, probe, repair, repair_done, label):
        app.command()(command)
