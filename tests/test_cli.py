"""The command: what it prints, where, and with which exit status."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tabulate import tabulate_formats

import fx_instrument
from fx_instrument.cli import main
from fx_instrument.row_table import COLUMNS

NET = """
import random

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.last = nn.Linear(width, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 3)

    def forward(self, ids, mask):
        return self.table(ids) * mask.unsqueeze(-1)


class NoInput(nn.Module):
    def forward(self):
        return torch.ones(2)


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class Draws(nn.Module):
    def forward(self, x):
        if random.random() < 1:
            return x
        return -x


class BadView(nn.Module):
    def forward(self, x):
        return x.view(7, 7)


class Dropped(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, training=self.training) if self.training else x


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        for _ in range(3):
            yield self.layer(x)


def drawn():
    print("drawn", torch.randn(3).tolist())
    return Net()


def threads():
    print("threads", torch.get_num_threads())
    return Net()


def broken():
    raise RuntimeError("no luck\\nwith a second line")


def leaves():
    raise SystemExit(3)


def scripted():
    return torch.jit.trace(Net(), torch.ones(1, 3))


def number():
    return 3


NUMBER = 3
built = Net()
"""

COMMAND = [sys.executable, "-m", "fx_instrument"]

SMALL = ["--input", "2,3", "--runs", "2", "--warmup", "0"]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with ``net.py``, and a package ``box`` that has the same in it."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "__init__.py").touch()
    (tmp_path / "box" / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    # A test must not find what another one has imported.
    for name in [name for name in sys.modules if name.split(".")[0] in ("net", "box")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def environment() -> dict[str, str]:
    """Return the environment in which a subprocess finds the package that is tested."""
    return {**os.environ, "PYTHONPATH": str(Path(fx_instrument.__file__).parents[1])}


def command(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the command with pipes for its output."""
    return subprocess.run(
        [*COMMAND, *args],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
    )


def table_rows(printed: str) -> list[list[str]]:
    """Return the cells of the rows below the rule of a table in the simple format."""
    lines = printed.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    return [line.split() for line in lines[rule + 1 :]]


def test_resnet18_by_name_prints_the_headline_and_the_longest_rows_first() -> None:
    done = command("resnet18", "--input", "1,3,32,32", "--runs", "3", "--threads", "1")
    assert done.returncode == 0
    assert done.stderr == ""
    headline, clock, blank, headings = done.stdout.splitlines()[:4]
    assert clock.startswith("clock wall, ")
    assert blank == ""
    assert re.fullmatch(
        rf"resnet18, evaluation mode, input 1x3x32x32, torch {re.escape(torch.__version__)}, "
        r"1 thread, 3 runs, mean total [\d.]+ (ms|us), standard deviation [\d.]+ (ms|us), "
        r"slowdown by timing [\d.]+ \[[\d.]+, [\d.]+\]",
        headline,
    )
    assert tuple(re.split(r"\s{2,}", headings.strip())) == COLUMNS
    rows = table_rows(done.stdout)
    assert len(rows) == 71
    seconds = [float(row[2]) for row in rows]
    assert seconds == sorted(seconds, reverse=True)
    assert sum(float(row[3]) for row in rows) == pytest.approx(100, abs=0.01)
    assert {"conv1", "layer4_1_bn2", "fc"} <= {row[1] for row in rows}


def test_no_argument_means_resnet18_on_five_images_and_twenty_runs() -> None:
    done = command("--top", "1", "--warmup", "0", "--no-slowdown")
    assert done.returncode == 0
    assert done.stdout.startswith("resnet18, evaluation mode, input 5x3x224x224, torch ")
    assert ", 20 runs, mean total " in done.stdout.splitlines()[0]
    assert len(table_rows(done.stdout)) == 1


