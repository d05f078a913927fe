"""Write a file such that it holds all that it should, or what it held before."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import FileAccessError

__all__ = ["written_whole"]


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a file to write to, which takes the place of ``path`` where the block ends well.

    It lies beside ``path`` until then, and is removed where the block raises. A link is followed.
    The permissions of a file that is replaced are kept.

    Args:
        path: of a file that there is, or of a new one in a directory that there is.

    Raises:
        FileAccessError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".fx_instrument-{secrets.token_hex(8)}")
    try:
        if target.exists() and not target.is_file():
            raise FileAccessError(
                f"cannot write {os.fspath(path)!r}: it is not a regular file; give the path of one"
            )
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except FileAccessError:
        raise
    except OSError as error:
        raise FileAccessError(
            f"cannot write {os.fspath(path)!r}: {error.strerror or error}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
