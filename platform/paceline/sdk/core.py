"""The client without its wires: what a call sends, how its answer is read, when it is tried again. No I/O here."""

import json
import math
import random
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from paceline.model.errors import BY_NAME, PacelineError, Unreachable

T = TypeVar("T")

ANSWER_S: Final = 15.0
"""Longest wait for the answer of a call that does not poll. The server answers in milliseconds; a migration may lock it for seconds."""
SHORTEST_TRY_S: Final = 0.5
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
"""A server that restarts is back within some seconds: asking more seldom would only add to the outage."""
BUSY: Final = frozenset({502, 503})
"""The server restarts behind a proxy, or its database does: the same call may do soon."""
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. `again` says that sending it twice does no more than sending it once."""

    method: str
    path: str
    answer: TypeAdapter[T]
    params: dict[str, Any]
    body: Any = None
    again: bool = True
    wait_s: float = 0.0


class Attempts:
    """Decides, after each failure of a call, whether and when it is sent again. `clock` is monotonic, in seconds."""

    def __init__(self, call: Call[Any], address: str, now: float, deadline_s: float) -> None:
        self._call, self._address = call, address
        self._end = now + deadline_s
        self._pause = FIRST_PAUSE_S

    def pause_s(self, failure: Exception, now: float) -> float:
        """Seconds to wait before the next try; raises what the caller shall see if there is none."""
        sent = not isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout)
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        if (sent and not self._call.again) or now + pause >= self._end:
            raise self._seen(failure) from failure
        return pause

    def _seen(self, failure: Exception) -> PacelineError:
        if isinstance(failure, PacelineError):
            return failure
        reason = str(failure) or type(failure).__name__
        return Unreachable(
            "PL-NET-001",
            f"the Paceline server at {self._address} does not answer: {reason}",
            "is it running? `paceline up` starts it; --address or PACELINE_ADDRESS names another",
        )


def read(call: Call[T], answer: httpx.Response) -> T:
    """The value in an answer, or the error that the server raised, as the same class."""
    if answer.is_success:
        try:
            return call.answer.validate_json(answer.content)
        except ValidationError as error:
            first = error.errors()[0]
            raise Unreachable(
                "PL-NET-004",
                f"the answer to {call.path} is not understood: {first['msg']} at {'.'.join(map(str, first['loc']))}",
                "server and client are of different versions: `paceline version` shows both",
            ) from error
    raise error_in(answer)


def error_in(answer: httpx.Response) -> PacelineError:
    try:
        body = answer.json()
        return BY_NAME[body["error"]](body["code"], body["message"], body.get("hint", ""))
    except (ValueError, KeyError, TypeError):
        return Unreachable(
            "PL-NET-003",
            f"{answer.request.url} answered HTTP {answer.status_code}, not as a Paceline server does",
            "something else may listen there, or a proxy stands in between",
        )


def encode(body: Any) -> bytes:
    """JSON, with NaN and infinities as the strings that pydantic reads back as numbers."""
    return json.dumps(_spelt(body), separators=(",", ":"), allow_nan=False).encode()


def _spelt(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _spelt(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_spelt(inner) for inner in value]
    return value


def options(address: str, token: str) -> dict[str, Any]:
    """Arguments for httpx's clients. A proxy of the environment is not asked for a server on this machine."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    local = urlsplit(address).hostname in LOOPBACK
    return {"base_url": address, "headers": headers, "trust_env": not local}


def request(call: Call[Any], deadline_s: float) -> dict[str, Any]:
    """Arguments for httpx's `request`. One try may take as long as all tries together, but no longer than an answer ever takes."""
    timeout_s = call.wait_s + min(ANSWER_S, max(deadline_s, SHORTEST_TRY_S))
    made: dict[str, Any] = {"method": call.method, "url": call.path, "params": call.params, "timeout": timeout_s}
    if call.body is not None:
        made |= {"content": encode(call.body), "headers": {"content-type": "application/json"}}
    return made
