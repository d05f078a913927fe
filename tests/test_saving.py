"""Files of recordings: what is written is what is read, and nothing else is ever read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import random
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import closed_toys
import numpy as np
import pytest
import torch
from torch import nn
from toys import Spender, ticking_clock

import fx_instrument
from fx_instrument import (
    DamagedFileError,
    FileAccessError,
    ForeignFileError,
    NewerFileError,
    Recording,
    Report,
    RowFacts,
    compare,
    instrument,
    load,
    merge,
)
from fx_instrument.facts import NO_FACTS
from fx_instrument.saving import FORMAT, VERSION, read_recording, write_recording
from fx_instrument.sketch import Sketch


class Encodes(nn.Module):
    """Has a method that runs its submodules, beside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + 1 if x.shape[0] > 1 else self.part(x)


def is_same(value: Any, other: Any) -> bool:
    """Whether two values are alike, bit for bit, nan and the types of containers included."""
    if isinstance(value, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and value.dtype == other.dtype
            and value.shape == other.shape
            and np.array_equal(value, other)
        )
    if isinstance(value, Sketch):
        return other is not None and is_same(value.arrays(), other.arrays())
    if dataclasses.is_dataclass(value):
        if type(value) is not type(other):
            return False
        names = [field.name for field in dataclasses.fields(value)]
        return all(is_same(getattr(value, name), getattr(other, name)) for name in names)
    if isinstance(value, dict):
        return [*value] == [*other] and all(is_same(value[key], other[key]) for key in value)
    if isinstance(value, (tuple, list)):
        same_type = type(value) is type(other)
        return same_type and len(value) == len(other) and all(map(is_same, value, other))
    if isinstance(value, float) and math.isnan(value):
        return math.isnan(other)
    return bool(value == other)


def chain(**options: Any) -> Report:
    model = instrument(nn.Sequential(Spender(3), Spender(5)), clock=ticking_clock, **options)
    for _ in range(4):
        model(torch.ones(2))
    return model.report()


def frames(**options: Any) -> Report:
    torch.manual_seed(1)
    inner = closed_toys.Frame(nn.Linear(3, 3), closed_toys.Double())
    loop = closed_toys.Loop(closed_toys.Double())
    model = instrument(nn.Sequential(inner, nn.ReLU(), loop), clock=ticking_clock, **options)
    for _ in range(5):
        model(torch.rand(2, 3) + 0.1)
    return model.report()


def aborted() -> Report:
    fails = closed_toys.Fails()
    model = instrument(nn.Sequential(nn.Linear(3, 3), fails), warmup=1)
    for error in (None, None, ZeroDivisionError(), None):
        fails.error = error
        with contextlib.suppress(ZeroDivisionError):
            model(torch.ones(2, 3))
    return model.report()


def two_clocks() -> Report:
    model = instrument(nn.Linear(3, 3), clock=("wall", "process"))
    for _ in range(3):
        model(torch.ones(1, 3))
    return model.report()


def several_graphs_and_methods() -> Report:
    model = instrument(Encodes())
    for size in (1, 2, 1, 3):
        model(torch.ones(size, 3))
    model.encode(torch.ones(2, 3))
    return model.report()


def only_methods() -> Report:
    model = instrument(Encodes())
    model.encode(torch.ones(2, 3))
    return model.report()


def with_facts() -> Report:
    recording = frames().recording
    facts = RowFacts(
        class_name="nets.Café",
        file="/tmp/日本語 net.py",
        line=7,
        shapes=((1, 3), ()),
        dtypes=("float32", "int64"),
        flops=2**70,
        has_all_flops=False,
    )
    environment = {
        **recording.environment,
        "nested": {"tuple": (1, (2.5, None)), "list": [1, "\ud800", float("-inf")], "": True},
    }
    return Report(
        dataclasses.replace(
            recording,
            facts=(facts, NO_FACTS, RowFacts(shapes=())),
            environment=environment,
            num_lost=3,
        )
    )


