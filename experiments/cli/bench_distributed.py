"""The tables of `dissensus bench distributed`: who took how long, and what ours is held to."""

from __future__ import annotations

from typing import Any

from dissensus.experiments.cli.output import print_table


def show_distributed(result: dict[str, Any]) -> None:
    """A table of times for every setting, one of all limits, one of memory, and what was left out or failed."""
    timed = [row for row in result["rows"] if row["part"] != "memory"]
    settings = {(row["part"], row["setting"]): row for row in timed}
    for (part, name), row in settings.items():
        print_table(
            f"{part}: {name}: a step, median (fastest block){_sharing(row)}{_waiting(row)}",
            ["who", "ms", "ms of a core", "steps in a block", "off its recursion"],
            [
                [
                    who,
                    _ms(lap),
                    _ms(row["core_seconds"][who]),
                    row["steps_in_a_block"][who],
                    _short(row["difference"].get(who)),
                ]
                for who, lap in row["seconds"].items()
            ],
        )
    if timed:
        print_table(
            "what ours is held to: ratio of medians (of fastest blocks; from round to round)",
            ["part", "setting", "limit", "ratio", "met", "agree", "note"],
            [
                [row["part"], row["setting"], row["limit"], _ratio(row), row["met"], row["agree"], row["note"]]
                for row in timed
            ],
        )
    memory = [row for row in result["rows"] if row["part"] == "memory"]
    if memory:
        kinds = ("resident", "allocated", "at_rest")
        print_table(
            "memory at the peak of a step, bytes per parameter",
            ["setting", "who", *kinds, "limit", "met"],
            [
                [
                    *(row[key] for key in ("setting", "who")),
                    *(f"{row['bytes_per_parameter'][kind]:.2f}" for kind in kinds),
                    *(row[key] for key in ("limit", "met")),
                ]
                for row in memory
            ],
        )
    for what, reason in result["skipped"].items():
        print(f"{what}: skipped, {reason}")
    for what, reason in result["failed"].items():
        print(f"{what}: failed, {reason}")


def _sharing(row: dict[str, Any]) -> str:
    return f"; TCP shares links by {row['congestion']}" if row["congestion"] else ""


def _waiting(row: dict[str, Any]) -> str:
    allowed = row["waiting_allows"]
    return f"; waiting alone makes DDP {allowed:.2f} times as long" if allowed else ""


def _ratio(row: dict[str, Any]) -> str | None:
    if row["ratio"] is None:
        return None
    rounds = row["ratio_by_round"]
    return f"{row['ratio']:.2f} ({row['ratio_of_fastest']:.2f}; {rounds['min']:.2f} to {rounds['max']:.2f})"


def _ms(lap: dict[str, float]) -> str:
    return f"{1000 * lap['median']:.3g} ({1000 * lap['min']:.3g})"


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.1e}"
