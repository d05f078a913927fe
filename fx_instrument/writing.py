"""Files that are either written whole or left as they were.

The one way in which a file is written. It knows nothing of what is in it.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, TextIO, TypeAlias, cast

from .errors import FileAccessError

__all__ = ["Target", "binary_file", "check_writable", "text_file"]

# The path of a file, or one that is open for text.
Target: TypeAlias = "str | os.PathLike[str] | TextIO"

# Other names of what is open in this process, which may be a file that must not be replaced.
_STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")


@contextlib.contextmanager
def text_file(target: Target) -> Iterator[TextIO]:
    """Give a text file that is to be written, in UTF-8, lines ended as they are given.

    One at a path is written as :func:`binary_file` says. If its name ends in ``.gz``, it is
    compressed.

    Args:
        target: the path, or a file that is open for text, which is written to and stays open.

    Raises:
        FileAccessError: the file cannot be written.
        TypeError: ``target`` is something else.
    """
    if hasattr(target, "write"):
        if isinstance(target, (io.RawIOBase, io.BufferedIOBase)):
            raise TypeError(
                f"a file to write to is opened for text, as open(path, 'w') does, got {target!r}"
            )
        yield cast("TextIO", target)
        return
    if not isinstance(target, (str, os.PathLike)):
        raise TypeError(
            "what to write to is a path or a file that is open for text, got "
            f"{target!r} of type {type(target).__name__}"
        )
    is_compressed = os.fsdecode(target).endswith(".gz")
    with binary_file(target) as raw, _as_text(raw, is_compressed=is_compressed) as file:
        yield file


@contextlib.contextmanager
def binary_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a file to write to, which takes the place of ``path`` where the block ends well.

    It lies beside ``path`` until then, and is removed where the block raises, so that what was
    there stays. A link is followed. The permissions of a file that is replaced are kept. What is no
    regular file, such as a pipe, or is named as ``/dev/stdout`` is, is written to directly.

    Args:
        path: of a file that there is, or of a new one in a directory that there is.

    Raises:
        FileAccessError: it cannot be written.
    """
    with _told(path):
        if not _is_replaced(path):
            descriptor = _descriptor_of(path)
            with open(path if descriptor is None else os.dup(descriptor), "wb") as file:
                yield file
            return
        place = os.path.realpath(path)
        temporary = os.path.join(os.path.dirname(place), f".fx_instrument-{secrets.token_hex(8)}")
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if os.path.exists(place):
                shutil.copymode(place, temporary)
            os.replace(temporary, place)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def check_writable(path: str | os.PathLike[str]) -> None:
    """See that a file can be written, before there is anything to write.

    Nothing is changed by it.

    Args:
        path: as for :func:`binary_file`.

    Raises:
        FileAccessError: it cannot be written.
    """
    with _told(path):
        if _is_replaced(path):
            tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))).close()


@contextlib.contextmanager
def _told(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say which file it is of which something fails."""
    try:
        yield
    except FileAccessError:
        raise
    except OSError as error:
        raise FileAccessError(
            f"cannot write {os.fsdecode(path)!r}: {error.strerror or error}"
        ) from error


def _is_replaced(path: str | os.PathLike[str]) -> bool:
    """Whether another file takes the place of what is at ``path``, which may be nothing.

    Raises:
        OSError: it is a directory, is named as one, or may not be written.
    """
    descriptor = _descriptor_of(path)
    if descriptor is not None:
        os.fstat(descriptor)
        return False
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        # The real path, which is what is written to, has no slash at its end.
        if os.fsdecode(path).endswith(os.sep):
            raise
        return True
    if not stat.S_ISREG(mode):
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return False
    # One that is protected from being written is not to be replaced either.
    with open(path, "r+b"):
        return True


def _descriptor_of(path: str | os.PathLike[str]) -> int | None:
    """Return the number of the open file that ``path`` is a name of; None for any other."""
    text = os.fsdecode(path)
    found = _DESCRIPTOR.fullmatch(text)
    return _STANDARD.get(text) if found is None else int(found[1])


@contextlib.contextmanager
def _as_text(raw: BinaryIO, *, is_compressed: bool) -> Iterator[TextIO]:
    """Give a text file over ``raw``, which holds all of it when this ends."""
    binary = raw
    if is_compressed:
        # Without a name and a time, so that the same is written as the same bytes.
        zipped = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)
        binary = cast("BinaryIO", zipped)
    file = io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", newline="")
    try:
        yield file
    finally:
        # Not left to be closed later, when what they write to is closed.
        file.detach()
        if is_compressed:
            binary.close()
