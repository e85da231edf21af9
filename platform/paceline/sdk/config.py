"""Which server, and with which token: arguments, then the environment, then the files that `paceline up` leaves in PACELINE_HOME."""

import json
import os
import stat
from pathlib import Path

from paceline.model.errors import HostSetup, Refused

_START = "start one with `paceline up`, or name one: --address, PACELINE_ADDRESS"


def home() -> Path:
    return Path(os.environ.get("PACELINE_HOME") or Path.home() / ".paceline")


def find_address(given: str | None) -> str:
    """URL of the server, without a slash at its end. Raises HostSetup if none is named anywhere."""
    address = given or os.environ.get("PACELINE_ADDRESS") or _running()
    if "://" not in address:
        address = f"http://{address}"
    return address.rstrip("/")


def _running() -> str:
    file = home() / "server.json"
    try:
        return str(json.loads(file.read_text())["url"])
    except FileNotFoundError:
        raise HostSetup("PL-HOST-020", f"no Paceline server is known here: {file} does not exist", _START) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostSetup("PL-HOST-020", f"{file} cannot be read: {error}", _START) from error


def find_token(given: str | None) -> str:
    """The bearer token. A file that others can read is refused: its secret may be known already."""
    if given is not None:
        return given
    from_environment = os.environ.get("PACELINE_TOKEN")
    if from_environment:
        return from_environment
    file = home() / "token"
    try:
        mode = file.stat().st_mode
        token = file.read_text().strip()
    except FileNotFoundError:
        return ""  # the server will say what is missing, unless the question is open to all
    except OSError as error:
        raise HostSetup(
            "PL-HOST-021", f"the token file {file} cannot be read: {error}", "set PACELINE_TOKEN"
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Refused(
            "PL-AUTH-003",
            f"others may read the token file {file} (mode {stat.S_IMODE(mode):04o})",
            f"chmod 600 {file}, and ask for a new token if it may have been seen",
        )
    return token
