"""What all tables share: types of columns and names of constraints, the same on SQLite and PostgreSQL."""

from typing import Any, ClassVar, Final

from sqlalchemy import JSON, BigInteger, Integer, MetaData, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

BigKey: Final = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only if the key is spelt INTEGER."""
Json: Final = JSON().with_variant(JSONB, "postgresql")
Name: Final = String()
State: Final = String(24)

NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: BigInteger,
        str: Name,
        dict[str, Any]: Json,
        list[int]: Json,
        list[str]: Json,
        list[float]: Json,
    }
