"""Real databases for the tests: SQLite in a file, and a PostgreSQL server of our own on a Unix socket."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from sqlalchemy import make_url, text

from inventory_maker import Fleet
from paceline.inventory import migrate
from paceline.inventory.engine import open_engine
from paceline.inventory.store import Store

SQLITE_AND_POSTGRESQL = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session", autouse=True)
def log_beside_what_is_printed() -> None:
    """A server that runs in a test's own process must not write its log into what the test captures of a command."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))


def _as_postgres(*command: str) -> None:
    """PostgreSQL refuses to run as root; then it runs as the user that its package has made."""
    become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    done = subprocess.run(
        [*become, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False, cwd="/"
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}"


def _postgres_program(name: str) -> str:
    """On PATH, or where Debian's package puts it: the newest version."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: float(p.parts[4]))
    found = shutil.which(name) or (str(places[-1]) if places else None)
    assert found, f"{name} is not here: apt-get install postgresql"
    return found


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a server without databases of ours; `%s` stands for the database."""
    programs = {tool: _postgres_program(tool) for tool in ("initdb", "pg_ctl")}
    place = Path(tempfile.mkdtemp(prefix="pl-pg-", dir="/tmp"))  # short: a socket's path may have 107 bytes
    if os.getuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(place, owner.pw_uid, owner.pw_gid)
    data, log = str(place / "data"), str(place / "log")
    pg_ctl, initdb = programs["pg_ctl"], programs["initdb"]
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


@contextmanager
def _postgres_database(server: str, template: str = "template0") -> Iterator[str]:
    name = f"t{os.urandom(6).hex()}"
    admin = open_engine(server % "postgres").execution_options(isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
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
        with _postgres_database(request.getfixturevalue("postgres_server")) as url:
            yield url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema and nothing in it, to be copied."""
    path = tmp_path_factory.mktemp("template") / "inventory.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_template(postgres_server: str) -> Iterator[str]:
    """Name of a PostgreSQL database with the schema and nothing in it, to be copied."""
    with _postgres_database(postgres_server) as url:
        migrate.upgrade(url)
        yield str(make_url(url).database)


@pytest.fixture
def sqlite_store(migrated_file: Path, tmp_path: Path) -> Iterator[Store]:
    """The inventory on SQLite, for tests of what stands in front of it."""
    copy = shutil.copy(migrated_file, tmp_path / "inventory.db")
    with Store(f"sqlite:///{copy}") as opened:
        yield opened


@pytest.fixture(params=SQLITE_AND_POSTGRESQL)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The inventory, once on each engine."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_store")
        return
    server, template = request.getfixturevalue("postgres_server"), request.getfixturevalue("migrated_template")
    with _postgres_database(server, template) as url, Store(url) as opened:
        yield opened


@pytest.fixture
def fleet(store: Store) -> Fleet:
    """Nothing yet, and the means to say what hosts, placement and runs would say."""
    return Fleet(store)
