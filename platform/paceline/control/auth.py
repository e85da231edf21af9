"""Who is asking. Every route but /healthz, the login and static files needs a token."""

import time
from typing import Final

from fastapi import Request

from paceline.inventory.store import Store
from paceline.model.errors import Refused

ADMIN: Final = "admin"
COOKIE: Final = "paceline_token"
_HINT: Final = "send `Authorization: Bearer <token>`; the server's home holds the token, or set PACELINE_TOKEN"


def ensure_admin_token(store: Store) -> str | None:
    """The admin's token if this is the first start, else None. Only now can it be seen: the inventory keeps a hash."""
    return store.add_first_token(ADMIN, time.time_ns())


def issue_token(store: Store, name: str) -> str:
    """A new token for `name`, which the history will call `name` too."""
    return store.add_token(name, time.time_ns())


def store_in(request: Request) -> Store:
    """The inventory behind the application."""
    store: Store = request.app.state.store
    return store


def caller(request: Request) -> str:
    """Name of the token's holder; raises Refused. A cookie counts for reading only, so no foreign page can act through a browser."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        token = request.cookies.get(COOKIE, "") if request.method in ("GET", "HEAD") else ""
    token = token.strip()
    if not token:
        raise Refused("PL-AUTH-001", "no token was sent", _HINT)
    name = store_in(request).token_holder(token)
    if name is None:
        raise Refused("PL-AUTH-002", "the token is not valid here, or was revoked", _HINT)
    return name
