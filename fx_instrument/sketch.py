"""Times of many runs in constant memory: exact sums and extremes, and histograms for quantiles.

It knows of numpy alone.
"""

from __future__ import annotations

import collections
import math
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Sketch"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# A bin is 1.02 times as wide as the one before. The value that stands for it is at most
# (1.02 - 1) / (1.02 + 1) = 0.99 % from any in it: C. Masson, J. E. Rim, H. K. Lee, "DDSketch",
# PVLDB 12(12), 2019, https://doi.org/10.14778/3352063.3352135, section 2.
_LOG_OF_BASE = math.log(1.02)

# Bin 0 is for zero and below; the last one holds 10**14 ns, which are 28 hours, and all above.
_NUM_BINS = 2 + int(math.log(10**14) / _LOG_OF_BASE)

# Squares are summed in three parts, as the values are taken apart at this bit.
_HALF = 24

_BLOCK = 256

_BY_COLUMN = ("counts", "calls", "totals_ns", "mins_ns", "maxs_ns")


class Sketch:
    """The distribution of the times of each of some columns.

    Sketches can be added: see :meth:`merge`. An interrupt finds what :meth:`add` and
    :meth:`add_runs` add in it whole or not at all.

    Args:
        num_columns: how many columns there are; see also :meth:`grow`.

    Attributes:
        counts: ``int64``, shape ``(num_columns,)``: how many values were added, one a run.
        calls: the same shape: how many calls they stand for.
        totals_ns: the same shape: the sum of the values, exact.
        mins_ns: the same shape: the smallest value, exact.
        maxs_ns: the same shape: the largest value, exact.
    """

    def __init__(self, num_columns: int) -> None:
        self.counts: Ints = np.zeros(0, np.int64)
        self.calls: Ints = np.zeros(0, np.int64)
        self.totals_ns: Ints = np.zeros(0, np.int64)
        self.mins_ns: Ints = np.zeros(0, np.int64)
        self.maxs_ns: Ints = np.zeros(0, np.int64)
        self._squares: Ints = np.zeros((3, 0), np.int64)
        self._histograms: Ints = np.zeros((0, _NUM_BINS), np.int64)
        self.grow(num_columns)

    @property
    def num_columns(self) -> int:
        """How many columns there are."""
        return len(self.counts)

    def grow(self, num_columns: int) -> None:
        """Make room for columns up to ``num_columns``; those that are there stay."""
        new = num_columns - self.num_columns
        if new <= 0:
            return
        limits = np.iinfo(np.int64)
        nothing = {"mins_ns": limits.max, "maxs_ns": limits.min}
        grown: dict[str, npt.NDArray[Any]] = {
            name: np.append(getattr(self, name), np.full(new, nothing.get(name, 0)))
            for name in _BY_COLUMN
        }
        grown["_squares"] = np.append(self._squares, np.zeros((3, new), np.int64), axis=1)
        # Written to, as memory that was never written to is not taken yet.
        added = np.full((new, _NUM_BINS), 0, np.int64)
        grown["_histograms"] = (
            np.concatenate([self._histograms, added]) if len(self._histograms) else added
        )
        self.__dict__.update(grown)

    def add(self, columns: npt.NDArray[np.intp], values_ns: Ints, calls: Ints | int = 1) -> None:
        """Add values, each to its column.

        Args:
            columns: shape ``(num_values,)``.
            values_ns: the same shape, from 0 to 2**55.
            calls: how many calls each value stands for.
        """
        squares = self._squares.copy()
        for part, products in zip(squares, _parts_of_squares(values_ns), strict=True):
            np.add.at(part, columns, products)
        bins = columns * _NUM_BINS + _bins_of(values_ns)
        _do_all(
            partial(np.add.at, self.counts, columns, 1),
            partial(np.add.at, self.calls, columns, calls),
            partial(np.add.at, self.totals_ns, columns, values_ns),
            partial(np.minimum.at, self.mins_ns, columns, values_ns),
            partial(np.maximum.at, self.maxs_ns, columns, values_ns),
            partial(np.add.at, self._histograms.reshape(-1), bins, 1),
            partial(np.positive, _carried(squares), self._squares),
        )

    def add_runs(self, values_ns: Ints) -> None:
        """Add a value of one call to each column, for each of some runs; faster than :meth:`add`.

        Args:
            values_ns: shape ``(num_runs, num_columns)``, from 0 to 2**55.
        """
        num_runs = len(values_ns)
        squares = self._squares + [part.sum(axis=0) for part in _parts_of_squares(values_ns)]
        bins = _bins_of(values_ns) + _NUM_BINS * np.arange(self.num_columns)
        _do_all(
            partial(np.add, self.counts, num_runs, self.counts),
            partial(np.add, self.calls, num_runs, self.calls),
            partial(np.add, self.totals_ns, values_ns.sum(axis=0), self.totals_ns),
            partial(np.minimum, self.mins_ns, values_ns.min(axis=0), out=self.mins_ns),
            partial(np.maximum, self.maxs_ns, values_ns.max(axis=0), out=self.maxs_ns),
            partial(np.add.at, self._histograms.reshape(-1), bins.reshape(-1), 1),
            partial(np.positive, _carried(squares), self._squares),
        )

    def add_zeros(self, columns: npt.NDArray[np.intp], num_values: int) -> None:
        """Add ``num_values`` zeros to each of ``columns``, which are all different."""
        if num_values:
            self.counts[columns] += num_values
            self.calls[columns] += num_values
            self.mins_ns[columns] = np.minimum(self.mins_ns[columns], 0)
            self.maxs_ns[columns] = np.maximum(self.maxs_ns[columns], 0)
            self._histograms[columns, 0] += num_values

    def merge(self, other: Sketch, columns: npt.NDArray[np.intp]) -> None:
        """Add all of ``other``, whose columns are ``columns`` here; each at most once."""
        for name in ("counts", "calls", "totals_ns"):
            getattr(self, name)[columns] += getattr(other, name)
        self.mins_ns[columns] = np.minimum(self.mins_ns[columns], other.mins_ns)
        self.maxs_ns[columns] = np.maximum(self.maxs_ns[columns], other.maxs_ns)
        self._squares[:, columns] += other._squares
        self._squares = _carried(self._squares)
        self._histograms[columns] += other._histograms

    def squares(self) -> list[int]:
        """Return the sum of the squares of each column's values, in ns**2, exact."""
        return [
            (high << 2 * _HALF) + (middle << (_HALF + 1)) + low
            for high, middle, low in self._squares.T.tolist()
        ]

    def stds_ns(self) -> Floats:
        """Return the sample standard deviation of each column; nan where there are no two."""
        stds = [
            math.sqrt((count * square - total * total) / (count * (count - 1)))
            if count > 1
            else math.nan
            for count, total, square in zip(
                self.counts.tolist(), self.totals_ns.tolist(), self.squares(), strict=True
            )
        ]
        return np.array(stds, np.float64)

    def quantiles_ns(self, fractions: npt.ArrayLike) -> Floats:
        """Return quantiles, right to 1 %: shape ``(num_fractions, num_columns)``.

        As those of :func:`numpy.quantile`, they lie between the two nearest values.

        Args:
            fractions: shape ``(num_fractions,)``, from 0 to 1.
        """
        found = np.full((np.size(fractions), self.num_columns), np.nan)
        for start in range(0, self.num_columns, _BLOCK):
            block = slice(start, start + _BLOCK)
            counts_up_to = self._histograms[block].cumsum(axis=1)
            for row, fraction in zip(found, np.ravel(fractions), strict=True):
                ranks = fraction * np.maximum(self.counts[block] - 1, 0)
                lower, upper = np.floor(ranks), np.ceil(ranks)
                below, above = (
                    np.clip(
                        _VALUES[
                            (counts_up_to <= rank[:, None]).sum(axis=1).clip(max=_NUM_BINS - 1)
                        ],
                        self.mins_ns[block],
                        self.maxs_ns[block],
                    )
                    for rank in (lower, upper)
                )
                row[block] = below + (above - below) * (ranks - lower)
        found[:, self.counts == 0] = np.nan
        return found

    def bins_of(self, column: int, most: int) -> tuple[float, float, int, list[int]]:
        """Return the histogram of one column, neighbouring bins put together as ``most`` asks.

        Args:
            column: which one.
            most: how many bins there are at most, at least 1.

        Returns:
            Where the first bin begins, in ns; how many times as far each of the following edges
            is; how many values are 0 or below, which are in no bin; and how many are in each bin.
        """
        counts = self._histograms[column]
        filled = 1 + np.flatnonzero(counts[1:])
        if not len(filled):
            return 1.0, 1.02, int(counts[0]), []
        first, last = int(filled[0]), int(filled[-1])
        width = -(-(last - first + 1) // most)
        joined = np.add.reduceat(counts[first : last + 1], range(0, last - first + 1, width))
        start = math.exp(_LOG_OF_BASE * (first - 1))
        return start, math.exp(_LOG_OF_BASE * width), int(counts[0]), joined.tolist()

    def copy(
        self, columns: npt.NDArray[np.intp] | None = None, num_columns: int | None = None
    ) -> Sketch:
        """Return a sketch like this one.

        Args:
            columns: where its columns stand in the new one; as here by default.
            num_columns: how many the new one has; the others hold nothing.
        """
        places: Any = slice(None) if columns is None else columns
        copied = Sketch(self.num_columns if num_columns is None else num_columns)
        for name in (*_BY_COLUMN, "_histograms"):
            getattr(copied, name)[places] = getattr(self, name)
        copied._squares[:, places] = self._squares
        return copied

    def arrays(self) -> dict[str, Ints]:
        """Return all that it holds, by name; not copied. See :meth:`of_arrays`."""
        return {name: getattr(self, name) for name in (*_BY_COLUMN, "_squares", "_histograms")}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Ints]) -> Sketch:
        """Return the sketch that holds what :meth:`arrays` gave, which it changes from then on.

        Raises:
            ValueError: an array is missing, or its shape does not fit the others.
        """
        sketch = cls(0)
        num_columns = len(arrays["counts"]) if "counts" in arrays else 0
        shapes = dict.fromkeys(_BY_COLUMN, (num_columns,)) | {
            "_squares": (3, num_columns),
            "_histograms": (num_columns, _NUM_BINS),
        }
        found = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        wanted = {name: (np.dtype(np.int64), shape) for name, shape in shapes.items()}
        if found != wanted:
            raise ValueError(f"a sketch needs the arrays {wanted}, got {found}")
        for name, array in arrays.items():
            setattr(sketch, name, array)
        return sketch

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        return sum(array.nbytes for array in self.arrays().values())


