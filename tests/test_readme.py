"""The README: its example runs, and what it shows is what the program prints."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

import fx_instrument
from fx_instrument.cli import make_parser
from fx_instrument.row_table import COLUMNS

README = (Path(__file__).parent.parent / "README.rst").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the contents of the code blocks of one language."""
    found = re.findall(
        rf"^\.\. code-block:: {language}\n\n((?: +.*\n|\n)+)", README, flags=re.MULTILINE
    )
    return [textwrap.dedent(block) for block in found]


def test_library_examples_run_and_print_tables(capsys: pytest.CaptureFixture[str]) -> None:
    examples = blocks("python")
    names: dict[str, object] = {}
    for example in examples:
        assert len(example.strip().splitlines()) <= 10
        exec(example, names)
        printed = capsys.readouterr().out
        assert all(column in printed for column in COLUMNS)
    report = names["report"]
    assert isinstance(report, fx_instrument.Report)
    assert (report.node_ns.sum(axis=1) == report.total_ns).all()


def test_shown_table_has_the_columns_of_the_real_one() -> None:
    shown = blocks("text")[0].splitlines()
    headings = next(line for line in shown if line.startswith("Op type"))
    assert tuple(re.split(r"\s{2,}", headings.strip())) == COLUMNS


def test_every_column_is_defined() -> None:
    for column in COLUMNS:
        assert re.search(rf"^``{re.escape(column)}``\n +\S", README, flags=re.MULTILINE), column


def test_options_that_it_names_exist() -> None:
    known = make_parser().format_help()
    commands = [line for line in README.splitlines() if "fx-instrument" in line]
    for option in re.findall(r"(?<=\s)--[a-z-]+", "\n".join(commands)):
        assert option in known, option


def test_commands_install_from_the_checkout_in_one_line_each() -> None:
    commands = [block.strip() for block in blocks("bash")]
    first, second = commands[:2]
    assert "\n" not in first + second
    assert first.endswith("fx-instrument")
    assert "pip install ." in first
    assert ".[test]" in second
    assert second.endswith("pytest -n 2")
