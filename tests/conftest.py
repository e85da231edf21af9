"""Real databases for the tests: SQLite in a file, and a PostgreSQL server of our own on a Unix socket."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from inventory_maker import Fleet
from paceline.inventory import migrate
from paceline.inventory.engine import open_engine
from paceline.inventory.store import Store

SQLITE_AND_POSTGRESQL = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


def _as_postgres(*command: str) -> None:
    """PostgreSQL refuses to run as root; then it runs as the user that its package has made."""
    become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    done = subprocess.run(
        [*become, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False, cwd="/"
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a server without databases of ours; `%s` stands for the database."""
    missing = [tool for tool in ("initdb", "pg_ctl", "postgres") if shutil.which(tool) is None]
    assert not missing, (
        f"{', '.join(missing)} not on PATH: install PostgreSQL 15 (apt-get install postgresql) and put its bin directory on PATH"
    )
    place = Path(tempfile.mkdtemp(prefix="pl-pg-", dir="/tmp"))  # short: a socket's path may have 107 bytes
    if os.getuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(place, owner.pw_uid, owner.pw_gid)
    data, log = str(place / "data"), str(place / "log")
    pg_ctl, initdb = str(shutil.which("pg_ctl")), str(shutil.which("initdb"))
    try:
        _as_postgres(initdb, "-D", data, "-U", "paceline", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        options = f"-c listen_addresses='' -c unix_socket_directories={place} -c fsync=off -c max_connections=200"
        _as_postgres(pg_ctl, "-D", data, "-l", log, "-w", "-t", "60", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://paceline@/%s?host={place}"
        finally:
            _as_postgres(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _postgres_database(server: str) -> Iterator[str]:
    name = f"t{os.urandom(6).hex()}"
    admin = open_engine(server % "postgres").execution_options(isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield server % name
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(params=SQLITE_AND_POSTGRESQL)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database, once on each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'inventory.db'}"
    else:
        yield from _postgres_database(request.getfixturevalue("postgres_server"))


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """The inventory, once on each engine."""
    migrate.upgrade(database_url)
    with Store(database_url) as opened:
        yield opened


@pytest.fixture
def fleet(store: Store) -> Fleet:
    """Nothing yet, and the means to say what hosts, placement and runs would say."""
    return Fleet(store)


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    """The inventory on SQLite, for tests of what stands in front of it."""
    url = f"sqlite:///{tmp_path / 'inventory.db'}"
    migrate.upgrade(url)
    with Store(url) as opened:
        yield opened
