"""The documentation: its code runs, and what it shows is what is printed.

Code blocks are run in order, each page with names and a directory of its own:

* ``python`` is run, or with ``:caption: name.py`` written to a file of that name;
* ``console`` is commands behind ``$``, each followed by what it prints, if that is shown;
* the first ``text`` after one of these is what was printed, unless that is shown already. Figures
  may differ, and so may how many there are in a line. A line ``...`` stands for any lines, and a
  comment ``.. only its first line`` before the block leaves all but the head of a table open, as
  the order of the rows in it depends on the machine;
* ``bash`` is for the reader's machine, and is not run here.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import linecache
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import fx_instrument
from fx_instrument import cli
from fx_instrument.comparing import COMPARED_COLUMNS
from fx_instrument.fact_columns import FACT_COLUMNS
from fx_instrument.groups import GROUP_KEYS
from fx_instrument.roofline import RATE_COLUMNS
from fx_instrument.row_table import TABLE_COLUMNS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.rst", *sorted(DOCS.glob("*.rst"))]


class Block(NamedTuple):
    """A code block of a page."""

    language: str
    caption: str
    is_head_only: bool
    text: str
    line: int


def blocks_of(page: str) -> Iterator[Block]:
    """Give the code blocks of a page, in their order."""
    pattern = re.compile(
        r"(?P<open>^\.\. only its first line\n\n)?"
        r"^\.\. code-block:: (?P<language>\w+)\n(?P<options>(?: +:\w+:.*\n)*)\n"
        r"(?P<text>(?: +.*\n|\n)+)",
        flags=re.MULTILINE,
    )
    for found in pattern.finditer(page):
        caption = re.search(r":caption: (\S+)", found["options"])
        yield Block(
            found["language"],
            caption[1] if caption else "",
            found["open"] is not None,
            textwrap.dedent(found["text"]).strip("\n"),
            page.count("\n", 0, found.start("text")) + 1,
        )


def lines_without_figures(text: str) -> list[str]:
    """Return the lines of ``text``, of which those that differ in figures alone are the same."""
    lines = []
    for line in text.splitlines():
        line = re.sub(r"\b(torch|Python) \d[^\s,]*", r"\1 N", line)
        # What a column is made of, then units that depend on the speed of the machine.
        line = re.sub(r"(?<![\w.])[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?(?![\w])", "N", line)
        line = re.sub(r"\bN (ns|us|ms|s)\b", "N s", line)
        line = re.sub(r"\((ns|us|ms|s)\)", "(s)", line)
        line = re.sub(r"\bN( N)+\b", "N", re.sub(r"\s+", " ", line))
        lines.append(re.sub(r"-{2,}( -{2,})*", "--", line).strip())
    while lines and not lines[-1]:
        lines.pop()
    return lines


def is_shown(expected: Sequence[str], actual: Sequence[str]) -> bool:
    """Whether lines are those expected, of which ``...`` stands for any number of lines."""
    if not expected:
        return not actual
    if expected[0] == "...":
        return any(is_shown(expected[1:], actual[place:]) for place in range(len(actual) + 1))
    return actual[:1] == expected[:1] and is_shown(expected[1:], actual[1:])


def check_shown(shown: str, printed: str, is_head_only: bool) -> None:
    """Check that ``printed`` is what a page shows."""
    expected, actual = lines_without_figures(shown), lines_without_figures(printed)
    if is_head_only:
        expected, actual = expected[:1], actual[:1]
    assert is_shown(expected, actual), f"shown:\n{shown}\n\nprinted:\n{printed}"


class Page:
    """Runs the code of a page in the working directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = types.ModuleType(f"code_of_{path.stem.lower()}")
        sys.modules[self.module.__name__] = self.module
        self.printed: str | None = None

    def run(self, block: Block) -> None:
        if block.language == "python" and block.caption:
            Path(block.caption).write_text(f"{block.text}\n", encoding="utf-8")
            # Python may know already that there is no such file.
            linecache.checkcache()
            importlib.invalidate_caches()
        elif block.language == "python":
            self.printed = self._python(block)
        elif block.language == "console":
            self._console(block)
        elif block.language == "text" and self.printed is not None:
            check_shown(block.text, self.printed, block.is_head_only)
            self.printed = None

    def _python(self, block: Block) -> str:
        # A file of its own, for what asks for the source of a class.
        file = Path(f"{self.path.stem}_line_{block.line}.py").absolute()
        file.write_text(f"{block.text}\n", encoding="utf-8")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(f"{block.text}\n", file, "exec"), self.module.__dict__)
        return printed.getvalue()

    def _console(self, block: Block) -> None:
        parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
        assert parts[0] == "", f"line {block.line}: a console block begins with a command"
        for part in parts[1:]:
            command, _, shown = part.replace("\\\n", "").partition("\n")
            self.printed = run_command(command)
            if shown.strip():
                check_shown(shown, self.printed, block.is_head_only)
                self.printed = None


