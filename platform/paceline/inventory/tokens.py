"""Bearer tokens: only hashes are kept."""

import hashlib
import hmac
import secrets

from sqlalchemy import select
from sqlalchemy.orm import Session

from paceline.inventory.tables import TokenRow
from paceline.inventory.unit import Unit

PREFIX = "pl_"
"""Makes a leaked token easy to find by a scanner."""


def add(unit: Unit, name: str) -> str:
    """A new token for `name`. This is the only time that it can be seen."""
    token = PREFIX + secrets.token_urlsafe(32)
    unit.session.add(TokenRow(sha256=_hash(token), name=name, created_ns=unit.now_ns, revoked_ns=0))
    return token


def any_valid(session: Session) -> bool:
    return session.scalar(select(TokenRow.sha256).where(TokenRow.revoked_ns == 0).limit(1)) is not None


def holder(session: Session, token: str) -> str | None:
    """Whose token it is, or None. Compares with every valid hash in constant time, so time tells nothing about any of them."""
    given, name = _hash(token), None
    for row in session.scalars(select(TokenRow).where(TokenRow.revoked_ns == 0).order_by(TokenRow.sha256)):
        if hmac.compare_digest(given, row.sha256):
            name = row.name
    return name


def revoke(unit: Unit, name: str) -> int:
    """Revoke every token of `name`; returns how many there were."""
    rows = unit.session.scalars(select(TokenRow).where(TokenRow.name == name, TokenRow.revoked_ns == 0)).all()
    for row in rows:
        row.revoked_ns = unit.now_ns
    return len(rows)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
