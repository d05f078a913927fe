"""What is known of a row beside its times: where it stands, and what it works on.

It knows nothing of torch's classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

__all__ = ["NO_FACTS", "RowFacts", "facts_in_common", "sum_of_facts"]


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Facts of one row. None for each that is not known.

    The first three are known of every row whose capture saw them. The others are those of one call,
    which ``annotate()`` gathers; a row that ran several times in it holds the sums of ``flops``,
    ``bytes_read`` and ``bytes_written``, and of the rest those of the last call.

    Attributes:
        class_name: the class of the module that is called or, for other rows, in whose forward the
            row stands, with its module, as in ``torch.nn.modules.linear.Linear``.
        file: the source file of the call, of the user's code and not of torch's.
        line: the line there, where the instruction starts that makes the call. In a frame the calls
            of one module that one line makes are one row.
        shapes: of the tensors in what it gives, in the order in which they are found there.
        dtypes: of the same, as in ``float32``.
        devices: of the same, as in ``cpu``.
        memory_formats: of the same: ``contiguous``, ``channels_last``, ``channels_last_3d``, or
            ``strided`` for any other.
        num_params: how many parameters the module that it calls has, or the parameter that it
            reads; each counted once.
        param_bytes: what these take.
        flops: floating-point operations, a multiply-add counted as two, as
            :mod:`torch.utils.flop_counter` has them.
        has_all_flops: whether ``flops`` holds all operations; False where some are not known, so
            that there are at least so many.
        bytes_read: of inputs and parameters.
        bytes_written: of outputs and of what is changed in place.
        output_bytes: of the storages of what it gives, each counted once.
        live_bytes: of the inputs and of what the run has made, after the row; parameters and
            buffers are not among them, nor is what an operation needs within itself. Not known if
            the run was the first of its kind, of which a graph was made, as that holds more.
        peak_bytes: the most of these at once while the row ran.
    """

    class_name: str | None = None
    file: str | None = None
    line: int | None = None
    shapes: tuple[tuple[int, ...], ...] | None = None
    dtypes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    memory_formats: tuple[str, ...] | None = None
    num_params: int | None = None
    param_bytes: int | None = None
    flops: int | None = None
    has_all_flops: bool = True
    bytes_read: int | None = None
    bytes_written: int | None = None
    output_bytes: int | None = None
    live_bytes: int | None = None
    peak_bytes: int | None = None

    @property
    def place(self) -> str | None:
        """The source file and, where it is known, the line, as in ``/home/me/model.py:12``."""
        return self.file if self.line is None or self.file is None else f"{self.file}:{self.line}"

    def standing_at(self, place: RowFacts) -> RowFacts:
        """Return this with the class, file and line of ``place``."""
        return replace(self, class_name=place.class_name, file=place.file, line=place.line)


NO_FACTS = RowFacts()


def facts_in_common(several: Sequence[RowFacts]) -> RowFacts:
    """Return what is the same in all of ``several``; None for the rest.

    A row that has runs of several graphs has the facts of each. Its parameters are known where any
    of them was seen to run.

    Args:
        several: at least one.
    """
    first = several[0]
    if all(facts == first for facts in several):
        return first
    in_common = {
        field.name: _one_of([getattr(facts, field.name) for facts in several])
        for field in fields(RowFacts)
    }
    for name in ("num_params", "param_bytes"):
        known = {getattr(facts, name) for facts in several} - {None}
        in_common[name] = known.pop() if len(known) == 1 else None
    # At least so many in one of them are at least so many in all.
    in_common["has_all_flops"] = all(facts.has_all_flops for facts in several)
    return RowFacts(**in_common)


def _one_of(values: Sequence[Any]) -> Any:
    """Return the value that all of ``values`` are, or None."""
    return values[0] if all(value == values[0] for value in values) else None


def sum_of_facts(several: Sequence[RowFacts]) -> RowFacts:
    """Return the facts of what ran one after the other, as those of one row.

    They are the sums of ``flops``, ``bytes_read`` and ``bytes_written``, the highest of the
    peaks, and the last of all others.

    Args:
        several: at least one.
    """
    if len(several) == 1:
        return several[0]
    flops = [facts.flops for facts in several if facts.flops is not None]
    return replace(
        several[-1],
        flops=sum(flops) if flops else None,
        has_all_flops=all(facts.has_all_flops for facts in several),
        bytes_read=_combined(sum, [facts.bytes_read for facts in several]),
        bytes_written=_combined(sum, [facts.bytes_written for facts in several]),
        peak_bytes=_combined(max, [facts.peak_bytes for facts in several]),
    )


def _combined(combine: Callable[[list[int]], int], values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return combine(known) if len(known) == len(values) else None