def _do_all(*changes: Callable[[], Any]) -> None:
    """Make ``changes``, of functions of numpy, so that an interrupt finds all of them made or none.

    Python looks for interrupts between two steps of its own, of which this is one.
    """
    collections.deque(map(operator.methodcaller("__call__"), changes), maxlen=0)


def _carried(squares: Ints) -> Ints:
    """Return ``squares`` with what is too much for one part of the sum carried to the next."""
    highs, middles, lows = squares
    middles = middles + (lows >> (_HALF + 1))
    return np.stack(
        [
            highs + (middles >> (_HALF - 1)),
            middles & (2 ** (_HALF - 1) - 1),
            lows & (2 ** (_HALF + 1) - 1),
        ]
    )


def _parts_of_squares(values_ns: Ints) -> tuple[Ints, Ints, Ints]:
    high, low = values_ns >> _HALF, values_ns & (2**_HALF - 1)
    return high * high, high * low, low * low


def _bins_of(values_ns: Ints) -> npt.NDArray[np.intp]:
    logs = np.log(np.maximum(values_ns, _JUST_BELOW_ONE))
    logs *= 1 / _LOG_OF_BASE
    # Zeros come out just below -1, and what is cut off is below 1.
    bins = (logs + 1).astype(np.intp)
    return np.minimum(bins, _NUM_BINS - 1, out=bins)


# Its bin is the one before that of 1.
_JUST_BELOW_ONE = 1 / 1.03


# For each bin the value that is nearest to all in it, as a share of them.
_VALUES: Floats = np.concatenate(
    [[0.0], np.exp(_LOG_OF_BASE * np.arange(_NUM_BINS - 1)) * (2 * 1.02 / 2.02)]
)
