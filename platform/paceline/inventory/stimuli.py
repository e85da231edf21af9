"""What has happened to each device, so that its state can be computed again: `health.machine` folded over these rows."""

from typing import Any, Final, get_args

from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from paceline.health import machine
from paceline.inventory.tables import StimulusRow
from paceline.inventory.unit import Unit
from paceline.model.hardware import DeviceState
from paceline.model.ids import DeviceUuid

_KINDS: Final[dict[str, TypeAdapter[Any]]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(machine.Stimulus)}
_KNOWN: Final = "Known"
"""Not a stimulus: the state of a device that lived before stimuli were kept. The fold begins there."""
_DEVICE: Final = TypeAdapter(machine.Device)


def keep(unit: Unit, before: machine.Device, stimulus: machine.Stimulus, event: int) -> None:
    """A stimulus that changed `before`. What changes nothing is not kept: the fold is the same without it."""
    if before.state is not DeviceState.NEW and not _any(unit, before):
        _add(unit, before, _KNOWN, _DEVICE.dump_python(before, mode="json"), 0)
    _add(unit, before, type(stimulus).__name__, _body(stimulus), event)


def fold(session: Session, uuid: str, first_seen_ns: int) -> machine.Device:
    """The device as its stimuli, from the first to the last, leave it."""
    device = machine.Device(DeviceUuid(uuid), DeviceState.NEW, first_seen_ns)
    wanted = select(StimulusRow).where(StimulusRow.uuid == uuid).order_by(StimulusRow.id)
    rows = list(session.scalars(wanted))
    if rows and rows[0].kind == _KNOWN:
        device = _DEVICE.validate_python(rows.pop(0).body)
    return machine.replay(device, ((_KINDS[row.kind].validate_python(row.body), row.at_ns) for row in rows))[0]


def _any(unit: Unit, device: machine.Device) -> bool:
    return unit.session.scalar(select(StimulusRow.id).where(StimulusRow.uuid == device.uuid).limit(1)) is not None


def _body(stimulus: machine.Stimulus) -> dict[str, Any]:
    body: dict[str, Any] = _KINDS[type(stimulus).__name__].dump_python(stimulus, mode="json")
    return body


def _add(unit: Unit, device: machine.Device, kind: str, body: dict[str, Any], event: int) -> None:
    unit.session.add(StimulusRow(uuid=device.uuid, at_ns=unit.now_ns, kind=kind, body=body, event_id=event))
