"""Options that several commands share."""

from typing import Annotated, Final

import typer

from paceline.cli.show import Output

DEADLINE_S: Final = 8.0
"""A server that restarts is back in 5 s; who waits at a terminal is told sooner than a program is."""

AddressOption = Annotated[str | None, typer.Option("--address", envvar="PACELINE_ADDRESS", help="URL of the server")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="wide: all columns; json: for programs")]
ReasonOption = Annotated[str, typer.Option("--reason", help="why; kept in the history")]
DeviceName = Annotated[str, typer.Argument(metavar="DEVICE", help="uuid, the beginning of one, or HOST/INDEX")]
HostName = Annotated[str, typer.Argument(metavar="NODE", help="name of a host")]
PlaceName = Annotated[
    str, typer.Argument(metavar="NODE|DEVICE", help="name of a host; or a device, as uuid or HOST/INDEX")
]
