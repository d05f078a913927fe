"""Recordings in files: what :meth:`fx_instrument.Report.save` writes, and how it is read.

Neither the model nor torch is needed to read a file, and none of it is run or unpickled.

A file is a ZIP archive (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT), whatever its
name ends in. Its member ``head.json`` is a JSON object in UTF-8 with

``format``
    ``"fx_instrument recording"``.
``version``
    1. A reader refuses any that is larger than those it knows.
``written_by``
    The version of fx_instrument that wrote the file.
``recording``
    The :class:`~fx_instrument.recording.Recording`: an object with a key for each field. A tuple
    is a JSON array. What JSON does not have is an object with one key that begins with ``@``:

    * ``{"@float": "nan"}``: also ``inf`` and ``-inf``.
    * ``{"@list": [...]}``: a list.
    * ``{"@NodeRow": {"size": n, "columns": {...}}}``: a tuple of ``n`` records of that class, with
      a JSON array, or one of the following, for each of their fields. A field that is missing has
      its default.
    * ``{"@Recording": {...}}``: a recording within this one, of a method or by a second clock.
    * ``{"@array": name}``: an array, see below.
    * ``{"@arrays": {"lengths": name, "values": name}}``: many arrays of one dimension, one after
      the other.
    * ``{"@sketch": {...}}``: a :class:`~fx_instrument.sketch.Sketch`, an array for each attribute.
``arrays``
    An object that says for each name of an array what its ``dtype`` and ``shape`` are, and where
    its values stand, which is one of

    * ``"values": member``: in that member of the archive, maybe as smaller integers;
    * ``"first": member, "steps": member``: along the last axis, its first value, and the
      difference from each value to the next, both modulo 2**64;
    * ``"fill": value``: nowhere, as they are all the same.

Each other member is an array in numpy's format
(https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), version 1.0, in C order.
So ``numpy.load(path, allow_pickle=False)`` opens a file, and gives the bytes of ``head.json`` too.
The archive has a checksum for each member, which is checked whenever one is read. The same
recording gives the same bytes, from the same version of zlib.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
import numpy.typing as npt

from .errors import DamagedFileError, FileAccessError, ForeignFileError, NewerFileError
from .facts import RowFacts
from .field_types import check_field
from .recording import ClosedFrame, InnerRow, NodeRow, Part, Recording, VariantInfo
from .sketch import Sketch
from .version import __version__
from .writing import binary_file

__all__ = ["FORMAT", "VERSION", "read_recording", "write_recording"]

FORMAT = "fx_instrument recording"
VERSION = 1

_HEAD = "head.json"

# The classes of which a recording holds tuples, by their name in a file.
_RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (NodeRow, InnerRow, Part, VariantInfo, ClosedFrame, RowFacts)
}

# Of an array that is written or read, so many values are worked on at a time.
_BLOCK_VALUES = 2**20

# Integers of a few bytes are packed fast, and hardly better with more effort.
_COMPRESSION = 1

_SMALLER = (np.int8, np.int16, np.int32)

Array = npt.NDArray[Any]


def write_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording to a file, whole or not at all.

    It takes little memory beside the recording: the arrays of calls in frames once more, one field
    of them at a time.

    Raises:
        FileAccessError: the file cannot be written.
        TypeError: ``recording.environment`` holds what is neither a number, text, None nor a tuple,
            list or mapping of such.
    """
    encoder = _Encoder()
    head = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        "recording": encoder.fields_of(recording, "recording"),
        "arrays": encoder.arrays,
    }
    text = json.dumps(head, allow_nan=False, separators=(",", ":"))
    with (
        binary_file(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive,
    ):
        archive.writestr(zipfile.ZipInfo(_HEAD), text, zipfile.ZIP_DEFLATED, _COMPRESSION)
        for member, (dtype, shape, blocks) in encoder.members.items():
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(
                    stream, {"descr": dtype.str, "fortran_order": False, "shape": shape}
                )
                for block in blocks():
                    stream.write(np.ascontiguousarray(block, dtype).data)


class _Encoder:
    """Turns a recording into what JSON has, and collects the arrays that it holds.

    Attributes:
        arrays: what the head says of each array.
        members: the dtype and the shape of each member of the archive, and what gives its values,
            a block at a time.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, dict[str, Any]] = {}
        self.members: dict[
            str, tuple[np.dtype[Any], tuple[int, ...], Callable[[], Iterator[Array]]]
        ] = {}

    def fields_of(self, record: Any, name: str) -> dict[str, Any]:
        return {
            field.name: self.value(getattr(record, field.name), f"{name}.{field.name}")
            for field in fields(record)
        }

    def value(self, value: Any, name: str) -> Any:
        """Return what stands for ``value``, which is called ``name``."""
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return {"@float": str(float(value))}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, tuple):
            return self._sequence(value, name)
        if isinstance(value, list):
            return {"@list": self._items(value, name)}
        if isinstance(value, np.ndarray):
            return {"@array": self._array(value, name)}
        if isinstance(value, Sketch):
            items = value.arrays().items()
            return {"@sketch": {key: self._array(array, f"{name}.{key}") for key, array in items}}
        if isinstance(value, Recording):
            return {"@Recording": self.fields_of(value, name)}
        if isinstance(value, Mapping) and all(
            isinstance(key, str) and not key.startswith("@") for key in value
        ):
            # Numbered, as a key may be any text.
            return {
                key: self.value(item, f"{name}.{place}")
                for place, (key, item) in enumerate(value.items())
            }
        raise TypeError(
            f"{name} cannot be saved: it is {value!r}, of type {type(value).__name__}; numbers, "
            "text, None, and tuples, lists and mappings of such by text can"
        )

    def _sequence(self, values: Sequence[Any], name: str) -> Any:
        """Return what stands for a tuple, or for what the records of one have in a field."""
        kinds = {type(value) for value in values}
        kind: Any = kinds.pop() if len(kinds) == 1 else None
        if kind is np.ndarray and all(array.ndim == 1 for array in values):
            lengths = np.array([len(array) for array in values], np.int64)
            return {
                "@arrays": {
                    "lengths": self._array(lengths, f"{name}.lengths"),
                    "values": self._array(np.concatenate(values), f"{name}.values"),
                }
            }
        if kind not in _RECORDS.values():
            return self._items(values, name)
        columns = {
            field: self._sequence([getattr(value, field) for value in values], f"{name}.{field}")
            for field in _fields_of(kind)
        }
        return {f"@{kind.__name__}": {"size": len(values), "columns": columns}}

    def _items(self, values: Sequence[Any], name: str) -> list[Any]:
        return [self.value(value, f"{name}.{place}") for place, value in enumerate(values)]

    def _array(self, array: Array, name: str) -> str:
        """Take an array on, and return its name."""
        self.arrays[name] = {"dtype": array.dtype.name, "shape": list(array.shape)}
        if array.size and not any(array.strides):
            self.arrays[name]["fill"] = array.flat[0].item()
        elif array.dtype == np.int64:
            self._integers(array, name)
        else:
            self._put(name, "values", array.dtype, array.shape, lambda: _blocks(array))
        return name

    def _integers(self, array: Array, name: str) -> None:
        values = _smallest_dtype(_blocks(array))
        steps = _smallest_dtype(_steps(array)) if array.size else values
        if steps.itemsize >= values.itemsize:
            self._put(name, "values", values, array.shape, lambda: _blocks(array))
            return
        first = array[..., :1]
        shape = (*array.shape[:-1], array.shape[-1] - 1)
        self._put(name, "first", array.dtype, first.shape, lambda: _blocks(first))
        self._put(name, "steps", steps, shape, lambda: _steps(array))

    def _put(
        self,
        name: str,
        key: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        blocks: Callable[[], Iterator[Array]],
    ) -> None:
        member = f"{name}.npy" if key == "values" else f"{name}.{key}.npy"
        self.arrays[name][key] = member
        self.members[member] = dtype, shape, blocks


def _fields_of(kind: Any) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    names: tuple[str, ...] = kind._fields
    return names


def _blocks(array: Array) -> Iterator[Array]:
    """Give an array in parts along its first axis."""
    num_rows = max(_BLOCK_VALUES // max(math.prod(array.shape[1:]), 1), 1)
    for start in range(0, len(array), num_rows):
        yield array[start : start + num_rows]


def _steps(array: Array) -> Iterator[Array]:
    """Give the differences along the last axis of an array in parts along its first axis."""
    if array.ndim > 1:
        yield from (np.diff(block, axis=-1) for block in _blocks(array))
        return
    for start in range(0, len(array) - 1, _BLOCK_VALUES):
        yield np.diff(array[start : start + _BLOCK_VALUES + 1])


def _smallest_dtype(blocks: Iterator[Array]) -> np.dtype[Any]:
    """Return the smallest dtype that holds the integers of ``blocks``, in little-endian order."""
    low = high = 0
    for block in blocks:
        low = min(low, int(block.min(initial=0)))
        high = max(high, int(block.max(initial=0)))
    for dtype in _SMALLER:
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return np.dtype(dtype).newbyteorder("<")
    return np.dtype("<i8")


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Return the recording that a file holds.

    Raises:
        TypeError: ``path`` is no path.
        FileAccessError: the file cannot be read.
        ForeignFileError: it is none that :func:`write_recording` writes.
        DamagedFileError: it is cut off, or not what was written.
        NewerFileError: a newer version of fx_instrument is needed to read it.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"a report is one that report() gave, or the path of a file that report.save() wrote, "
            f"got {path!r} of type {type(path).__name__}"
        )
    try:
        with open(path, "rb") as file:
            return _recording_in(file, os.fspath(path))
    except (FileAccessError, ForeignFileError, DamagedFileError, NewerFileError):
        raise
    except OSError as error:
        raise FileAccessError(
            f"cannot read {os.fspath(path)!r}: {error.strerror or error}"
        ) from error


def _recording_in(file: BinaryIO, path: str) -> Recording:
    start = file.read(4)
    if start != b"PK\3\4":
        found = "is empty" if not start else f"begins with {start!r}"
        raise ForeignFileError(
            f"{path!r} is no file that report.save() writes: such a file is a ZIP archive, and "
            f"this one {found}"
        )
    file.seek(0)
    # Of what is damaged anything may be read, so anything may be raised.
    try:
        with zipfile.ZipFile(file) as archive:
            if _HEAD not in archive.namelist():
                raise ForeignFileError(
                    f"{path!r} is no file that report.save() writes: it is a ZIP archive without "
                    f"a member {_HEAD!r}"
                )
            head = json.loads(archive.read(_HEAD), parse_constant=_refuse)
            _check_head(head, path)
            decoder = _Decoder(archive, head["arrays"], path, head["written_by"])
            recording = decoder.recording(head["recording"])
            _check(recording)
            return recording
    except (ForeignFileError, NewerFileError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DamagedFileError(
            f"{path!r} is damaged or cut off: {reason}; copy or save it once more"
        ) from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _check_head(head: Any, path: str) -> None:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ForeignFileError(
            f"{path!r} is no file that report.save() writes: its {_HEAD} does not say "
            f'"format": "{FORMAT}"'
        )
    version = head["version"]
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"the version of the format is a number from 1, got {version!r}")
    if version > VERSION:
        raise NewerFileError(
            f"{path!r} has version {version} of the format, written by fx_instrument "
            f"{head.get('written_by')}; this is fx_instrument {__version__}, which reads up to "
            f"version {VERSION}: install a newer one"
        )


def _check(recording: Recording) -> None:
    """Raise a ``ValueError`` where the parts of a recording do not fit each other."""
    num_runs, num_rows = recording.has_run.shape
    sketch = recording.sketch
    fits = (
        num_rows == len(recording.rows)
        and recording.readings_ns.shape == (num_runs, 1 + int(recording.is_timed.sum()))
        and (sketch is None or sketch.num_columns == num_rows + 1 + len(recording.inner))
    )
    for place, (_, parent, runs, ns, *_) in enumerate(recording.inner):
        fits = fits and 0 <= parent < num_rows + place and runs.shape == ns.shape
        fits = fits and runs.min(initial=0) >= 0 and runs.max(initial=-1) < num_runs
    for part in recording.parts:
        fits = fits and len(part.mean_ns) == num_rows + len(recording.inner)
    if not fits:
        raise ValueError("its rows and its readings do not fit each other")


class _Decoder:
    """Turns back what :class:`_Encoder` has made.

    Args:
        archive: holds the arrays.
        arrays: what the head says of them.
        path: of the file, for errors.
        written_by: the version that wrote it, for errors.
    """

    def __init__(
        self, archive: zipfile.ZipFile, arrays: Mapping[str, Any], path: str, written_by: str
    ) -> None:
        self._archive = archive
        self._arrays = arrays
        self._path = path
        self._written_by = written_by

    def recording(self, plain: Mapping[str, Any]) -> Recording:
        self._check_fields(Recording, plain)
        found = {key: self.value(item) for key, item in plain.items()}
        for key, value in found.items():
            check_field(Recording, key, [value])
        return Recording(**found)

    def _check_fields(self, kind: Any, names: Mapping[str, Any]) -> None:
        unknown = sorted({*names} - {*_fields_of(kind)})
        if unknown:
            raise NewerFileError(
                f"{self._path!r} holds {', '.join(unknown)} of a {kind.__name__}, written by "
                f"fx_instrument {self._written_by}; this is fx_instrument {__version__}, which "
                "does not know of that: install a newer one"
            )

    def value(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return tuple(map(self.value, plain))
        if not isinstance(plain, dict):
            return plain
        tag, item = cast("tuple[str, Any]", next(iter(plain.items()), ("", None)))
        if not tag.startswith("@"):
            return {key: self.value(item) for key, item in plain.items()}
        if tag == "@float":
            return float(item)
        if tag == "@list":
            return [self.value(part) for part in item]
        if tag == "@array":
            return self._array(item)
        if tag == "@sketch":
            return Sketch.of_arrays({key: self._array(name) for key, name in item.items()})
        if tag == "@Recording":
            return self.recording(item)
        return tuple(self._sequence(plain))

    def _sequence(self, plain: Any) -> Sequence[Any]:
        """Return the values of a tuple, or of a field of its records."""
        if isinstance(plain, list):
            return [self.value(item) for item in plain]
        ((tag, item),) = plain.items()
        if tag == "@arrays":
            lengths = self._array(item["lengths"])
            values = self._array(item["values"])
            if lengths.min(initial=0) < 0 or lengths.sum() != len(values):
                raise ValueError("the lengths of arrays do not add up")
            return np.split(values, np.cumsum(lengths)[:-1])
        kind = _RECORDS.get(tag[1:])
        if kind is None:
            raise NewerFileError(
                f"{self._path!r} holds records {tag[1:]!r}, written by fx_instrument "
                f"{self._written_by}; this is fx_instrument {__version__}, which does not know "
                "them: install a newer one"
            )
        self._check_fields(kind, item["columns"])
        columns = {field: self._sequence(column) for field, column in item["columns"].items()}
        for field, column in columns.items():
            check_field(kind, field, column)
        rows = zip(*columns.values(), strict=True)
        records = [kind(**dict(zip(columns, row, strict=True))) for row in rows]
        if len(records) != item["size"]:
            raise ValueError(f"there are {len(records)} records, not {item['size']}")
        return records

    def _array(self, name: str) -> Array:
        told = self._arrays[name]
        dtype, shape = np.dtype(told["dtype"]), tuple(told["shape"])
        if dtype.hasobject:
            raise ValueError(f"array {name!r} holds objects")
        if "fill" in told:
            return np.broadcast_to(dtype.type(told["fill"]), shape)
        if "values" in told:
            array = np.empty(shape, dtype)
            self._read(told["values"], array)
            return array
        first = np.empty((*shape[:-1], 1), dtype)
        self._read(told["first"], first)
        array = np.empty(shape, dtype)
        array[..., :1] = first
        self._read(told["steps"], array[..., 1:])
        for block in _blocks(array) if array.ndim > 1 else [array]:
            np.cumsum(block, axis=-1, out=block)
        return array

    def _read(self, member: str, out: Array) -> None:
        """Read a member into ``out``, whose shape it has."""
        with self._archive.open(member) as stream:
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ValueError(f"{member!r} is not in version 1.0 of numpy's format")
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            if shape != out.shape or is_fortran or not np.can_cast(dtype, out.dtype, "safe"):
                raise ValueError(
                    f"{member!r} holds {dtype} of shape {shape}, not {out.dtype} of {out.shape}"
                )
            for block in _blocks(out):
                data = stream.read(block.size * dtype.itemsize)
                block[...] = np.frombuffer(data, dtype).reshape(block.shape)
            # The checksum is looked at where the end is seen.
            if stream.read(1):
                raise ValueError(f"{member!r} is longer than it should be")
