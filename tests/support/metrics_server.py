"""A process of `scrapy dq metrics`, and its parsed answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from support.web_page import WebPage

Labels = frozenset[tuple[str, str]]


class MetricsServer(WebPage):
    """The server of the metrics of one crawl."""

    def __init__(self, folder: Path, redis_url: str, crawl: str, *words: str, token: str = "") -> None:
        self.COMMAND = ("metrics", "--crawl", crawl)
        super().__init__(folder, redis_url, *words, token=token)

    def scrape(self) -> Samples:
        """Return the samples that Prometheus would read."""
        status, headers, text = self.ask("/metrics")
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        return Samples(text)


class Samples:
    """The parsed answer of a metrics server."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types = {family.name: family.type for family in text_string_to_metric_families(text)}
        self.series: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.series, f"this sample occurs twice: {key}"
                self.series[key] = sample.value

    def of(self, crawl: str) -> Mapping[str, float]:
        """Return a crawl's series by name and values of the other labels, such as `dq_requests waiting`."""
        return {
            " ".join([name, *(value for label, value in sorted(labels) if label != "crawl")]): number
            for (name, labels), number in self.series.items()
            if ("crawl", crawl) in labels
        }

    def value(self, name: str) -> float | None:
        """Return the value of a metric without labels."""
        return self.series.get((name, frozenset()))

    @property
    def crawls(self) -> set[str]:
        """All values of the label `crawl`."""
        return {value for _, labels in self.series for label, value in labels if label == "crawl"}

    @property
    def names(self) -> set[str]:
        """The names of all samples."""
        return {name for name, _ in self.series}
