"""Samples: raw for some minutes, then rolled up by the minute and kept for a month. Longer history belongs in Prometheus."""

from dataclasses import asdict, fields
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, func, insert, literal, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from paceline.inventory.tables import MetaRow, RolledRow, SampleRow
from paceline.inventory.unit import Unit
from paceline.model.hardware import Sample
from paceline.sdk.rows import DeviceSamples, Minute

MINUTE_NS: Final = 60 * 1_000_000_000
RAW_KEPT_NS: Final = 10 * MINUTE_NS
"""Raw samples answer "what is it doing now" and stand behind a finding until its event is written."""
ROLLED_KEPT_NS: Final = 30 * 24 * 60 * MINUTE_NS
LATE_NS: Final = MINUTE_NS
"""A minute is rolled up once no report of it can be on its way any more."""
assert RAW_KEPT_NS >= 2 * (LATE_NS + MINUTE_NS), (
    "a sample must be rolled up before it is dropped, also if one turn was missed"
)

_NAMES: Final = tuple(field.name for field in fields(Sample))
_READINGS: Final[
    tuple[tuple[str, str, InstrumentedAttribute[int | None] | InstrumentedAttribute[float | None]], ...]
] = (
    ("clock", "mhz", SampleRow.sm_clock_mhz),
    ("temperature", "c", SampleRow.temperature_c),
    ("power", "w", SampleRow.power_w),
    ("utilisation", "pct", SampleRow.utilisation_pct),
)


def store(unit: Unit, samples: tuple[Sample, ...]) -> None:
    """Keep raw samples; the same sample again changes nothing."""
    unit.add_new(SampleRow, [asdict(sample) for sample in samples])


def sample_of(row: SampleRow) -> Sample:
    return Sample(**{name: getattr(row, name) for name in _NAMES})


def in_words(sample: Sample) -> str:
    """`1410 MHz, 61 °C, 402 W, 97 % busy`, without what the device does not tell."""
    readings = (
        (sample.sm_clock_mhz, "{} MHz"),
        (sample.temperature_c, "{} °C"),
        (sample.power_w, "{:.0f} W"),
        (sample.utilisation_pct, "{} % busy"),
    )
    return ", ".join(text.format(value) for value, text in readings if value is not None) or "a sample without readings"


def roll_up(unit: Unit) -> None:
    """Roll up the whole minutes that are over, then drop what is too old. Safe to repeat."""
    meta = unit.session.get_one(MetaRow, 1)
    until = (unit.now_ns - LATE_NS) // MINUTE_NS * MINUTE_NS
    if until > meta.rolled_until_ns:
        minute = SampleRow.at_ns - SampleRow.at_ns % literal(MINUTE_NS)
        columns: dict[str, ColumnElement[Any]] = {
            "uuid": SampleRow.uuid.expression,
            "minute_ns": minute,
            "count": func.count(),
        }
        for name, unit_name, reading in _READINGS:
            for how, function in (("min", func.min), ("avg", func.avg), ("max", func.max)):
                columns[f"{name}_{how}_{unit_name}"] = function(reading)
        rolled = select(*columns.values()).where(SampleRow.at_ns >= meta.rolled_until_ns, SampleRow.at_ns < until)
        unit.session.execute(insert(RolledRow).from_select(list(columns), rolled.group_by(SampleRow.uuid, minute)))
        unit.session.execute(update(MetaRow).where(MetaRow.id == 1).values(rolled_until_ns=until))
    unit.session.execute(delete(SampleRow).where(SampleRow.at_ns < unit.now_ns - RAW_KEPT_NS))
    unit.session.execute(delete(RolledRow).where(RolledRow.minute_ns < unit.now_ns - ROLLED_KEPT_NS))


def of_device(session: Session, uuid: str, since_ns: int) -> DeviceSamples:
    """Samples of a device from `since_ns` on, raw where they are still kept, by the minute before."""
    raw = session.scalars(
        select(SampleRow).where(SampleRow.uuid == uuid, SampleRow.at_ns >= since_ns).order_by(SampleRow.at_ns)
    ).all()
    first_raw = raw[0].at_ns if raw else 1 << 62
    rolled = session.scalars(
        select(RolledRow)
        .where(RolledRow.uuid == uuid, RolledRow.minute_ns >= since_ns, RolledRow.minute_ns + MINUTE_NS <= first_raw)
        .order_by(RolledRow.minute_ns)
    ).all()
    return DeviceSamples(raw=tuple(map(sample_of, raw)), minutes=tuple(map(Minute.model_validate, rolled)))
