"""Files that are either written whole or left as they were."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import secrets
import shutil
from collections.abc import Iterator
from typing import IO, TextIO, TypeAlias, cast

from .errors import ExportError

__all__ = ["Target", "text_file"]

# The path of a file, or one that is open for text.
Target: TypeAlias = "str | os.PathLike[str] | TextIO"


@contextlib.contextmanager
def text_file(target: Target) -> Iterator[TextIO]:
    """Give a text file that is to be written, in UTF-8, lines ended as they are given.

    A file at a path takes the place of the one that was there, with its permissions, once all is
    written; if that fails, what was there stays. One whose name ends in ``.gz`` is compressed. What
    is no regular file, such as a pipe, is written to directly.

    Args:
        target: the path, or a file that is open for text, which is written to and stays open.

    Raises:
        ExportError: the file cannot be written.
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
    with _whole_file(os.fspath(target)) as file:
        yield file


@contextlib.contextmanager
def _whole_file(path: str) -> Iterator[TextIO]:
    # What a link leads to is replaced, not the link.
    place = os.path.realpath(path)
    is_replaced = os.path.isfile(place) or not os.path.exists(place)
    temporary = os.path.join(os.path.dirname(place), f".fx_instrument-{secrets.token_hex(8)}")
    try:
        with (
            open(temporary if is_replaced else place, "xb" if is_replaced else "wb") as raw,
            _as_text(raw, is_compressed=place.endswith(".gz")) as file,
        ):
            yield file
        if is_replaced:
            if os.path.exists(place):
                shutil.copymode(place, temporary)
            os.replace(temporary, place)
    except OSError as error:
        raise ExportError(f"cannot write {path!r}: {error.strerror or error}") from error
    finally:
        if is_replaced:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


@contextlib.contextmanager
def _as_text(raw: IO[bytes], *, is_compressed: bool) -> Iterator[TextIO]:
    """Give a text file over ``raw``, which is on the disk when this ends."""
    binary = raw
    if is_compressed:
        # Without a name and a time, so that the same is written as the same bytes.
        zipped = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)
        binary = cast("IO[bytes]", zipped)
    file = io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", newline="")
    yield file
    file.flush()
    if is_compressed:
        binary.close()
    raw.flush()
    with contextlib.suppress(OSError):  # A pipe has no disk.
        os.fsync(raw.fileno())
