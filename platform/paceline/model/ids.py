"""Identities. A NewType each, so that one kind of id is never passed for another."""

from typing import Final, NewType

HostName = NewType("HostName", str)
"""Stable name of a machine; survives a restart of its raylet."""
NodeId = NewType("NodeId", str)
"""Ray's id (hex) of one life of a raylet; a restarted raylet has a new one."""
DeviceUuid = NewType("DeviceUuid", str)
"""`GPU-…` or `MIG-…`, as NVML prints it. The identity of a device; its index is not."""
JobId = NewType("JobId", str)
"""Ray's submission id (`raysubmit_…`), or Ray's job id for a driver that was not submitted."""
AttemptId = NewType("AttemptId", str)
"""`<job id>/<run name>/<number from 1>`."""
LeaseId = NewType("LeaseId", str)
SessionId = NewType("SessionId", str)
EventId = NewType("EventId", int)
"""Position in the event log; grows with time. 0 means: no cause known."""

NO_CAUSE: Final = EventId(0)
