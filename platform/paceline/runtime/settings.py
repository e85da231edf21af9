"""Where this installation lives and how it is reached. One place reads the environment."""

import os
from pathlib import Path
from typing import Final

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

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


def write_private(path: Path, text: str) -> None:
    """Write a secret: never readable by others, not even for a moment, and never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
