"""The control API's process: migrate, make sure of the tokens, serve. `paceline server` starts it and starts it again when it dies."""

import argparse
import sys

import structlog
import uvicorn

from paceline.control import auth
from paceline.control.app import create_app
from paceline.health import rules
from paceline.inventory import migrate
from paceline.inventory.store import Store
from paceline.runtime import processes
from paceline.runtime.settings import Settings, write_private

log = structlog.get_logger()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    processes.end_with_parent()
    settings = Settings()
    settings.home.mkdir(parents=True, exist_ok=True)
    migrate.upgrade(settings.database)
    store = Store(settings.database, rules.load(settings.site_rules))
    _ensure_tokens(store, settings)
    uvicorn.run(
        create_app(store, settings.webhooks),
        host=settings.host,
        port=args.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,  # an open long poll lasts up to 30 s; its caller asks again
    )


def _ensure_tokens(store: Store, settings: Settings) -> None:
    """The admin token is printed once, here; the inventory keeps its hash only. Paceline's own actors have a token of their own."""
    token = auth.ensure_admin_token(store)
    if token is not None:
        write_private(settings.home / "token", token)
        print(f"admin token (kept in {settings.home / 'token'}): {token}", file=sys.stderr, flush=True)
    if not settings.agent_token_file.exists():
        write_private(settings.agent_token_file, auth.issue_token(store, "agents"))


if __name__ == "__main__":
    main()
