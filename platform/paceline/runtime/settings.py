"""Where this installation lives and how it is reached. One place reads the environment."""

import os
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline.health import catalog, rules
from paceline.model.errors import HostSetup
from paceline.sdk.webhook import Webhook

RAY_NAMESPACE: Final = "paceline"
PLACEMENT_ACTOR: Final = "paceline-placement"
HEALTH_ACTOR_PREFIX: Final = "paceline-health-"


class Settings(BaseSettings):
    """`PACELINE_*` variables. `home` holds the database, tokens, logs and the record of what was started."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_")

    home: Path = Field(default_factory=lambda: Path.home() / ".paceline")
    database_url: str = ""
    """Empty: SQLite in `home`."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: the port of the last start, or a free one."""
    webhook_urls: str = ""
    """Who gets alerts: URLs, with blanks or commas between them."""
    webhook_secret: SecretStr = SecretStr("")
    """Signs what is sent to them: `paceline.sdk.webhook.verify`."""
    strangers: Literal["report", "evict"] = "report"
    """What is done with work that sits on a condemned device without a lease. Evicted work starts again elsewhere, if Ray may retry it."""
    xid_policy_file: Path | None = None
    """What this site makes of Xids: code,advice,why[,count,window_s]. Default: `xid_policy.csv` in `home`, if it is there."""
    rules_file: Path | None = None
    """The modes of rules at this site: rule_id,mode,reason. Default: `rules.csv` in `home`, if it is there."""

    @property
    def webhooks(self) -> tuple[Webhook, ...]:
        """Raises BadRequest for a URL that cannot be one, and where the secret is missing."""
        urls = dict.fromkeys(self.webhook_urls.replace(",", " ").split())
        return tuple(Webhook(url, self.webhook_secret.get_secret_value()) for url in urls)

    @property
    def xid_policy(self) -> str:
        """Text of the site's Xid policy for `health.catalog.load`; empty if it has none. Raises HostSetup if it cannot be read."""
        return _site_text(self.xid_policy_file, self.home / "xid_policy.csv")

    @property
    def site_rules(self) -> str:
        """Text of the site's modes for `health.rules.load`; empty if it has none. Raises HostSetup if it cannot be read."""
        return _site_text(self.rules_file, self.home / "rules.csv")

    def check(self) -> None:
        """Raises PacelineError, with what to do, for a site file or a webhook that the server could not work with."""
        rules.load(self.site_rules)
        catalog.load(self.xid_policy)
        _ = self.webhooks

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'paceline.db'}"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def server_file(self) -> Path:
        return self.home / "server.json"

    @property
    def agent_token_file(self) -> Path:
        return self.home / "agent_token"


def _site_text(named: Path | None, usual: Path) -> str:
    """A file that was named must be there; the usual one may be."""
    path = named or usual
    try:
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        if named is None:
            return ""
        raise HostSetup("PL-HOST-030", f"{path} does not exist", "make it, or name no file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise HostSetup("PL-HOST-030", f"{path} cannot be read: {error}", "it must be a text file in UTF-8") from error


def write_private(path: Path, text: str) -> None:
    """Write a secret: never readable by others, not even for a moment, and never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
