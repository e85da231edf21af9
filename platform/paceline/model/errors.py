"""Every error that Paceline raises on purpose.

PacelineError            code, retryable, hint; all survive pickling (Ray moves them between processes)
├── BadRequest           PL-REQ-…    the input cannot be right                     exit 2
├── NotFound             PL-FIND-…   no such thing                                 exit 3
├── Refused              PL-AUTH-…   not allowed                                   exit 4
├── Infeasible           PL-PLACE-…  no gang can be formed                         exit 5
├── RunFailed            PL-RUN-…    the job or the step of a run failed           exit 6
├── TimedOut             PL-TIME-…   a deadline passed                             exit 7
├── Unreachable          PL-NET-…    the server or the Ray cluster does not answer exit 8
├── Conflict             PL-REV-…    the snapshot has moved on: plan again         exit 6
└── HostSetup            PL-HOST-…   this machine lacks something                  exit 6
"""

from typing import ClassVar, Self


class PacelineError(Exception):
    """Says what happened and why (`message`), what to do (`hint`) and a `code` to look up."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint)
        self.code = code
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str]]:
        return type(self), (self.code, self.message, self.hint)

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f"\n  {self.hint}" if self.hint else "")


class BadRequest(PacelineError):
    exit_code = 2
    http_status = 422


class NotFound(PacelineError):
    exit_code = 3
    http_status = 404


class Refused(PacelineError):
    exit_code = 4
    http_status = 401


class Infeasible(PacelineError):
    exit_code = 5
    http_status = 409


class RunFailed(PacelineError):
    exit_code = 6
    http_status = 500


class TimedOut(PacelineError):
    exit_code = 7
    http_status = 504
    retryable = True


class Unreachable(PacelineError):
    exit_code = 8
    http_status = 503
    retryable = True


class Conflict(PacelineError):
    exit_code = 6
    http_status = 409
    retryable = True


class HostSetup(PacelineError):
    exit_code = 6
    http_status = 500


BY_NAME: dict[str, type[PacelineError]] = {
    cls.__name__: cls
    for cls in (BadRequest, NotFound, Refused, Infeasible, RunFailed, TimedOut, Unreachable, Conflict, HostSetup)
}
"""Error class by its name, to build the error again on the other side of HTTP."""
