"""The door: OpenAI's chat completions over HTTP, in front of the engines. A Ray Serve ingress.

Serve pickles this class by value when it decorates it, so what the class needs lives in other modules.
"""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ray import serve

from paceline.inventory.journal import Journal
from paceline.model.errors import PacelineError
from paceline.model.ids import SessionId
from paceline.serving import wire
from paceline.serving.chat import Chat, Turn
from paceline.serving.engine import ServeEngines
from paceline.serving.models import load_tokenizer
from paceline.serving.relay import Broke, Ended, Resumed, Shown, Started
from paceline.serving.reports import reporter_for
from paceline.serving.watchdog import FLOOR_S

ENGINE_APP: Final = "engine"
ENGINE_DEPLOYMENT: Final = "EngineReplica"

app = FastAPI(title="Paceline gateway", openapi_url=None)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """`address` and `token_file` reach the control server; without an address nothing is reported."""

    model: str
    journal: str
    address: str = ""
    token_file: str = ""
    silence_floor_s: float = FLOOR_S


@app.exception_handler(PacelineError)
async def _refuse(_: Request, error: PacelineError) -> JSONResponse:
    return JSONResponse(wire.error_body(error), wire.status_of(error))


@app.exception_handler(RequestValidationError)
async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:])
    body = {
        "message": f"{param}: {first['msg']}",
        "type": "invalid_request_error",
        "param": param,
        "code": "PL-REQ-100",
    }
    return JSONResponse({"error": body}, 400)


@serve.ingress(app)
class Gateway:
    def __init__(self, config: GatewayConfig) -> None:
        self._tokenizer = load_tokenizer(config.model)
        self._journal = Journal(Path(config.journal))
        engines = ServeEngines(serve.get_deployment_handle(ENGINE_DEPLOYMENT, ENGINE_APP))
        reporter = reporter_for(config.address, config.token_file)
        self._chat = Chat(self._tokenizer, self._journal, engines, reporter, config.silence_floor_s)

    @app.get("/v1/models")
    async def models(self) -> dict[str, object]:
        name = self._tokenizer.card.name
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "paceline"}]}

    @app.get("/v1/sessions/{session_id}")
    async def session(self, session_id: str) -> dict[str, object]:
        return self._chat.session(SessionId(session_id))

    @app.delete("/v1/sessions/{session_id}")
    async def forget(self, session_id: str) -> dict[str, object]:
        self._journal.forget(SessionId(session_id))
        return {"session_id": session_id, "deleted": True}

    @app.post("/v1/chat/completions")
    async def chat(
        self,
        body: wire.ChatRequest,
        x_session_id: Annotated[str, Header()] = "",
        idempotency_key: Annotated[str, Header()] = "",
    ) -> Response:
        """What can be refused is refused before the first byte. The answer ends with its client."""
        body.check()
        turn = await self._chat.begin(body, body.session_id(x_session_id), idempotency_key)
        reply = wire.Reply(f"chatcmpl-{secrets.token_hex(12)}", turn.replay.card.name, int(time.time()))
        headers = {"x-session-id": turn.session_id, "cache-control": "no-cache"}
        if not body.stream:
            return JSONResponse(await self._whole(turn, reply), headers=headers)
        return StreamingResponse(
            self._stream(turn, reply, body.wants_usage), media_type="text/event-stream", headers=headers
        )

    async def _whole(self, turn: Turn, reply: wire.Reply) -> dict[str, object]:
        try:
            async for event in turn.until_end():
                if isinstance(event, Broke):
                    raise event.error
            await turn.ended()
        finally:
            turn.cancel()
        return reply.whole(turn.relay.text.text, turn.replay, turn.extra())

    async def _stream(self, turn: Turn, reply: wire.Reply, usage: bool) -> AsyncIterator[str]:
        try:
            yield reply.chunk({"role": "assistant", "content": ""})
            async for event in turn.until_end():
                match event:
                    case Shown(text):
                        yield reply.chunk({"content": text})
                    case Resumed(position, reason):
                        yield wire.comment(f"resumed at token {position}: {reason}")
                    case Ended(finish):
                        await turn.ended()
                        yield reply.chunk({}, finish, turn.extra())
                    case Broke(error):
                        yield wire.sse(wire.error_body(error))
                        return
                    case Started():
                        pass
            if usage:
                yield reply.usage_chunk(turn.replay)
            yield wire.DONE
        finally:
            turn.cancel()