@pytest.mark.parametrize("model", ["net.py:Net", "box.net:Net", "box/net.py:Net", "net.py:built"])
def test_model_of_the_users_own_runs(
    model: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([model, *SMALL, "--no-sort"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith(f"{model}, evaluation mode, input 2x3, ")
    assert [row[:2] for row in table_rows(printed.out)] == [
        ["placeholder", "x"],
        ["call_module", "first"],
        ["call_function", "relu"],
        ["call_module", "last"],
        ["output", "output"],
    ]


def test_working_directory_is_searched_by_the_installed_script_too(workplace: Path) -> None:
    # The script has its own directory, not the working directory, first on sys.path.
    code = (
        "import sys; sys.path.pop(0); from fx_instrument.cli import main; raise SystemExit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "box.net:Net", *SMALL],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_kwargs_build_the_model(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["net.py:Net", *SMALL, "--kwargs", '{"width": 8}']) == 0
    assert main(["net.py:Net", *SMALL, "--kwargs", '{"wide": 8}']) == 1
    error = capsys.readouterr().err
    # Newer Pythons go on with a suggestion.
    assert error.startswith(
        "fx-instrument: error: building net.py:Net failed: TypeError: Net.__init__() got an "
        "unexpected keyword argument 'wide'"
    )
    assert error.endswith("\n--verbose shows the traceback\n")
    assert error.count("\n") == 2


def test_inputs_of_several_dtypes(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "net.py:Embed",
                "--input",
                "2,5:int64",
                "--input",
                "2,5:bool",
                "--runs",
                "1",
                "--no-slowdown",
            ]
        )
        == 0
    )
    headline = capsys.readouterr().out.splitlines()[0]
    assert ", input 2x5 int64 and 2x5 bool, " in headline
    assert headline.endswith(", standard deviation unknown")


def test_model_without_arguments_needs_no_input(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["net.py:NoInput", "--runs", "2"]) == 0
    assert ", no input, " in capsys.readouterr().out


def test_train_runs_in_training_mode(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["net.py:Dropped", *SMALL, "--no-sort"]) == 0
    assert main(["net.py:Dropped", *SMALL, "--no-sort", "--train"]) == 0
    evaluation, training = capsys.readouterr().out.split("net.py:Dropped, ")[1:]
    assert evaluation.startswith("evaluation mode")
    assert training.startswith("training mode")
    assert [row[1] for row in table_rows(evaluation)] == ["x", "output"]
    assert [row[1] for row in table_rows(training)] == ["x", "dropout", "output"]


def test_seed_repeats_the_random_numbers_and_another_changes_them(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = []
    for seed in ("7", "7", "8"):
        assert main(["net.py:drawn", *SMALL, "--seed", seed]) == 0
        drawn.append(capsys.readouterr().out.splitlines()[0])
    assert drawn[0] == drawn[1] != drawn[2]


def test_threads_are_set_and_given_back(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_num_threads()
    state = torch.get_rng_state()
    assert main(["net.py:threads", *SMALL, "--threads", "3"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("threads 3\n")
    assert ", 3 threads, " in printed
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_top_shows_the_first_rows_of_the_order_asked_for(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["net.py:Net", *SMALL, "--no-sort", "--top", "2"]) == 0
    assert [row[1] for row in table_rows(capsys.readouterr().out)] == ["x", "first"]


def test_warmup_runs_do_not_count(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["net.py:Net", "--input", "2,3", "--runs", "2", "--warmup", "5"]) == 0
    assert ", 2 runs, " in capsys.readouterr().out


@pytest.mark.parametrize("tablefmt", tabulate_formats)
def test_every_format_of_tabulate(
    tablefmt: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["net.py:Net", *SMALL, "--format", tablefmt]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert all(name in printed.out for name in ("first", "relu", "last"))


def test_formats_that_the_encoding_does_not_have_are_printed_all_the_same(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = command("net.py:Net", *SMALL, "--format", "fancy_grid")
    assert done.returncode == 0
    assert "first" in done.stdout


def test_output_file_holds_what_is_printed_otherwise(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(workplace.iterdir())
    assert main(["net.py:Net", *SMALL, "--output", "table.txt"]) == 0
    assert capsys.readouterr().out == ""
    text = (workplace / "table.txt").read_text()
    assert text.startswith("net.py:Net, evaluation mode, ")
    assert len(table_rows(text)) == 5
    after = {path for path in workplace.iterdir() if path.name != "__pycache__"}
    assert after - set(before) == {workplace / "table.txt"}


def test_output_follows_a_link_and_keeps_the_permissions(workplace: Path) -> None:
    (workplace / "real.txt").write_text("old")
    (workplace / "real.txt").chmod(0o640)
    (workplace / "link.txt").symlink_to("real.txt")
    assert main(["net.py:Net", *SMALL, "--output", "link.txt"]) == 0
    assert (workplace / "link.txt").is_symlink()
    assert (workplace / "real.txt").read_text().startswith("net.py:Net")
    assert (workplace / "real.txt").stat().st_mode & 0o777 == 0o640


def test_failing_model_leaves_the_output_file_as_it_was(workplace: Path) -> None:
    (workplace / "table.txt").write_text("old")
    before = {path.name for path in workplace.iterdir()} | {"__pycache__"}
    assert main(["net.py:BadView", *SMALL, "--output", "table.txt"]) == 1
    assert (workplace / "table.txt").read_text() == "old"
    assert {path.name for path in workplace.iterdir()} <= before


def test_full_disk_leaves_no_half_file(workplace: Path) -> None:
    # A limit on the size of files fails the write as a full disk does.
    code = (
        "import resource, signal, sys; from fx_instrument.cli import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "sys.dont_write_bytecode = True;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "raise SystemExit(main())"
    )
    (workplace / "table.txt").write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", code, "net.py:Net", *SMALL, "--output", "table.txt"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fx-instrument: error: cannot write 'table.txt': ")
    assert (workplace / "table.txt").read_text() == "old"
    assert not list(workplace.glob(".fx_instrument-*"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["resnet19"], "torchvision has no model 'resnet19'; did you mean resnet18, "),
        (["zzz"], "torchvision has no model 'zzz'\n"),
        (["net.py"], "expected package.module:callable or path/to/file.py:callable"),
        (["net.py:"], "expected package.module:callable or path/to/file.py:callable"),
        (["nofile.py:Net"], "there is no file 'nofile.py'"),
        (["nomodule:Net"], "there is no module 'nomodule'"),
        (["box.nomodule:Net"], "there is no module 'box.nomodule'"),
        (["net.py:Nett"], "net.py has no 'Nett'; did you mean Net?"),
        (["net.py:NUMBER"], "net.py:NUMBER is not a class or function but int"),
        (["net.py:number"], "net.py:number gave int, not a torch.nn.Module"),
        (["net.py:built", "--kwargs", '{"width": 8}'], "net.py:built is built already"),
        (["net.py:Net"], "net.py:Net needs an input"),
        (["--kwargs", "{bad"], "argument --kwargs: '{bad' is not JSON"),
        (["--kwargs", "[1]"], "argument --kwargs: expected a JSON object"),
        (["--input", "2,x"], "argument --input: expected whole numbers from 1"),
        (["--input", "0,3"], "argument --input: expected whole numbers from 1"),
        (["--input", ""], "argument --input: expected whole numbers from 1"),
        (["--input", "2:int65"], "argument --input: expected a dtype after the colon"),
        (["--runs", "0"], "argument --runs: expected a whole number of at least 1, got '0'"),
        (["--warmup", "-1"], "argument --warmup: expected a whole number of at least 0"),
        (["--threads", "0"], "argument --threads: expected a whole number from 1 to 1024"),
        (["--threads", "5000"], "argument --threads: expected a whole number from 1 to 1024"),
        (["--seed", "x"], "argument --seed: expected a whole number from 0 to"),
        (["--top", "0"], "argument --top: expected a whole number of at least 1"),
        (["--format", "gitub"], "argument --format: tabulate has no format 'gitub'; did you mean"),
        (["--nothing"], "unrecognized arguments: --nothing"),
        (["resnet18", "resnet34"], "unrecognized arguments: resnet34"),
        (["--output"], "argument --output: expected one argument"),
        (["--html", "a", "--trace", "./a"], "--html and --trace name the same file, 'a'"),
        (["--html", "a", "--save", "box/../a"], "--save and --html name the same file, 'a'"),
        (["net.py:Net", "--output", "box/../net.py"], "--output would replace 'net.py', which is"),
        (["--by", "clas"], "argument --by: rows are put together by one of module, class, op, "),
        (["--depth", "1"], "--depth needs --by module"),
        (["--by", "class", "--depth", "1"], "--depth needs --by module"),
        (["--by", "op", "--no-sort"], "--no-sort: groups of rows have no order of execution"),
        (["--by", "op", "--columns", "mean"], "--columns is for the table of rows"),
        (
            ["--by", "op", "--sort", "p90"],
            "argument --sort: the table by op is not sorted by 'p90'",
        ),
        (["--columns", "name,meen"], "argument --columns: there is no column 'meen'; did you mean"),
        (["--columns", "name,"], "argument --columns: there is no column ''; there are op, name,"),
        (["--columns", "cores"], "the column cores needs a report by two clocks"),
        (["--sort", "spread"], "the column spread needs a report merged from several"),
        (["--sort=meen"], "argument --sort: the table of rows is not sorted by 'meen'; did you"),
        (["resnet18", "--sort", "meen"], "argument --sort: the table of rows is not sorted by 'm"),
        (["--sort", "meen"], "torchvision has no model 'meen'\na model of your own is "),
        (["--where", "layer4"], "argument --where: expected KEY=GLOB with one of module, op, name"),
        (["--where", "colour=red"], "argument --where: expected KEY=GLOB with one of module, op, "),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_says_why(
    args: list[str], message: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"fx-instrument: error: {message}")
    assert len(printed.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--output", "no/such/table.txt"],
            "cannot write 'no/such/table.txt': No such file or directory",
        ),
        (["--output", "box"], "cannot write 'box': Is a directory"),
        (["--save", "no/such"], "cannot write 'no/such': No such file or directory"),
        (["--trace", "no/such"], "cannot write 'no/such': No such file or directory"),
        (["--speedscope", "no/such"], "cannot write 'no/such': No such file or directory"),
        (["--html", "no/such"], "cannot write 'no/such': No such file or directory"),
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_written_ends_with_1_before_the_model_runs(
    args: list[str], message: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [f"fx-instrument: error: {message}"]


BAD_FILES = {
    "raises.py": "raise ValueError('at import')",
    "syntax.py": "def f(:",
    "imports.py": "import no_such_thing",
    "exits.py": "raise SystemExit(4)",
}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["raises.py:f"], "importing raises.py failed: ValueError: at import"),
        (["syntax.py:f"], "importing syntax.py failed: SyntaxError: "),
        (["imports.py:f"], "importing imports.py failed: ModuleNotFoundError: No module named"),
        (["exits.py:f"], "importing exits.py failed: SystemExit: 4"),
        (["net.py:broken"], "building net.py:broken failed: RuntimeError: no luck\n"),
        (["net.py:leaves"], "building net.py:leaves failed: SystemExit: 3"),
        (["net.py:BadView", *SMALL], "running net.py:BadView failed: RuntimeError: shape '[7, 7]'"),
        (["net.py:Net", "--input", "2,4"], "running net.py:Net failed: RuntimeError: mat1 and "),
        (
            ["net.py:Net", "--input", "2,3", "--input", "2,3"],
            "instrumenting net.py:Net failed: TypeErr",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
# Making a ScriptModule is deprecated where the installed torch says so.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_failing_model_ends_with_1_and_shows_the_traceback_only_when_asked(
    args: list[str], message: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, source in BAD_FILES.items():
        (workplace / name).write_text(source)
    assert main(args) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"fx-instrument: error: {message}")
    assert len(printed.err.splitlines()) == 2
    assert printed.err.endswith("\n--verbose shows the traceback\n")

    assert main([*args, "--verbose"]) == 1
    verbose = capsys.readouterr().err
    assert verbose.startswith("Traceback (most recent call last):\n")
    assert verbose.splitlines()[-1].startswith("fx-instrument: error: ")


def test_what_stays_closed_is_named_with_the_place(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["net.py:Draws", *SMALL]) == 0
    printed = capsys.readouterr()
    line = NET.splitlines().index("        if random.random() < 1:") + 1
    assert table_rows(printed.out)[0][:2] == ["call_module", "Draws"]
    assert "it calls Random.random()" in printed.out + printed.err
    assert f'net.py", line {line}' in printed.out + printed.err


# Making a ScriptModule is deprecated where the installed torch says so.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_scripted_model_is_timed_as_a_whole(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["net.py:scripted", *SMALL]) == 0
    rows = table_rows(capsys.readouterr().out)
    assert [row[0] for row in rows[:1]] == ["call_module"]


@pytest.mark.parametrize(("option", "expected"), [("--help", "usage: "), ("--version", "fx-ins")])
def test_help_and_version_end_with_0(
    option: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out.startswith(expected)


def test_reader_that_closes_its_pipe_is_no_error(workplace: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "net.py:Net", *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_full_standard_output_ends_with_1(workplace: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "net.py:Net", *SMALL],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            timeout=120,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("fx-instrument: error: cannot write to standard output: ")
    assert len(done.stderr.splitlines()) == 1


def test_terminal_shows_a_progress_bar_and_an_interrupt_ends_it_with_one_line(
    workplace: Path,
) -> None:
    terminal, child_terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "net.py:Net", "--input", "2,3", "--runs", "100000000", "--output", "table.txt"],
        stderr=child_terminal,
        env=environment(),
        # A shell has those that it starts in the background ignore it, and so what these start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(child_terminal)
    shown = b""
    while b"of 100000003 runs" not in shown:
        shown += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    while chunk := _read_to_end(terminal):
        shown += chunk
    os.close(terminal)
    assert process.wait(timeout=60) == 130
    *_, last = shown.decode().replace("\r\n", "\n").split("\r")
    assert last == "fx-instrument: interrupted\n"
    assert not (workplace / "table.txt").exists()


def _read_to_end(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # What Linux answers once the other side is closed.
        return b""


def test_a_model_that_changes_directory_writes_where_it_was_told(workplace: Path) -> None:
    (workplace / "moves.py").write_text(
        "import os, tempfile\n"
        "from torch import nn\n"
        "def build():\n"
        "    os.chdir(tempfile.gettempdir())\n"
        "    return nn.Sequential(nn.ReLU())\n"
    )
    assert main(["moves.py:build", "--input", "2,3", "--runs", "1", "--output", "moved.txt"]) == 0
    assert "_0" in (workplace / "moved.txt").read_text()


def test_a_train_method_that_returns_nothing_is_no_trouble(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "quiet.py").write_text(
        "from torch import nn\n"
        "class Quiet(nn.Module):\n"
        "    def train(self, mode=True):\n"
        "        super().train(mode)\n"
        "    def forward(self, x):\n"
        "        return x * 2\n"
    )
    assert main(["quiet.py:Quiet", "--input", "2,3", "--runs", "1"]) == 0
    assert "mul" in capsys.readouterr().out


def test_closed_standard_output_is_a_failure(workplace: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m fx_instrument net.py:Net --input 2,3 >&-'],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fx-instrument: error: standard output is closed")


def test_steps_of_a_generator_are_made(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["net.py:Steps", *SMALL, "--no-slowdown", "--columns", "name,calls", "--no-sort"]) == 0
    )
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["layer", "6"] in rows
