#!/usr/bin/env python3
"""What a run of `run.py` came to, drawn and in numbers: `plot.py FOLDER PICTURE.png [--warm-up MINUTES]`.

Drift is the median of the last ten minutes against that of the first ten after the warm-up. The warm-up of a short run is half of
it, and its windows are a quarter. Needs requirements.txt.
"""

import argparse
import csv
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

WINDOW = 600
MIB = 1 << 20
# One panel each: its title, and the columns in it with what they are divided by.
PANELS = [
    ("resident memory, and what of it was allocated, MiB", {"rss_kib": 1024, "anon_kib": 1024}),
    ("open file descriptors, threads", {"fds": 1, "threads": 1}),
    ("blocks held, thousands", {"held_blocks": 1000}),
    ("messages in queues, and blocks without a parent", {"queued_messages": 1, "orphans": 1}),
    ("feeds that are live", {"live_feeds": 1}),
    ("processor, % of one core", {"cpu_percent": 1}),
]


def read(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def columns(rows):
    table = {name: [float(row[name]) for row in rows] for name in rows[0]}
    seconds, used = table["seconds"], table["cpu_seconds"]
    spent = [100 * (b - a) / (t - s) for a, b, s, t in zip(used, used[1:], seconds, seconds[1:], strict=False)]
    table["cpu_percent"] = spent[:1] + spent
    return table


def draw(table, happened, warm_up, picture):
    minutes = [seconds / 60 for seconds in table["seconds"]]
    figure, panels = plt.subplots(len(PANELS), 1, figsize=(11, 13), sharex=True, layout="constrained")
    for panel, (title, shown) in zip(panels, PANELS, strict=True):
        for column, unit in shown.items():
            panel.plot(minutes, [value / unit for value in table[column]], linewidth=1, label=column)
        panel.axvspan(0, warm_up / 60, color="0.93")
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        if len(shown) > 1:
            panel.legend(fontsize=8, loc="upper right")
    for row in happened:
        panels[0].axvline(float(row["seconds"]) / 60, ymax=0.05, color="0.5", linewidth=0.5)
    panels[-1].set_xlabel("minutes (grey: warm-up; ticks in the first panel: something happened)")
    figure.savefig(picture, dpi=90)


def drift(table, column, warm_up):
    """The medians of both windows, and by how many percent they differ."""
    pairs = list(zip(table["seconds"], table[column], strict=True))
    end = pairs[-1][0]
    window = min(WINDOW, (end - warm_up) / 2)
    first = median(value for at, value in pairs if warm_up <= at <= warm_up + window)
    last = median(value for at, value in pairs if at >= end - window)
    return first, last, 100 * (last / first - 1) if first else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--warm-up", type=float, default=30.0, help="minutes")
    options = parser.parse_args()
    table, happened = columns(read(options.folder / "samples.csv")), read(options.folder / "happened.csv")
    warm_up = min(60 * options.warm_up, table["seconds"][-1] / 2)
    draw(table, happened, warm_up, options.picture)
    print(f"{table['seconds'][-1] / 60:.0f} minutes, {len(happened)} happenings, {table['messages'][-1]:.0f} messages, "
          f"{table['requests'][-1]:.0f} requests, {table['claims'][-1]:.0f} claims, {table['wrong'][-1]:.0f} wrong, "
          f"{table['failed'][-1]:.0f} failed")  # fmt: skip
    print("| | after the warm-up | at the end | drift | most |\n|---|---|---|---|---|")
    for name, column, unit in [
        ("resident memory, MiB", "rss_kib", 1024),
        ("of it allocated, MiB", "anon_kib", 1024),
        ("file descriptors", "fds", 1),
        ("threads", "threads", 1),
        ("blocks held", "held_blocks", 1),
        ("their tables, MiB", "table_bytes", MIB),
        ("messages in queues", "queued_messages", 1),
        ("processor, % of one core", "cpu_percent", 1),
    ]:
        first, last, percent = drift(table, column, warm_up)
        most = max(table[column]) / unit
        print(f"| {name} | {first / unit:.1f} | {last / unit:.1f} | {percent:+.1f} % | {most:.1f} |")


if __name__ == "__main__":
    main()
