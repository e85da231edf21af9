"""Which GPU this process was given: Ray's index and NVML's UUID."""

from collections.abc import Sequence
from threading import Thread
from typing import Final

NVML_DEADLINE_S: Final = 3.0
"""NVML can hang on a sick GPU; a replica then starts without knowing its UUID."""


def held_device(gpu_ids: Sequence[int | str]) -> tuple[str, str]:
    """(index, UUID) of the first GPU, "" for what is not known. `gpu_ids` is what `ray.get_gpu_ids()` says."""
    if not gpu_ids:
        return "", ""
    index = str(gpu_ids[0])
    found: list[str] = []
    asking = Thread(target=lambda: found.append(_uuid(index)), name="nvml", daemon=True)
    asking.start()
    asking.join(NVML_DEADLINE_S)
    return index, "".join(found)


def _uuid(index: str) -> str:
    """`GPU-…`/`MIG-…` ids are UUIDs already; an index is asked of NVML, whose order Ray uses."""
    if not index.isdigit():
        return index
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(int(index))))
    except pynvml.NVMLError:
        return ""
