"""Errors on the wire: always `{"error", "code", "message", "hint"}`, from which the client builds the same error again."""

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from paceline.model.errors import BadRequest, NotFound, PacelineError, RunFailed

log = structlog.get_logger()


def install(app: FastAPI) -> None:
    app.add_exception_handler(PacelineError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)


def answer(error: PacelineError, status: int | None = None) -> JSONResponse:
    body = {"error": type(error).__name__, "code": error.code, "message": error.message, "hint": error.hint}
    headers = {"www-authenticate": "Bearer"} if error.http_status == 401 else None
    return JSONResponse(body, status or error.http_status, headers)


def _ours(_request: Request, error: Exception) -> Response:
    assert isinstance(error, PacelineError)
    return answer(error)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3]]
    more = len(error.errors()) - len(told)
    message = "; ".join(told) + (f"; and {more} more" if more > 0 else "")
    return answer(BadRequest("PL-REQ-001", message, f"GET /v1/openapi.json shows what {request.url.path} takes"))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wrong = f"{request.method} {request.url.path}: {error.detail}"
    if error.status_code == 404:
        return answer(NotFound("PL-FIND-004", wrong, "GET /v1/openapi.json lists the routes"))
    return answer(BadRequest("PL-REQ-002", wrong, "GET /v1/openapi.json lists the routes"), error.status_code)


def _unforeseen(request: Request, error: Exception) -> Response:
    log.error("request failed", method=request.method, path=request.url.path, exc_info=error)
    what = f"the server failed on {request.method} {request.url.path}: {type(error).__name__}"
    return answer(RunFailed("PL-RUN-500", what, "its log has the traceback; please report it"))
