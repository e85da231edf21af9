"""The schema: one chain of migrations, the same as the tables in code, there and back on both engines."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import inspect

from paceline.inventory import migrate
from paceline.inventory.engine import open_engine
from paceline.inventory.store import Store
from paceline.inventory.tables import Base
from paceline.model.errors import Unreachable


def tables(url: str) -> set[str]:
    engine = open_engine(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_there_is_one_newest_migration() -> None:
    assert len(migrate.heads()) == 1


def test_up_and_down_and_up_again(database_url: str) -> None:
    migrate.upgrade(database_url)
    assert tables(database_url) == set(Base.metadata.tables) | {"alembic_version"}
    migrate.check(database_url)
    migrate.downgrade(database_url, "base")
    assert tables(database_url) == {"alembic_version"}
    migrate.upgrade(database_url)
    with Store(database_url) as store:
        assert store.revision() == 0


def test_an_upgrade_of_what_is_up_to_date_changes_nothing(database_url: str) -> None:
    migrate.upgrade(database_url)
    with Store(database_url) as store:
        token = store.add_token("admin", 1)
        migrate.upgrade(database_url)
        assert store.token_holder(token) == "admin"


def test_servers_that_start_together_upgrade_one_after_the_other(database_url: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(migrate.upgrade, [database_url] * 3))
    migrate.check(database_url)


@pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "postgresql://nobody@127.0.0.1:1/none"])
def test_a_database_that_is_not_there_is_said_in_our_words(url: str) -> None:
    with pytest.raises(Unreachable, match="the database does not answer"):
        migrate.upgrade(url)
    with Store(url) as store, pytest.raises(Unreachable):
        store.revision()
