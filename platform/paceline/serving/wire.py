"""OpenAI's chat completions, as far as they are offered here: what comes in, what goes out."""

import json
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from paceline.model.errors import BadRequest, Conflict, NotFound, PacelineError
from paceline.serving.contract import Message, Params
from paceline.serving.replay import Finish, Replay

DONE: Final = "data: [DONE]\n\n"
DEFAULT_MAX_TOKENS: Final = 512
UNSUPPORTED: Final = ("tools", "functions", "response_format", "logprobs", "audio", "prediction")
"""A request that names one of these would get less than it asks for, so it is refused."""


class TextPart(BaseModel):
    type: str
    text: str = ""


class ChatMessage(BaseModel):
    role: str
    content: str | list[TextPart] | None = None

    def plain(self) -> Message:
        """Raises BadRequest for roles and parts that no model here can read."""
        if self.role not in ("system", "developer", "user", "assistant"):
            raise BadRequest("PL-REQ-103", f"messages of role `{self.role}` are not supported")
        parts = self.content if isinstance(self.content, list) else [TextPart(type="text", text=self.content or "")]
        for part in parts:
            if part.type != "text":
                raise BadRequest("PL-REQ-104", f"message parts of type `{part.type}` are not supported")
        return Message("system" if self.role == "developer" else self.role, "".join(part.text for part in parts))


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """Fields beyond these are accepted and ignored, but for those in UNSUPPORTED."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: int | None = None
    user: str = ""
    metadata: dict[str, str] | None = None

    def check(self) -> None:
        """Raises BadRequest for what would silently be ignored."""
        if self.n not in (None, 1):
            raise BadRequest("PL-REQ-105", "n must be 1: each choice would need its own journal")
        for name in UNSUPPORTED:
            if (self.model_extra or {}).get(name):
                raise BadRequest("PL-REQ-106", f"`{name}` is not supported")

    def session_id(self, header: str) -> str:
        """`x-session-id`, else `metadata.session_id`, else "". Not `user`: one user may hold many conversations."""
        found = (header or (self.metadata or {}).get("session_id", "")).strip()
        if len(found) > 200 or not found.isprintable():
            raise BadRequest("PL-REQ-107", "a session id has at most 200 printable characters")
        return found

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def limit(self) -> int | None:
        """Most tokens of the answer, if the client says so."""
        return self.max_completion_tokens or self.max_tokens

    def params(self, room: int) -> Params:
        """`room` is what the prompt leaves of the window."""
        return Params(
            max_tokens=min(self.limit or DEFAULT_MAX_TOKENS, room),
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
        )


class Reply:
    """Builds the bodies of one answer. `extra` is Paceline's own field, which other clients ignore."""

    def __init__(self, answer_id: str, model: str, created_s: int) -> None:
        self._head = {"id": answer_id, "created": created_s, "model": model}

    def chunk(
        self, delta: Mapping[str, str], finish: Finish | None = None, extra: Mapping[str, object] | None = None
    ) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**self._head, "object": "chat.completion.chunk", "choices": [choice], **_extra(extra)})

    def usage_chunk(self, replay: Replay) -> str:
        return sse({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage(replay)})

    def whole(self, text: str, replay: Replay, extra: Mapping[str, object]) -> dict[str, object]:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": replay.finish}
        head = {**self._head, "object": "chat.completion", "system_fingerprint": replay.revision}
        return {**head, "choices": [choice], "usage": usage(replay), **_extra(extra)}


def usage(replay: Replay) -> dict[str, int]:
    prompt, completion = len(replay.prompt_ids), replay.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def sse(body: Mapping[str, object]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


def comment(text: str) -> str:
    """Server-sent events ignore lines that begin with a colon; people who read the wire do not."""
    return f": {' '.join(text.split())}\n\n"


def status_of(error: PacelineError) -> int:
    """OpenAI's clients expect 400 where a request cannot be right."""
    return 400 if isinstance(error, BadRequest) else error.http_status


def error_body(error: PacelineError, param: str | None = None) -> dict[str, object]:
    kind = "server_error"
    if isinstance(error, BadRequest | NotFound | Conflict):
        kind = "invalid_request_error"
    message = f"{error.message}. {error.hint}".strip() if error.hint else error.message
    return {"error": {"message": message, "type": kind, "param": param, "code": error.code}}


def _extra(extra: Mapping[str, object] | None) -> dict[str, object]:
    return {"paceline": dict(extra)} if extra else {}
