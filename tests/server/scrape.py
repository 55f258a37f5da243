"""What the admin port says."""

import asyncio
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from rondel.server.app import Server


class Samples:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds = {}
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            for sample in family.samples:
                self._values[sample.name, frozenset(sample.labels.items())] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        """The value of a sample; 0 if there is none."""
        return self._values.get((name, frozenset(labels.items())), 0.0)

    def labels(self, name: str, label: str) -> set[str]:
        """All values that a label has in samples of this name."""
        return {dict(labels)[label] for sample, labels in self._values if sample == name}


def fetch(address: str, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    """Status and text of a page."""
    headers = {} if host is None else {"Host": host}
    request = urllib.request.Request(f"http://{address}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def page(server: Server, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    """As :func:`fetch`, of a server of this process."""
    address = server.observatory.admin_address
    assert address is not None
    return await asyncio.to_thread(fetch, address, path, method=method, host=host)


async def scrape(server: Server) -> Samples:
    """What /metrics says now."""
    status, text = await page(server, "/metrics")
    assert status == 200
    return Samples(text)