REPORTS: dict[str, Callable[[], Report]] = {
    "chain": chain,
    "newest": lambda: chain(keep=2, warmup=1),
    "sketch": lambda: chain(keep="sketch"),
    "frames": frames,
    "sketch_of_frames": lambda: frames(keep="sketch"),
    "aborted": aborted,
    "two_clocks": two_clocks,
    "several_graphs_and_methods": several_graphs_and_methods,
    "only_methods": only_methods,
    "with_facts": with_facts,
    "corrected": lambda: frames().corrected(),
    "merged": lambda: fx_instrument.merge([chain(), chain()]),
}


@pytest.mark.parametrize("name", REPORTS)
def test_all_of_a_report_survives_bit_for_bit(name: str, tmp_path: Path) -> None:
    report = REPORTS[name]()
    report.save(tmp_path / "a.json")
    loaded = load(tmp_path / "a.json")
    assert is_same(report.recording, loaded.recording)
    assert str(loaded) == str(report)
    assert loaded.table().to_dict() == report.table().to_dict()


def test_every_field_of_a_recording_is_in_some_of_these_reports() -> None:
    recordings = [make().recording for make in REPORTS.values()]
    for field in dataclasses.fields(Recording):
        if field.name in ("rows", "readings_ns", "has_run"):
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        assert any(not is_same(getattr(r, field.name), default) for r in recordings), field.name


