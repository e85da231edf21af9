"""Style rules that matter, as tests: small files, short functions, no path of a machine, no error swallowed, no sleep in a test."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = sorted((ROOT / "platform").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILE_LINES = 420
FUNCTION_LINES = 60


def tracked() -> list[Path]:
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in out.splitlines() if (ROOT / line).is_file()]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", PRODUCT, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_reader_holds_a_file_in_the_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES
    long = [
        f"{f.name}: {f.end_lineno - f.lineno + 1}"
        for f in functions(path)
        if f.end_lineno and f.end_lineno - f.lineno >= FUNCTION_LINES
    ]
    assert not long


@pytest.mark.parametrize(
    "path", [p for p in PRODUCT if "__init__" not in p.name], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_no_error_is_swallowed() -> None:
    swallowed = re.compile(r"except (Exception|BaseException)?[^\n]*:\s*\n?\s*pass\b")
    assert [p.name for p in PRODUCT if swallowed.search(p.read_text())] == []


def test_tests_wait_for_conditions_and_do_not_sleep() -> None:
    """Programs that a test starts may sleep: they stand for what hangs."""
    allowed = {"waiting.py"}  # the one place that waits, with a deadline

    def sleeps(path: Path) -> bool:
        calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        return any(isinstance(call, ast.Attribute) and call.attr == "sleep" for call in calls)

    assert [p.name for p in TESTS if p.name not in allowed and sleeps(p)] == []


def test_nothing_names_this_machine() -> None:
    secret_or_path = re.compile(r"(/work/|/root/|/home/[a-z]|BEGIN [A-Z ]*PRIVATE KEY)")
    texts = [
        p
        for p in tracked()
        if p.suffix in {".py", ".md", ".toml", ".c", ".h", ".html", ".sh", ".yml", ""} and p != Path(__file__)
    ]
    assert [p.relative_to(ROOT).as_posix() for p in texts if secret_or_path.search(p.read_text(errors="replace"))] == []
