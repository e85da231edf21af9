"""The signature on a webhook: what was signed is taken, and nothing else is."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.model.errors import BadRequest, Refused
from paceline.sdk.webhook import TOLERANCE_S, Webhook, sign, verify

NOW_S = 1_800_000_000
bodies, secrets = st.binary(max_size=200), st.text(min_size=1, max_size=40)


@given(bodies, secrets)
def test_what_was_signed_is_taken(body: bytes, secret: str) -> None:
    verify(body, sign(body, secret, NOW_S), secret, NOW_S + TOLERANCE_S)


@given(bodies, secrets, bodies, secrets)
def test_another_body_or_secret_is_refused(body: bytes, secret: str, other: bytes, guess: str) -> None:
    header = sign(body, secret, NOW_S)
    if (other, guess) != (body, secret):
        with pytest.raises(Refused, match="not of this body and secret"):
            verify(other, header, guess, NOW_S)


def test_the_scheme_is_the_one_that_is_written_down() -> None:
    digest = hmac.new(b"s3cret", b'1800000000.{"id":1}', hashlib.sha256).hexdigest()
    assert sign(b'{"id":1}', "s3cret", NOW_S) == f"t=1800000000,v1={digest}"


@pytest.mark.parametrize("away_s", [TOLERANCE_S + 1, -TOLERANCE_S - 1])
def test_an_old_signature_is_refused(away_s: int) -> None:
    with pytest.raises(Refused) as refused:
        verify(b"x", sign(b"x", "s", NOW_S), "s", NOW_S + away_s)
    assert refused.value.code == "PL-AUTH-012"


def test_the_time_belongs_to_what_is_signed() -> None:
    stale = sign(b"x", "s", NOW_S - 3600).replace(str(NOW_S - 3600), str(NOW_S))
    with pytest.raises(Refused):
        verify(b"x", stale, "s", NOW_S)


@pytest.mark.parametrize(
    "header", ["", "nonsense", "t=1", "v1=ab", "t=,v1=ab", "t=x,v1=ab", "t=1,t=2,v1=ab", "t=²,v1=a", "t=1,v1=é"]
)
def test_what_is_no_signature_is_refused(header: str) -> None:
    with pytest.raises(Refused):
        verify(b"x", header, "s", 1)


def test_while_a_secret_changes_either_is_enough() -> None:
    old, new = sign(b"x", "old", NOW_S), sign(b"x", "new", NOW_S)
    both = f"{old},{new.partition(',')[2]}"
    verify(b"x", both, "old", NOW_S)
    verify(b"x", both, "new", NOW_S)


@pytest.mark.parametrize("url", ["https://h:abc/s3cret", "http://[x/s3cret", "s3cret", "https:///s3cret"])
def test_what_http_cannot_reach_is_no_webhook(url: str) -> None:
    """Said at the start, and not at each delivery for ever."""
    with pytest.raises(BadRequest) as refused:
        Webhook(url, "s")
    assert refused.value.code == "PL-REQ-050"
    assert "s3cret" not in str(refused.value)


def test_a_webhook_needs_an_address_and_a_secret_and_keeps_both_to_itself() -> None:
    with pytest.raises(BadRequest) as no_url:
        Webhook("ftp://example.org/x", "s")
    with pytest.raises(BadRequest) as no_secret:
        Webhook("https://example.org/services/T0/secret", "")
    assert (no_url.value.code, no_secret.value.code) == ("PL-REQ-050", "PL-REQ-051")
    assert "T0" not in str(no_secret.value)
    one, two = Webhook("https://example.org/a", "s"), Webhook("https://example.org/b", "s")
    assert one.name.startswith("example.org#")
    assert one.name != two.name
