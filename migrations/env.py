"""Alembic's entry.

`paceline.inventory.migrate` hands a connection in; from the command line the URL is `-x url=…` or PACELINE_DATABASE_URL.
"""

import os

from alembic import context
from sqlalchemy import Connection

from paceline.inventory.engine import open_engine, writing
from paceline.inventory.tables import Base
from paceline.model.errors import BadRequest


def run(connection: Connection) -> None:
    """Migrate on `connection`, in its transaction: a migration that fails leaves nothing behind."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def database_url() -> str:
    url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get("PACELINE_DATABASE_URL", "")
    if not url:
        raise BadRequest(
            "PL-REQ-020", "no database is named", "alembic -x url=sqlite:///paceline.db … or set PACELINE_DATABASE_URL"
        )
    return url


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = open_engine(database_url())
    with writing(engine).begin() as opened:
        run(opened)
    engine.dispose()
