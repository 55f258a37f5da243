"""Who uses the server: quotas, what is at work for each, and what each has of the arena."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from rondel.decoder.cache.account import Account
from rondel.decoder.errors import QuotaExceeded
from rondel.server.quota import CALLS_RETRY_MS, NO_QUOTA, Bucket, Quota


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant has now."""

    streams: int
    """Open ones."""
    reserved: int
    """Bytes promised to its streams and generations."""
    resident: int
    """Bytes of pages in use, each counted once."""
    shared: int
    """Bytes of those that several of its streams hold."""
    calls: int
    """At work."""


ONLY_TENANT: Final = ""
"""Whose calls they are where nobody is asked."""


class Tenant:
    """One tenant. For the event loop, but for the account, whose lock is the arena's."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name: Final = name
        self.account: Final = Account(private=name != ONLY_TENANT)
        self.steps: Final = Bucket(clock)
        self.calls = 0
        """At work."""
        self.quota = NO_QUOTA

    def apply(self, quota: Quota) -> None:
        """Have another quota from now on. It takes nothing away that is there."""
        self.quota = quota
        self.account.limit = quota.max_bytes
        self.steps.rate = quota.steps_per_second

    def enter(self) -> None:
        """One more call. Raises QuotaExceeded."""
        most = self.quota.max_calls
        if most is not None and self.calls >= most:
            raise QuotaExceeded(
                f"{self.calls} calls of this tenant are at work, the quota is {most}",
                quota="calls",
                limit=most,
                retry_after_ms=CALLS_RETRY_MS,
            )
        self.calls += 1

    def leave(self) -> None:
        """One call less."""
        self.calls -= 1


class Tenants:
    """Tenants by name. ``clock`` is what steps per second are measured by."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quotas: Mapping[str, Quota] = {}
        self._tenants: dict[str, Tenant] = {}

    def get(self, name: str) -> Tenant:
        """The tenant of a name, the same one every time. From any thread."""
        found = self._tenants.get(name)
        if found is None:
            found = Tenant(name, self._clock)
            found.apply(self._quotas.get(name, NO_QUOTA))
            found = self._tenants.setdefault(name, found)
        return found

    @property
    def named(self) -> Collection[str]:
        """Those that the configuration names."""
        return self._quotas.keys()

    def apply(self, quotas: Mapping[str, Quota]) -> None:
        """Have other quotas from now on; a tenant that is not named has none."""
        self._quotas = quotas
        for name, tenant in list(self._tenants.items()):
            tenant.apply(quotas.get(name, NO_QUOTA))
