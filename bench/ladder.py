"""`ladder`: the highest rate that a stack carries within the contract's latencies.

Rates climb by a fixed step. A rate that fails is tried once more, because the generator shares the machine with everything
else that runs there; if it fails again, the rate half a step lower is the last one tried. `top_per_s` is the highest rate
that passed, 0 if none did.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypedDict

from bench.report import PairReport

__all__ = [
    "ACK_P99_LIMIT_MS",
    "E2E_P99_LIMIT_MS",
    "LadderOptions",
    "LadderReport",
    "Step",
    "climb",
    "shortfalls",
]

ACK_P99_LIMIT_MS: Final = 150.0  # contract: SEND_ACK P99
E2E_P99_LIMIT_MS: Final = 300.0  # contract: end-to-end P99
MIN_DELIVERED_SHARE: Final = 0.99
MIN_OFFERED_SHARE: Final = 0.99  # LOAD-05: the rate is read back before latency is judged
MIN_SECONDS: Final = 20.0


class Step(TypedDict):
    """One try of one rate; `short_of` names every limit it missed, empty when it passed."""

    rate_per_s: float
    short_of: list[str]
    report: PairReport


class LadderReport(TypedDict):
    """The result of a climb."""

    top_per_s: float
    steps: list[Step]


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """Rates in messages a second."""

    start_per_s: float = 500.0
    step_per_s: float = 500.0
    max_per_s: float = 10_000.0
    seconds: float = MIN_SECONDS

    def rates(self) -> Iterator[float]:
        """Yield the rates of the climb, lowest first."""
        rate = self.start_per_s
        while rate <= self.max_per_s:
            yield rate
            rate += self.step_per_s


def shortfalls(report: PairReport) -> list[str]:
    """Return what keeps a run from passing; an empty list is a pass."""
    short: list[str] = []
    for name, limit_ms in (("ack_ms", ACK_P99_LIMIT_MS), ("e2e_ms", E2E_P99_LIMIT_MS)):
        p99 = report["ack_ms" if name == "ack_ms" else "e2e_ms"]["p99"]
        if p99 is None or p99 > limit_ms:
            short.append(f"{name} p99 {p99} > {limit_ms}")
    if report["delivered_share"] < MIN_DELIVERED_SHARE:
        short.append(f"delivered_share {report['delivered_share']} < {MIN_DELIVERED_SHARE}")
    if report["offered_per_s"] < MIN_OFFERED_SHARE * report["target_per_s"]:
        short.append(f"offered_per_s {report['offered_per_s']} of {report['target_per_s']}")
    if report["config"]["seconds"] < MIN_SECONDS:
        short.append(f"seconds {report['config']['seconds']} < {MIN_SECONDS}")
    for fault in ("duplicates", "order_breaks", "strangers"):
        count = report[fault]
        if count:
            short.append(f"{fault} {count}")
    return short


async def climb(
    options: LadderOptions,
    measure: Callable[[float], Awaitable[PairReport]],
    say: Callable[[str], None],
) -> LadderReport:
    """Measure rate after rate until one fails for good."""
    steps: list[Step] = []

    async def passes(rate: float) -> bool:
        report = await measure(rate)
        step: Step = {"rate_per_s": rate, "short_of": shortfalls(report), "report": report}
        steps.append(step)
        ack, e2e = report["ack_ms"]["p99"], report["e2e_ms"]["p99"]
        verdict = "; ".join(step["short_of"]) or "passed"
        cpu = report["server_cpu_ms_per_message"]
        foreign = report["foreign_cpu_s"] / max(report["window_s"], 1e-9)
        say(
            f"{rate:g}/s: ACK p99 {ack} ms, e2e p99 {e2e} ms, {cpu} ms of CPU a message, "
            f"generator late p99 {report['late_ms']['p99']} ms, {foreign:.2f} cores used by others: "
            f"{verdict}"
        )
        return not step["short_of"]

    top = 0.0
    for rate in options.rates():
        if await passes(rate) or await passes(rate):
            top = rate
            continue
        between = rate - options.step_per_s / 2
        if between > top and await passes(between):
            top = between
        break
    return {"top_per_s": top, "steps": steps}
