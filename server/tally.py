"""What answers tell about tokens: how many were stored, what was a repetition, where a gap was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.rpc import error_details_pb2

from rondel.decoder.errors import PermissionDenied, QuotaExceeded, SequenceGap, Unauthenticated
from rondel.server.account import Account
from rondel.server.observer import Observer
from rondel.v1 import attention_pb2 as pb

_TURNED_AWAY: Final = (QuotaExceeded.reason, Unauthenticated.reason, PermissionDenied.reason)
"""Refusals that nobody else tells of: those of the queue are the scheduler's."""


class Tally:
    """A watcher that tells an observer what the answers say."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def begin(self, method: object, account: Account, metadata: object) -> None:
        """Nothing is known yet."""

    def answered(self, account: Account, request: Any, response: Any) -> None:
        match response:
            case pb.AppendTokenResponse(duplicate=True):
                self._observer.repeated(account.tenant)
            case pb.AppendTokenResponse():
                layers, tokens = request.k.shape[:2]
                self._observer.stored(layers * tokens, account.tenant)
            case pb.StepResponse():
                self.steps(request.items, response.results, account.tenant)
            case pb.DecodeResult() if response.status.code:
                self._failed(_reason(response), account.tenant)
            case pb.DecodeResult():
                kind = response.WhichOneof("result")
                if kind is not None:
                    self.answered(account, getattr(request, kind), getattr(response, kind))

    def steps(self, items: Sequence[pb.StepItem], results: Sequence[pb.StepResult], tenant: str) -> None:
        """What became of streams' steps, each on one layer."""
        stored = 0
        for item, result in zip(items, results, strict=True):
            if result.HasField("status") and result.status.code:
                self._failed(_reason(result), tenant)
            elif result.duplicate:
                self._observer.repeated(tenant)
            else:
                stored += (item.embeddings if item.HasField("embeddings") else item.q).shape[0]
        self._observer.stepped(len(items))
        self._observer.stored(stored, tenant)

    def end(self, account: Account, listener: object) -> None:
        if account.reason:
            self._failed(account.reason, account.tenant)

    def _failed(self, reason: str, tenant: str) -> None:
        self._observer.failed(reason)
        if reason in _TURNED_AWAY:
            self._observer.refused(reason.lower(), tenant)
        if reason == SequenceGap.reason:
            self._observer.gap(tenant)


def _reason(result: pb.StepResult | pb.DecodeResult) -> str:
    info = error_details_pb2.ErrorInfo()
    return str(info.reason) if any(each.Unpack(info) for each in result.status.details) else ""
