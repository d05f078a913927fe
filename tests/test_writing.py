"""Files that are written whole or left as they were."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from fx_instrument import FileAccessError
from fx_instrument.writing import binary_file, check_writable, text_file

PACKAGE = Path(__file__).parents[1]

WAYS = {"text": (text_file, "new"), "binary": (binary_file, b"new")}

Open = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[Open, Any]:
    """One of the ways to write, and what it can write."""
    return WAYS[request.param]


def test_file_is_there_once_all_is_written(way: tuple[Open, Any], tmp_path: Path) -> None:
    opened, content = way
    path = tmp_path / "a"
    path.write_text("old")
    with opened(path) as file:
        file.write(content)
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


def test_what_raises_leaves_what_was_there(way: tuple[Open, Any], tmp_path: Path) -> None:
    opened, content = way
    (tmp_path / "a").write_text("old")

    def interrupted(path: Path) -> None:
        with opened(path) as file:
            file.write(content)
            raise KeyboardInterrupt

    for name in ("a", "b", "a.gz"):
        with pytest.raises(KeyboardInterrupt):
            interrupted(tmp_path / name)
    assert (tmp_path / "a").read_text() == "old"
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]


def test_link_is_followed_and_permissions_are_kept(way: tuple[Open, Any], tmp_path: Path) -> None:
    opened, content = way
    (tmp_path / "a").touch()
    (tmp_path / "a").chmod(0o640)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "dangling").symlink_to("b")
    for name in ("link", "dangling"):
        with opened(tmp_path / name) as file:
            file.write(content)
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == "new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/a", "No such file or directory"),
        ("missing/", "No such file or directory"),
        ("file/", "Not a directory"),
        ("", "Is a directory"),
        ("n" * 300, "File name too long"),
        ("file/a", "Not a directory"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_written_is_told_with_its_path(
    name: str, reason: str, way: tuple[Open, Any], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.iterdir())
    path = f"{tmp_path}/{name}"
    for attempt in (lambda: way[0](path).__enter__(), lambda: check_writable(path)):
        with pytest.raises(FileAccessError, match=f"cannot write '{path}': {reason}") as caught:
            attempt()
        assert isinstance(caught.value, OSError)
        assert isinstance(caught.value.__cause__, OSError)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.getuid() == 0, reason="the superuser may write everything")
def test_protected_file_is_not_replaced(way: tuple[Open, Any], tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "a").chmod(0o400)
    with pytest.raises(FileAccessError, match="Permission denied"):
        check_writable(tmp_path / "a")
    with pytest.raises(FileAccessError, match="Permission denied"), way[0](tmp_path / "a"):
        pass


def test_checking_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    before = (tmp_path / "a").stat()
    check_writable(tmp_path / "a")
    check_writable(tmp_path / "b")
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]
    assert (tmp_path / "a").stat().st_mtime_ns == before.st_mtime_ns
    assert (tmp_path / "a").read_text() == "old"


def test_pipe_is_written_to_and_stays(way: tuple[Open, Any], tmp_path: Path) -> None:
    opened, content = way
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    with opened(pipe) as file:
        file.write(content)
    reader.join()
    assert received == ["new"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_open_file_is_written_to_by_its_other_name(name: str, tmp_path: Path) -> None:
    code = f"""
from fx_instrument.writing import check_writable, text_file
print("before", flush=True)
check_writable({name!r})
with text_file({name!r}) as file:
    file.write("within\\n")
print("after")
"""
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, cwd=PACKAGE, check=True)
    assert (tmp_path / "out").read_text() == "before\nwithin\nafter\n"
    assert [*tmp_path.iterdir()] == [tmp_path / "out"]


def test_text_is_compressed_by_the_name_alone(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        with text_file(str(tmp_path / name)) as file:
            file.write("ü\r\n\ud800")
    packed = (tmp_path / "a.gz").read_bytes()
    assert gzip.decompress(packed) == "ü\r\n\\ud800".encode()
    assert packed == (tmp_path / "b.gz").read_bytes()
    with binary_file(tmp_path / "c.gz") as raw:
        raw.write(b"as it is")
    assert (tmp_path / "c.gz").read_bytes() == b"as it is"


def test_file_that_is_open_for_text_stays_open() -> None:
    file = io.StringIO()
    with text_file(file) as same:
        same.write("text")
    assert file.getvalue() == "text"


@pytest.mark.parametrize(
    "target", [3, None, io.BytesIO(), b"a"], ids=["int", "None", "binary", "bytes"]
)
def test_other_targets_are_refused(target: Any) -> None:
    with pytest.raises(TypeError, match=r"open(ed)? for text"), text_file(target):
        pass
