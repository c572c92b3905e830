"""The tables of `dissensus bench runtime`: how fast the simulator is, and the model against what was measured."""

from __future__ import annotations

from typing import Any

from dissensus.experiments.cli.output import print_table


def show_runtime(result: dict[str, Any]) -> None:
    """A table for every part, each with its verdict, and what was left out."""
    if "simulator" in result:
        _show_speeds(result["simulator"])
    if "validation" in result:
        _show_validation(result["validation"])
    if "replays" in result:
        _show_published(result["replays"]["published"])
        _show_emulated(result["replays"]["emulated"])
    for what, reason in result["skipped"].items():
        print(f"{what}: skipped, {reason}")


def _show_speeds(rows: list[dict[str, Any]]) -> None:
    print_table(
        "the simulator: worker-iterations, and its share of the speed at which its numbers are copied; medians",
        ["regime", "million per second", "smallest to largest", "share of copying", "runs"],
        [
            [
                row["regime"],
                f"{rate['median'] / 1e6:.0f}",
                f"{rate['min'] / 1e6:.0f} to {rate['max'] / 1e6:.0f}",
                f"{100 * row['share_of_copying']['median']:.2g} %",
                rate["runs"],
            ]
            for row in rows
            for rate in (row["worker_iterations_per_second"],)
        ],
    )


def _show_validation(found: dict[str, Any]) -> None:
    print_table(
        "a step predicted and measured, ms; exchange and all-reduce alone are what the model is given",
        ["setting", "exchange", "all-reduce", "ours", "off", "ddp", "off", "speed-up"],
        [
            [
                f"{row['rate']}, noise {row['sigma']:g}, {row['schedule']}",
                f"{1000 * row['exchange_seconds']:.0f}",
                f"{1000 * row['all_reduce_seconds']:.0f}",
                *(cell for who in ("ours", "ddp") for cell in _beside(row, who)),
                f"{row['speedup_predicted']:.2f} / {row['speedup_measured']:.2f}",
            ]
            for row in found["settings"]
        ],
    )
    print(
        f"within {100 * found['within']:.0f} %: {found['both_close']} of {found['of']}; "
        f"winner right: {found['right']} of {found['differ']}"
    )


def _show_published(sets: list[dict[str, Any]]) -> None:
    print_table(
        f"published iterations: order predicted and published; assumed: {sets[0]['assumed']['name']}",
        ["cluster", "n", "predicted", "published", "right", "all-reduce / aer", "counts"],
        [
            [
                row["cluster"],
                row["n"],
                row["predicted_order"],
                row["published_order"],
                row["right"],
                f"{row['ratio_predicted']:.2f} / {row['ratio_published']:.2f}",
                row["counts"],
            ]
            for row in sets[0]["rows"]
        ],
    )
    print_table(
        "the same under other assumptions, in the rows that count",
        [
            "assumed",
            *(f"of {sets[0]['of']}: {what}" for what in ("order", *sets[0]["pairs_right"])),
            "pairs opposed",
            "contradicted by",
        ],
        [
            [
                one["assumed"]["name"],
                one["right"],
                *one["pairs_right"].values(),
                one["pairs_opposed"],
                one["contradicted"],
            ]
            for one in sets
        ],
    )


def _show_emulated(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0]["off"])
    print_table(
        "decent-dp and DDP on emulated links and with stragglers, predicted / measured ms",
        ["setting", "n", *(name for who in names for name in (who, "off")), "counts"],
        [
            [row["setting"], row["n"], *(cell for who in names for cell in _beside(row, who)), row["counts"]]
            for row in rows
        ],
    )


def _beside(row: dict[str, Any], who: str) -> tuple[str | None, str | None]:
    """Predicted beside measured, and how far off."""
    if who not in row["off"]:
        return None, None
    predicted, measured = 1000 * row["predicted"][who], 1000 * row["measured"][who]
    return f"{predicted:.0f} / {measured:.0f}", f"{100 * row['off'][who]:+.1f} %"
