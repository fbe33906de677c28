"""The HTTP pages of running processes, and the metrics in them."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Metrics", "fetch", "metrics_of"]


@dataclass(frozen=True, slots=True)
class Metrics:
    """One metrics page: family name -> type, and (sample name, sorted labels) -> value."""

    types: dict[str, str]
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name that have these labels; KeyError when there is none."""
        found = [
            value
            for (sample, has), value in self.samples.items()
            if sample == name and labels.items() <= dict(has).items()
        ]
        if not found:
            raise KeyError(name)
        return sum(found)

    @property
    def labels(self) -> set[str]:
        """Names of all labels on the page, without the bounds of histograms."""
        return {name for _, has in self.samples for name, _ in has} - {"le"}


async def fetch(address: str, path: str) -> tuple[int, str]:
    """Status and text of one page."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}{path}") as response,
    ):
        return response.status, await response.text()


async def metrics_of(address: str) -> Metrics:
    """Read /metrics as a Prometheus server would."""
    status, text = await fetch(address, "/metrics")
    assert status == 200
    types, samples = {}, {}
    for family in text_string_to_metric_families(text):
        types[family.name] = family.type
        for sample in family.samples:
            samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return Metrics(types, samples)
