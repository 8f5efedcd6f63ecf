"""Plots of the output of ``starpullm bench --json``: strong scaling, weak scaling, and partitions by batch size.

matplotlib is imported when a plot is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starpullm.errors import FileError, FormatError, InvalidArgumentError, MissingDependencyError
from starpullm.files.json_reader import read_json
from starpullm.report.scaling import KINDS, TITLES, Point, Series, panels
from starpullm.speed.measure import Throughput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["KINDS", "draw", "read_results", "save"]

_PANEL_INCHES = (4.6, 4.0)
_PANEL_COLUMNS = 3
_BAR_GROUP = 0.8  # of the width that a batch size has
_LEGEND_COLUMNS = 4
_LIMIT = "limit of the matmuls"
_MARKERS = "osD^vP*X"
_DPI = 150


def read_results(paths: Iterable[Path]) -> list[Throughput]:
    """Read files with the output of ``starpullm bench --json``.

    Raises
    ------
    FileError
        If a file can't be read.
    FormatError
        If a file has other content.
    """
    results = []
    for path in paths:
        entries = read_json(path)
        try:
            results += [Throughput.from_json(entry) for entry in entries if "failure" not in entry]
        except (TypeError, KeyError, AttributeError, InvalidArgumentError) as error:
            raise FormatError(
                f"{path}: expected results of starpullm bench --json (without --against): {error}"
            ) from error
    return results


def draw(kind: str, results: Sequence[Throughput]) -> Figure:
    """Draw results of one model on one machine; those that don't fit the kind of plot are left out.

    ``"strong"`` is tokens per millisecond by cores, with a panel for each batch size; ``"weak"`` the same, with a panel
    for each batch size per core. ``"partitions"`` has a bar for each partition by batch size, and a panel for each
    number of cores. If several results belong to the same point, because they differ in the number of sub-batches, the
    fastest is drawn. The line of the limit is the speed of a training that consists of its matmuls alone, at the
    highest limit that was measured for that number of cores.

    Raises
    ------
    InvalidArgumentError
        If there is nothing to draw, or if the results are of several models, sequence lengths, reductions or machines.
    MissingDependencyError
        If matplotlib can't be imported.
    """
    if not results:
        raise InvalidArgumentError("results: found none, expected at least one")
    for name, of in _SHARED.items():
        values = sorted({str(of(result)) for result in results})
        if len(values) > 1:
            raise InvalidArgumentError(f"results: found several kinds of {name} ({', '.join(values)}), expected one")
    points = [_point(result) for result in results]
    drawn = panels(kind, points)
    if not drawn:
        batch = "batch size" if kind == "strong" else "batch per core"
        raise InvalidArgumentError(f"{kind}: expected several numbers of cores with the same {batch}, found none")
    limits: dict[int, float] = {}
    for point in points:
        limits[point.cores] = max(limits.get(point.cores, 0.0), point.limit)
    labels = list(dict.fromkeys(label for series in drawn.values() for label in series))
    styles = {label: (f"C{number}", _MARKERS[number % len(_MARKERS)]) for number, label in enumerate(labels)}
    figure, axes = _new_figure(len(drawn))
    for number, (axis, (title, series)) in enumerate(zip(axes, drawn.items(), strict=True)):
        (_bars if kind == "partitions" else _lines)(axis, series, limits, styles)
        axis.set_title(title, fontsize="medium")
        axis.set_ylabel("tokens per millisecond" if number % _PANEL_COLUMNS == 0 else "")
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    axes[0].set_ylim(bottom=0)  # of all panels: they share the axis
    shown = {label: artist for axis in axes for artist, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(shown.values()), list(shown), loc="outside lower center", ncols=_LEGEND_COLUMNS, fontsize="small"
    )
    first = results[0]
    figure.suptitle(
        f"{TITLES[kind]}: {Path(first.configuration.model).name}, T = {first.configuration.seq_len}\n"
        f"{first.processor}, {first.simd_level}, {first.configuration.reduction}"
        + ("" if first.matmul == "strict" else f", matmuls by {first.matmul}"),
        fontsize="medium",
    )
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a plot in the format that the suffix of the name stands for.

    Raises
    ------
    InvalidArgumentError
        If matplotlib doesn't know the format.
    FileError
        If the file can't be written.
    """
    formats = figure.canvas.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".")
    if suffix not in formats:
        raise InvalidArgumentError(f"{path}: expected a name that ends in one of {', '.join(sorted(formats))}")
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise FileError(f"{path}: can't be written: {os.strerror(error.errno or 0)}", error.errno, str(path)) from error


# ---- What is drawn ----

_SHARED: dict[str, Callable[[Throughput], object]] = {
    "model": lambda result: result.configuration.model,
    "sequence length": lambda result: result.configuration.seq_len,
    "reduction": lambda result: result.configuration.reduction,
    "processor": lambda result: result.processor,
    "matmul": lambda result: result.matmul,
}

_Styles = dict[str, tuple[str, str]]
"""A label's colour and marker, the same in all panels."""


def _point(result: Throughput) -> Point:
    workload = result.configuration
    limit = result.matmul_limit_gflops * 1e9 / (result.matmul_flops / workload.tokens) / 1e3
    return Point(workload.partition, workload.ranks, workload.batch_size, result.tokens_per_ms, limit)


# ---- Drawing ----


def _new_figure(panels: int) -> tuple[Figure, Sequence[Axes]]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            f"matplotlib: can't be imported ({error}), expected it for pictures: pip install 'starpullm[plots]'"
        ) from error
    width, height = _PANEL_INCHES
    columns = min(panels, _PANEL_COLUMNS)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes: Any = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for unused in axes.flat[panels:]:
        unused.remove()
    return figure, list(axes.flat[:panels])


def _lines(axis: Axes, series: Series, limits: Mapping[int, float], styles: _Styles) -> None:
    points = [(cores, point.tokens_per_ms) for line in series.values() for cores, point in line.items()]
    all_cores = sorted({cores for cores, _ in points})
    for label, line in series.items():
        colour, marker = styles[label]
        speeds = [point.tokens_per_ms for point in line.values()]
        axis.plot(list(line), speeds, color=colour, marker=marker, label=label)
    fewest = all_cores[0]
    start = max(speed for cores, speed in points if cores == fewest)
    axis.plot(all_cores, [start * cores / fewest for cores in all_cores], "--", color="grey", label="ideal")
    axis.plot(all_cores, [limits[cores] for cores in all_cores], ":", color="black", label=_LIMIT)
    axis.set_xticks(all_cores)
    axis.set_xlabel("cores")


def _bars(axis: Axes, series: Series, limits: Mapping[int, float], styles: _Styles) -> None:
    sizes = sorted({size for bars in series.values() for size in bars})
    width = _BAR_GROUP / len(series)
    for number, (label, bars) in enumerate(series.items()):
        shift = (number - (len(series) - 1) / 2) * width
        places = [sizes.index(size) + shift for size in bars]
        axis.bar(places, [point.tokens_per_ms for point in bars.values()], width, color=styles[label][0], label=label)
    (cores,) = {point.cores for bars in series.values() for point in bars.values()}
    axis.axhline(limits[cores], linestyle=":", color="black", label=_LIMIT)
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axis.set_xlabel("batch size B")