def run_command(command: str) -> str:
    """Run a command that a page shows, and return what it prints.

    ``; echo $?`` behind it adds its exit status, which is otherwise 0.
    """
    command, _, echo = command.partition(";")
    program, *arguments = shlex.split(command)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if program == "fx-instrument":
            status = cli.main(arguments)
        elif program == "torchrun":
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", *arguments],
                capture_output=True,
                text=True,
                timeout=120,
            )
            print(done.stdout, end="")
            status = done.returncode
            assert status == 0, done.stderr
        else:
            assert program == "python", command
            status = run_script(arguments)
    if echo:
        assert echo.strip() == "echo $?"
        return f"{printed.getvalue()}{status}\n"
    assert status == 0, f"{command}: status {status}\n{printed.getvalue()}"
    return printed.getvalue()


def run_script(arguments: list[str]) -> int:
    path = arguments[0] if Path(arguments[0]).exists() else str(ROOT / arguments[0])
    before = sys.argv
    sys.argv = [path, *arguments[1:]]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = before
    return 0


@pytest.fixture
def page_directory(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A working directory that is found by imports, one thread, and random numbers of one seed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Another test may have left a module of the same name as one that the page writes.
    temporary = str(tmp_path_factory.getbasetemp())
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(temporary):
            monkeypatch.delitem(sys.modules, name)
    num_threads = torch.get_num_threads()
    modules_before = {*sys.modules}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        yield tmp_path
    finally:
        torch.set_num_threads(num_threads)
        for name in {*sys.modules} - modules_before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(tmp_path)) or name.startswith("code_of_"):
                del sys.modules[name]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_code_of_a_page_runs_and_prints_what_it_shows(path: Path, page_directory: Path) -> None:
    page = Page(path)
    for block in blocks_of(path.read_text(encoding="utf-8")):
        print(f"{path.name}, line {block.line}")  # pytest shows it where something fails
        page.run(block)


@pytest.mark.parametrize(("shown", "printed"), [
    ("a 1 ms\nb  2", "a 0.5 us\nb 30"), ("a\n...\nc", "a\nb\nb\nc\n"), ("a\n...", "a\n"),
    ("x 1e-05  torch 2.6\n---  --", "x 3 torch 2.14.1+cpu\n-----  ------"),
])  # fmt: skip
def test_what_differs_in_figures_alone_is_as_shown(shown: str, printed: str) -> None:
    check_shown(shown, printed, is_head_only=False)


@pytest.mark.parametrize(("shown", "printed"), [
    ("a 1", "b 1"), ("a 1", "a unknown"), ("a", "a\nb"), ("a\nb", "a"), ("a\n...\nc", "a\nb"),
    ("conv1 1", "conv2 1"),
])  # fmt: skip
def test_what_differs_in_words_is_not_as_shown(shown: str, printed: str) -> None:
    with pytest.raises(AssertionError, match="printed:"):
        check_shown(shown, printed, is_head_only=False)


def test_every_public_name_is_in_the_reference() -> None:
    reference = (DOCS / "api.rst").read_text(encoding="utf-8")
    named = re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)$", reference, flags=re.MULTILINE)
    errors = {*fx_instrument.errors.__all__}
    assert sorted({*named} | errors) == sorted(fx_instrument.__all__)
    assert len(named) == len({*named})


def group_columns() -> dict[str, str]:
    """Return the columns of ``by()``, for all of its keys, with what stands above them."""
    model = fx_instrument.instrument(torch.nn.ReLU())
    model(torch.ones(2))
    tables = [model.report().by(key) for key in GROUP_KEYS]
    return {
        key: header
        for table in tables
        for key, header in zip(table.columns, table.headers, strict=True)
    }


SECTIONS = {
    "table()": {**TABLE_COLUMNS, **FACT_COLUMNS, **RATE_COLUMNS},
    "by()": group_columns(),
    "compare()": COMPARED_COLUMNS,
}


def columns_in(section: str) -> dict[str, tuple[str, str]]:
    """Return what stands above each column in a section of the page, and what is said of it."""
    page = (DOCS / "columns.rst").read_text(encoding="utf-8")
    sections = re.split(r"^\.\. columns of (\S+)\n", page, flags=re.MULTILINE)
    text = sections[sections.index(section) + 1]
    terms = re.split(r"^``(\w+)``: (.+)\n", text, flags=re.MULTILINE)[1:]
    return {
        key: (header, described)
        for key, header, described in zip(terms[::3], terms[1::3], terms[2::3], strict=True)
    }


@pytest.mark.parametrize("section", SECTIONS)
def test_every_column_is_defined(section: str) -> None:
    found = columns_in(section)
    assert {key: header for key, (header, _) in found.items()} == SECTIONS[section]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_column_has_a_unit_a_formula_a_source_and_what_is_unknown(section: str) -> None:
    for key, (_, described) in columns_in(section).items():
        fields = re.findall(r"^    :(\w+): \S", described, flags=re.MULTILINE)
        assert fields == ["Unit", "Formula", "Source", "Unknown"], key
