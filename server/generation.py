"""GenerationService: a language model on sessions in this server's arena."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import Overloaded
from rondel.decoder.lm.forward import LanguageModel
from rondel.server.config import ServerConfig
from rondel.server.continuation import Continuation
from rondel.server.door import Call
from rondel.server.models import Models
from rondel.server.operation import Load
from rondel.server.scheduler import Scheduler
from rondel.server.tenants import Tenants
from rondel.v1 import generation_pb2 as pb
from rondel.v1.specs import spec_to_message

_RETRY_MS: Final = 1000
_ADVANCE: Final = Load("advance")


class GenerationService:
    """Handlers of rondel.v1.GenerationService. The model runs on the scheduler's worker, token by token."""

    def __init__(
        self, config: ServerConfig, arena: Arena, tenants: Tenants, scheduler: Scheduler, models: Models
    ) -> None:
        self._limit = config.max_generations
        self._tenants = tenants
        self._arena = arena
        self._scheduler = scheduler
        self._models = models
        self._at_work = 0

    async def generate(self, request: pb.GenerateRequest, call: Call) -> None:
        if self._at_work >= self._limit:
            raise Overloaded(
                f"{self._at_work} generations are at work, the limit is {self._limit}",
                retry_after_ms=_RETRY_MS,
            )
        self._at_work += 1
        account = self._tenants.get(call.tenant).account
        continuation = Continuation(request, self._models, self._arena, account, received=call.received)
        cost, steps = call.size, 0
        try:
            call.take(0)  # refused at once by what is owed; later it only waits
            while not continuation.ended:
                if pause := call.pause():
                    await asyncio.sleep(pause)
                events = await self._scheduler.run(
                    continuation.advance,
                    cost=cost,
                    deadline=call.deadline,
                    tenant=call.tenant,
                    load=_ADVANCE,
                )
                cost = 0
                call.owe(continuation.steps - steps)
                steps = continuation.steps
                for event in events:
                    await call.write(event)
        finally:
            # Posted, not awaited: this may be the end of a cancelled call, and what the worker is doing for
            # it now must be over first.
            self._scheduler.post(continuation.close, tenant=call.tenant)
            self._at_work -= 1

    async def list_models(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        if self._models.loaded is None:
            return pb.ListModelsResponse()
        return await self._scheduler.run(
            partial(self._list, self._models.loaded),
            cost=call.size,
            deadline=call.deadline,
            tenant=call.tenant,
        )

    def _list(self, model: LanguageModel) -> pb.ListModelsResponse:
        described = pb.Model(
            name=self._models.name,
            loaded=True,
            context_length=model.context_length,
            vocabulary=model.vocabulary,
            spec=spec_to_message(model.spec(), in_force=True),
        )
        return pb.ListModelsResponse(models=[described])
