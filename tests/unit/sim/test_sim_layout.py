"""The Python and the C view of the state file are one layout."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from paceline.sim import layout
from paceline.sim.build import sources

COMPILER = shutil.which("gcc") or shutil.which("cc")


def c_program() -> str:
    lines = []
    for name, structure in layout.ALL.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field, *_ in structure._fields_:
            size = f"sizeof(((struct {name} *)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), {size});')
    lines.append('printf("constants %llx %u\\n", (unsigned long long)PLS_MAGIC, PLS_VERSION);')
    return (
        '#include <stddef.h>\n#include <stdio.h>\n#include "nvml_state.h"\nint main(void) {\n'
        + "\n".join(lines)
        + "\nreturn 0;}\n"
    )


def python_view() -> list[str]:
    lines = []
    for name, structure in layout.ALL.items():
        lines.append(f"{name} {ctypes.sizeof(structure)}")
        for field, *_ in structure._fields_:
            place = getattr(structure, field)
            lines.append(f"{name}.{field} {place.offset} {place.size}")
    lines.append(f"constants {layout.MAGIC:x} {layout.VERSION}")
    return lines


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_every_field_lies_where_the_c_header_puts_it(tmp_path: Path) -> None:
    assert COMPILER is not None
    (tmp_path / "layout.c").write_text(c_program())
    include = f"-I{sources()[0].parent}"
    subprocess.run([COMPILER, include, "-o", str(tmp_path / "layout"), str(tmp_path / "layout.c")], check=True)
    seen = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    assert seen.splitlines() == python_view()


def test_live_words_are_aligned() -> None:
    # Atomic operations on them need it: fault.hang_until_ns, device.calls, state.events, event.number.
    live = [
        (layout.Fault, "hang_until_ns"),
        (layout.Device, "calls"),
        (layout.State, "events"),
        (layout.Event, "number"),
    ]
    for structure, field in live:
        assert getattr(structure, field).offset % 8 == 0
        assert ctypes.sizeof(structure) % 8 == 0
