"""Which module may import which: a file imports only files of lower layers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fx_instrument

PACKAGE = Path(fx_instrument.__file__).parent

LAYERS = (
    "version",
    "errors",
    "writing",
    "clock",
    "sketch",
    "figures",
    "significance",
    "table",
    "facts",
    "field_types",
    "recording",
    "saving",
    "rows",
    "merging",
    "pairing",
    "time_budget",
    "head",
    "fact_columns",
    "roofline",
    "row_table",
    "choosing",
    "groups",
    "annotated_code",
    "stacks",
    "timeline",
    "chrome_trace",
    "speedscope",
    "collapsed",
    "tabular",
    "graphviz",
    "page_data",
    "page",
    "comparing",
    "report",
    "locks",
    "machine",
    "keeping",
    "budget",
    "schedule",
    "value_checks",
    "arguments",
    "marks",
    "function_modes",
    "soundness",
    "places",
    "snapshot",
    "preserving",
    "freezing",
    "guards",
    "closing",
    "proxies",
    "real_calls",
    "watcher",
    "reads",
    "tracer",
    "capture",
    "torch_calls",
    "recording_watcher",
    "values",
    "call_guards",
    "tape_modes",
    "tape",
    "recorder",
    "packing",
    "splitting",
    "codegen",
    "insertion",
    "untimed_code",
    "options",
    "variants",
    "frame_calls",
    "sites",
    "plans",
    "resuming",
    "frames",
    "tree",
    "extents",
    "counting",
    "annotating",
    "last_call",
    "aborting",
    "module",
    "profiling",
    "slowdown",
    "__init__",
    "command_line",
    "cli_showing",
    "cli_files",
    "cli",
    "__main__",
)

MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))

SHOWING = (
    "sketch",
    "figures",
    "significance",
    "table",
    "facts",
    "field_types",
    "recording",
    "saving",
    "rows",
    "merging",
    "pairing",
    "time_budget",
    "head",
    "fact_columns",
    "roofline",
    "row_table",
    "choosing",
    "groups",
    "annotated_code",
    "stacks",
    "timeline",
    "chrome_trace",
    "speedscope",
    "collapsed",
    "tabular",
    "graphviz",
    "page_data",
    "page",
    "comparing",
    "report",
)
CAPTURING = LAYERS[LAYERS.index("arguments") : LAYERS.index("recorder")]


def imports_of(module: str) -> tuple[set[str], set[str]]:
    """Return the modules of the package, and the others, that ``module`` imports anywhere."""
    siblings: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, f"{module}.py, line {node.lineno}: leaves the package"
            source = ".".join(filter(None, ["fx_instrument" * node.level, node.module]))
            names = [source]
            if source == "fx_instrument":
                names = [
                    f"{source}.{alias.name}" if alias.name in MODULES else source
                    for alias in node.names
                ]
        for name in names:
            top, _, rest = name.partition(".")
            if top == "fx_instrument":
                siblings.add(rest.partition(".")[0] or "__init__")
            else:
                others.add(top)
    return siblings, others


def test_every_module_has_a_layer() -> None:
    assert sorted(LAYERS) == MODULES


@pytest.mark.parametrize("module", LAYERS)
def test_module_imports_only_lower_layers(module: str) -> None:
    siblings, _ = imports_of(module)
    assert siblings <= set(LAYERS[: LAYERS.index(module)])


@pytest.mark.parametrize("module", [name for name in LAYERS if name != "__main__"])
def test_nothing_imports_the_command_line(module: str) -> None:
    siblings, _ = imports_of(module)
    assert "cli" not in siblings


@pytest.mark.parametrize("module", [name for name in LAYERS if name != "cli"])
def test_only_the_command_line_imports_torchvision(module: str) -> None:
    _, others = imports_of(module)
    assert "torchvision" not in others


@pytest.mark.parametrize("module", SHOWING)
def test_what_shows_figures_knows_nothing_of_torch(module: str) -> None:
    siblings, others = imports_of(module)
    assert "torch" not in others
    assert siblings <= {"version", "errors", "writing", "clock", *SHOWING}


@pytest.mark.parametrize("module", CAPTURING)
def test_capture_knows_nothing_of_clocks_and_reports(module: str) -> None:
    siblings, _ = imports_of(module)
    assert siblings <= {"errors", "recording", "locks", "value_checks", *CAPTURING}


@pytest.mark.parametrize("module", ["recorder", "packing", "splitting", "codegen", "insertion"])
def test_insertion_knows_nothing_of_capture_and_reports(module: str) -> None:
    siblings, _ = imports_of(module)
    assert siblings <= {
        "clock", "keeping", "locks", "sketch", "recorder", "packing", "splitting", "codegen",
        "value_checks"
    }  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_called_like_a_standard_one(module: str) -> None:
    assert module not in sys.stdlib_module_names - {"__main__"}
    assert module not in ("utils", "helpers", "common")


def test_importing_the_package_imports_no_torchvision() -> None:
    code = "import sys, fx_instrument; print([m for m in sys.modules if 'torchvision' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
    assert done.stderr == ""
