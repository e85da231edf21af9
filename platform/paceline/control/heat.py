"""How the heat map draws a device: a colour by its state (the stylesheet's), a shade by its score, and words. Pure."""

from typing import Final

from paceline.model.hardware import DeviceState
from paceline.sdk import words
from paceline.sdk.rows import DeviceRow

SHADES: Final = (
    (1.005, "h0", "median or faster"),
    (1.03, "h1", "up to 3 % slower"),
    (1.08, "h2", "up to 8 %"),
    (1.15, "h3", "up to 15 %"),
    (float("inf"), "h4", "more"),
)
"""Upper score, class, words. 0.5 % is a probe's noise; healthy devices of one SKU differ by 8 % on average (arXiv 2208.11035)."""
UNMEASURED: Final = "hx"
INITIALS: Final = {
    DeviceState.NEW: "P",
    DeviceState.PROBING: "P",
    DeviceState.PROBATION: "P",
}
"""All three wait for probes; of the other states the first letter is their own."""


def shade(score: float | None) -> str:
    if score is None:
        return UNMEASURED
    return next(name for limit, name, _ in SHADES if score <= limit)


def initial(state: DeviceState) -> str:
    return INITIALS.get(state, state.value[0])


def hover(device: DeviceRow) -> str:
    """All that a cell says, for a pointer that rests on it and for one who cannot see it."""
    parts = [f"{words.place(device)}: {device.state.value}, {device.reason or 'no reason given'}"]
    if device.score is not None:
        behind = f", {device.spread:.1%} behind the fastest" if device.spread else ""
        parts.append(f"score {words.score(device.score)}{behind}")
    if device.cordoned_ns:
        parts.append(f"cordoned by {device.cordon_by}: {device.cordon_reason}")
    if device.attempt_id:
        parts.append(f"at work for {device.attempt_id}")
    return "; ".join(parts)
