"""Alerts by webhook: sent as JSON with a signed body, and checked by who receives them.

A receiver calls `verify(body, header, secret, now_s)` with the bytes as they came, and answers 2xx once it has the alert safe. It may come
again (at least once): `id` in the body, and the header Paceline-Alert, name it. Alerts come in order.

The header is `Paceline-Signature: t=<unix seconds>,v1=<hex>`, where v1 is HMAC-SHA256 by the secret over `<t>.<body>`. Several v1 may be
there while a secret is changed.
"""

import asyncio
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from paceline.model.errors import BadRequest, PacelineError, Refused, Unreachable
from paceline.sdk.core import LOOPBACK
from paceline.sdk.rows_health import AlertRow

SIGNATURE: Final = "Paceline-Signature"
ALERT_ID: Final = "Paceline-Alert"
TOLERANCE_S: Final = 300
"""A signature older than this is refused: who has overheard a delivery must not send it again tomorrow."""
ANSWER_S: Final = 10.0
"""A receiver has to keep the alert, not to act on it, before it answers."""
NEVER: Final = frozenset({400, 413, 415, 422})
"""Answers that mean: this alert will never be taken. Any other failure may pass: a deployment, a wrong secret, a full disk."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """One receiver. Raises BadRequest for an address that cannot be one."""

    url: str
    secret: str

    def __post_init__(self) -> None:
        try:
            parts, _ = urlsplit(self.url), httpx.URL(self.url)  # each refuses what the other takes
        except (ValueError, httpx.InvalidURL) as error:  # its words hold the URL, and that may hold a secret
            raise BadRequest("PL-REQ-050", "a webhook is no URL", "give a URL: https://host/path") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(
                "PL-REQ-050", f"{parts.scheme}://{parts.hostname or ''} is no webhook", "give a URL: https://host/path"
            )
        if not self.secret:
            hint = "set PACELINE_WEBHOOK_SECRET, and give it to the receiver: it checks with it who is speaking"
            raise BadRequest("PL-REQ-051", f"the webhook at {parts.hostname} has no secret", hint)

    @property
    def name(self) -> str:
        """Tells receivers apart without telling the URL, which may hold a secret itself."""
        return f"{urlsplit(self.url).hostname}#{hashlib.sha256(self.url.encode()).hexdigest()[:8]}"


def body_of(alert: AlertRow) -> bytes:
    told: dict[str, Any] = {"id": alert.id, "at_ns": alert.at_ns, "kind": alert.kind.value, "entity": alert.entity}
    told |= {"summary": alert.summary, "event_id": alert.event_id, "body": alert.body}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


def sign(body: bytes, secret: str, at_s: int) -> str:
    """The value of the header."""
    return f"t={at_s},v1={_digest(body, secret, at_s)}"


def verify(body: bytes, header: str, secret: str, now_s: float, tolerance_s: float = TOLERANCE_S) -> None:
    """Raises Refused unless `body` was signed with `secret` at about `now_s`. Compares in constant time."""
    pairs = [part.strip().split("=", 1) for part in header.split(",")]
    times = [pair[1] for pair in pairs if len(pair) == 2 and pair[0] == "t"]
    given = [pair[1] for pair in pairs if len(pair) == 2 and pair[0] == "v1"]
    if len(times) != 1 or not times[0].isascii() or not times[0].isdigit() or not given:
        raise Refused("PL-AUTH-010", f"the header {SIGNATURE} is missing or is not t=…,v1=…", "refuse the request")
    at_s = int(times[0])
    wanted = _digest(body, secret, at_s).encode()
    matches = [hmac.compare_digest(wanted, one.encode()) for one in given]
    if not any(matches):
        raise Refused("PL-AUTH-011", "the signature is not of this body and secret", "refuse the request")
    if abs(now_s - at_s) > tolerance_s:
        raise Refused(
            "PL-AUTH-012", f"it was signed {abs(now_s - at_s):.0f} s from now", "refuse it, or set the clocks"
        )


def _digest(body: bytes, secret: str, at_s: int) -> str:
    return hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()


class Sender:
    """Posts alerts. For one event loop; no proxy of the environment is asked for a receiver on this machine, no redirect is followed."""

    def __init__(self, webhook: Webhook, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._webhook = webhook
        local = urlsplit(webhook.url).hostname in LOOPBACK
        self._http = httpx.AsyncClient(
            timeout=ANSWER_S, follow_redirects=False, trust_env=not local, transport=transport
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, alert: AlertRow, now_s: float) -> None:
        """Returns once the receiver has acknowledged. Raises Unreachable (try again), or BadRequest if it will never take it."""
        body = body_of(alert)
        headers = {
            "content-type": "application/json",
            SIGNATURE: sign(body, self._webhook.secret, int(now_s)),
            ALERT_ID: str(alert.id),
        }
        try:
            async with asyncio.timeout(ANSWER_S):  # httpx bounds each read, not their sum
                answer = await self._http.post(self._webhook.url, content=body, headers=headers)
        except (httpx.HTTPError, TimeoutError) as error:
            raise self._failed(str(error) or type(error).__name__) from error
        if answer.status_code in NEVER:
            what = f"{self._webhook.name} will not take alert {alert.id}: it answered HTTP {answer.status_code}"
            raise BadRequest("PL-REQ-052", what, "its log says why; the alert is in `paceline get alerts`")
        if not answer.is_success:
            raise self._failed(f"it answered HTTP {answer.status_code}")

    def _failed(self, why: str) -> PacelineError:
        hint = "it is tried again, with growing pauses"
        return Unreachable("PL-NET-010", f"the webhook {self._webhook.name} does not take alerts: {why}", hint)