def test_real_model_survives_with_names_and_a_path_of_any_text(tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    model = instrument(models.resnet18(weights=None).eval())
    with torch.inference_mode():
        for _ in range(2):
            model(torch.randn(1, 3, 32, 32))
    report = model.report()
    path = tmp_path / "модель 🔥.before"
    report.save(str(path))
    assert is_same(load(path).recording, report.recording)
    assert load(path).summary() == report.summary()


def test_readings_of_any_size_survive_and_wrap_as_they_did(tmp_path: Path) -> None:
    base = chain().recording
    limits = np.iinfo(np.int64)
    readings_ns = np.array([[limits.min, limits.max, 0], [10**18, 3, -(10**18)]])
    recording = dataclasses.replace(
        base, readings_ns=readings_ns, has_run=np.ones((2, len(base.rows)), np.bool_)
    )
    write_recording(recording, tmp_path / "a")
    assert is_same(read_recording(tmp_path / "a"), recording)


def test_what_all_runs_have_in_common_takes_no_memory_when_loaded(tmp_path: Path) -> None:
    chain().save(tmp_path / "a")
    assert load(tmp_path / "a").has_run.strides == (0, 0)


def test_same_report_gives_the_same_bytes(tmp_path: Path) -> None:
    report = frames()
    report.save(tmp_path / "a")
    report.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_numbers_of_runs_take_few_bytes(tmp_path: Path) -> None:
    steps = np.random.default_rng(0).integers(50_000, 60_000, (20_000, 3))
    steps[:, 0] += 10**15 + 10**6 * np.arange(20_000)
    base = chain().recording
    recording = dataclasses.replace(
        base,
        readings_ns=steps.cumsum(axis=1),
        has_run=np.broadcast_to(np.True_, (20_000, len(base.rows))),
    )
    write_recording(recording, tmp_path / "a")
    assert (tmp_path / "a").stat().st_size < 5 * steps.size
    assert is_same(read_recording(tmp_path / "a"), recording)


def test_file_is_read_by_numpy_and_json_as_the_format_says(tmp_path: Path) -> None:
    report = chain()
    report.save(tmp_path / "a.json")
    with np.load(tmp_path / "a.json", allow_pickle=False) as archive:
        head = json.loads(archive["head.json"])
        assert (
            (head["format"], head["version"])
            == (FORMAT, VERSION)
            == (
                "fx_instrument recording",
                1,
            )
        )
        told = head["arrays"][head["recording"]["readings_ns"]["@array"]]
        first, steps = archive[told["first"]], archive[told["steps"]]
    readings_ns = np.concatenate([first, first + np.cumsum(steps, axis=1)], axis=1)
    assert told["shape"] == [4, 3]
    assert readings_ns.tolist() == report.readings_ns.tolist()
    assert head["recording"]["rows"]["@NodeRow"]["columns"]["name"] == report.nodes["name"].tolist()


def test_file_is_read_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    frames().save(tmp_path / "a")
    code = f"""
        from fx_instrument.report import load
        print(load({str(tmp_path / "a")!r}).num_runs)
    """
    assert run_without_torch(code) == ("5\n", "")


def run_without_torch(code: str) -> tuple[str, str]:
    """Run code where torch cannot be imported; return what it wrote to its two outputs."""
    start = f"""
        import sys, types
        sys.modules["torch"] = None
        package = types.ModuleType("fx_instrument")
        package.__path__ = {fx_instrument.__path__!r}
        sys.modules["fx_instrument"] = package
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, done.stderr


def test_fields_that_a_file_lacks_have_their_defaults(tmp_path: Path) -> None:
    report = chain()
    report.save(tmp_path / "a")

    def without(head: dict[str, Any]) -> None:
        del head["recording"]["num_seen"]
        del head["recording"]["facts"]

    rewrite(tmp_path / "a", without)
    assert load(tmp_path / "a").recording.num_seen == 0
    assert load(tmp_path / "a").recording.facts == ()


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a file once more with another head."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    head = json.loads(members["head.json"])
    change(head)
    members["head.json"] = json.dumps(head).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda head: head.update(version=2), NewerFileError, "version 2 .* up to version 1"),
        (lambda head: head["recording"].update(heat=3), NewerFileError, "holds heat of a Record"),
        (
            lambda head: head["recording"]["rows"]["@NodeRow"]["columns"].update(heat=[]),
            NewerFileError,
            "holds heat of a NodeRow",
        ),
        (
            lambda head: head["recording"].update(rows={"@Joule": {"size": 0, "columns": {}}}),
            NewerFileError,
            "records 'Joule'",
        ),
        (lambda head: head.update(version="1"), DamagedFileError, "got '1'"),
        (lambda head: head.update(format="other"), ForeignFileError, "does not say"),
        (lambda head: head["recording"].pop("rows"), DamagedFileError, "rows"),
        (lambda head: head["recording"].update(rows=[]), DamagedFileError, "do not fit"),
        (lambda head: head["arrays"].clear(), DamagedFileError, "recording"),
        (lambda head: head["recording"].update(aborted=-5), DamagedFileError, "'aborted'"),
        (lambda head: head["recording"].update(aborted={"a": "1"}), DamagedFileError, "'aborted'"),
        (lambda head: head["recording"].update(num_seen="3"), DamagedFileError, "'num_seen'"),
        (lambda head: head["recording"].update(num_seen=True), DamagedFileError, "'num_seen'"),
        (lambda head: head["recording"].update(clock_ns=None), DamagedFileError, "'clock_ns'"),
        (lambda head: head["recording"].update(sketch=[]), DamagedFileError, "'sketch'"),
        (lambda head: head["recording"].update(inputs=[[0.5]]), DamagedFileError, "'inputs'"),
        (lambda head: head["recording"].update(environment=[]), DamagedFileError, "'environment'"),
        (
            lambda head: head["recording"]["rows"]["@NodeRow"]["columns"]["name"].__setitem__(0, 7),
            DamagedFileError,
            "'name' of a NodeRow",
        ),
    ],
)
def test_file_that_cannot_be_understood_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], error: type[Exception], match: str
) -> None:
    chain().save(tmp_path / "a")
    rewrite(tmp_path / "a", change)
    with pytest.raises(error, match=match) as caught:
        load(tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_known_of_the_environment_is_told_as_unknown(tmp_path: Path) -> None:
    chain().save(tmp_path / "a")
    rewrite(
        tmp_path / "a", lambda head: head["recording"]["environment"].pop("num_interop_threads")
    )
    assert "1 intra-op and unknown inter-op threads" in load(tmp_path / "a").head


@pytest.mark.parametrize("path", [1, True, None, ["a"], b"a"])
def test_what_is_no_path_is_not_opened(path: Any) -> None:
    for read in (load, lambda each: merge([each]), lambda each: compare(each, each)):
        with pytest.raises(TypeError, match=r"or the path of a file .*, got .* of type"):
            read(path)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"PK", b"\x89PNG\r\n\x1a\n" * 100, os.urandom(4096)]
)
def test_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ForeignFileError, match=r"no file that report\.save"):
        load(tmp_path / "a")


def test_foreign_archive_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    with pytest.raises(ForeignFileError, match=r"without a member 'head.json'"):
        load(tmp_path / "a.npz")
    torch.save({"x": torch.ones(3)}, tmp_path / "a.pt")
    with pytest.raises(ForeignFileError, match=r"without a member 'head.json'"):
        load(tmp_path / "a.pt")


def test_objects_in_a_file_are_never_unpickled(tmp_path: Path) -> None:
    chain().save(tmp_path / "a")
    rewrite(
        tmp_path / "a",
        lambda head: head["arrays"]["recording.readings_ns"].update(dtype="object"),
    )
    with pytest.raises(DamagedFileError, match="holds objects"):
        load(tmp_path / "a")


def test_file_that_cannot_be_read_is_an_error_of_access(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match=r"cannot read .*missing.*: No such file") as caught:
        load(tmp_path / "missing")
    assert isinstance(caught.value, OSError)
    with pytest.raises(FileAccessError, match="Is a directory"):
        load(tmp_path)


def test_file_that_cannot_be_written_is_an_error_of_access(tmp_path: Path) -> None:
    report = chain()
    for path, match in [
        (tmp_path / "missing" / "a", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / ("n" * 300), "File name too long"),
    ]:
        with pytest.raises(FileAccessError, match=f"cannot write .*{match}"):
            report.save(path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(os.getuid() == 0, reason="the superuser may read and write everything")
def test_file_without_permission_is_an_error_of_access(tmp_path: Path) -> None:
    report = chain()
    report.save(tmp_path / "a")
    (tmp_path / "a").chmod(0)
    with pytest.raises(FileAccessError, match="Permission denied"):
        load(tmp_path / "a")
    tmp_path.chmod(0o500)
    with pytest.raises(FileAccessError, match="Permission denied"):
        report.save(tmp_path / "b")


def test_save_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    report = chain()
    report.save(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    environment = {"model": nn.Linear(3, 3)}
    with pytest.raises(TypeError, match=r"recording.environment.0 cannot be saved: it is Linear"):
        Report(dataclasses.replace(report.recording, environment=environment)).save(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == before
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]


def test_disk_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    chain().save(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    code = f"""
        import resource, signal
        from fx_instrument.errors import FileAccessError
        from fx_instrument.report import load
        report = load({str(tmp_path / "a")!r})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            report.save({str(tmp_path / "a")!r})
        except FileAccessError as error:
            print(error)
    """
    printed, _ = run_without_torch(code)
    assert "cannot write" in printed
    assert "File too large" in printed
    assert (tmp_path / "a").read_bytes() == before
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]


def test_save_follows_a_link_and_keeps_the_permissions(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "a").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    chain().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "a").num_runs == 4
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["chain", "sketch_of_frames", "frames"])
def test_damage_anywhere_gives_an_error_or_the_same_report(name: str, tmp_path: Path) -> None:
    report = REPORTS[name]()
    path = tmp_path / "a"
    report.save(path)
    whole = path.read_bytes()
    draw = random.Random(0)
    num_refused = 0
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(draw.choice((1, 1, 1, 2, 8))):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        num_refused += is_refused(path, report)
    assert num_refused > 300


def test_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    report = chain()
    path = tmp_path / "a"
    report.save(path)
    whole = path.read_bytes()
    for length in range(4, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError, match="is damaged or cut off"):
            load(path)


def is_refused(path: Path, report: Report) -> bool:
    """Whether a file is refused by an error of ours; it must hold ``report`` otherwise."""
    try:
        loaded = load(path)
    except (DamagedFileError, ForeignFileError, NewerFileError):
        return True
    assert is_same(loaded.recording, report.recording)
    return False
