"""Laws of the Xid rules, for any log."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.health.catalog import load
from paceline.health.subcodes import stronger
from paceline.health.xid_rules import PLACES_MOST, SECOND_NS, UNKNOWN_KINDS_MOST, XidMemory, judge_xid
from paceline.model.hardware import RecoveryAction, XidEvent
from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid
from paceline.telemetry.xid_lines import DETAIL_CHARS, parse_record, parse_sxid_record

CATALOG = load()
GPU = DeviceUuid("GPU-1")
CODES = st.one_of(st.integers(1, 173), st.integers(1, 999_999))
WORDS = st.text("0123456789abcdefx()[], RLW_TX/Fatal.Link-", max_size=60)
EVENTS = st.lists(
    st.builds(
        lambda code, second, detail: XidEvent(GPU, code, second * SECOND_NS, "kmsg", detail),
        CODES,
        st.integers(0, 200_000),
        st.one_of(st.just(""), WORDS),
    ),
    max_size=60,
)


def judged(events: list[XidEvent]) -> tuple[XidMemory, list[Finding]]:
    memory, found = XidMemory(), []
    for event in events:
        memory, new = judge_xid(memory, event, CATALOG)
        found += [new] if new else []
    return memory, found


@given(st.text(max_size=400), CODES)
def test_any_line_is_read_or_left_alone(text: str, code: int) -> None:
    for line in (text, f"NVRM: Xid (PCI:0000:3b:00): {code}, {text}", f"NVRM: Xid ({text}): {code}"):
        found = parse_record(line)
        assert found is None or len(found.detail) <= DETAIL_CHARS
        assert parse_sxid_record(line) is None or "SXid" in text


@given(EVENTS)
def test_the_first_of_each_code_is_told_and_an_unknown_one_is_never_acted_on(events: list[XidEvent]) -> None:
    memory, found = judged(events)
    first: dict[int, XidEvent] = {}
    for event in events:
        first.setdefault(event.code, event)
    told = {(f.evidence["xid"], f.at_ns) for f in found}
    known = [event for code, event in first.items() if code in CATALOG.meanings]
    assert [event for event in known if (event.code, event.at_ns) not in told] == []
    assert {f.advice for f in found if f.evidence["xid"] not in CATALOG.meanings} <= {Advice.OBSERVE}
    assert len(memory.tallies) <= PLACES_MOST
    assert sum(key.startswith("unknown") for key in memory.heard) <= UNKNOWN_KINDS_MOST + 1


@given(CODES, WORDS, st.one_of(st.none(), st.integers(0, 9)))
def test_the_driver_s_standing_word_makes_no_ruling_weaker(code: int, detail: str, word: int | None) -> None:
    assert not stronger(CATALOG.rule(code, detail).advice, CATALOG.rule(code, detail, word).advice)


@given(st.integers(1, 173), st.sampled_from(RecoveryAction))
def test_every_ruling_names_its_authority_and_its_reason(code: int, word: RecoveryAction) -> None:
    ruling = CATALOG.rule(code, "", word)
    assert ruling.authority in ("driver", "sub-code", "site", "table")
    assert ruling.why
    assert ruling.name
