"""GetServerInfo: what the server is, and what of it is the caller's. For the scheduler's worker only."""

from __future__ import annotations

from rondel import __version__
from rondel.decoder import kernels, pool
from rondel.server.config import ServerConfig
from rondel.server.projections import ProjectionSets
from rondel.server.quota import Quota
from rondel.server.replies import milliseconds
from rondel.server.streams import StreamRegistry
from rondel.server.tenants import ONLY_TENANT
from rondel.v1 import attention_pb2 as pb
from rondel.v1.tenant_pb2 import TenantInfo


def server_info(
    config: ServerConfig, streams: StreamRegistry, projections: ProjectionSets, tenant: str
) -> pb.GetServerInfoResponse:
    """The answer to a tenant. Of memory it is told its own alone: how much others use is theirs."""
    return pb.GetServerInfoResponse(
        version=__version__,
        tier=kernels.TIER,
        epoch=streams.epoch,
        start_id=streams.start_id,
        limits=_limits(config, streams),
        memory=_memory(streams, tenant),
        streams=streams.usage(tenant).streams,
        threads=pool.threads(),
        projections=projections.names,
        tenant=_tenant(tenant, streams.tenants.get(tenant).quota),
    )


def decode_hello(config: ServerConfig, streams: StreamRegistry) -> pb.DecodeHello:
    """What a Decode call begins with. Also for the loop."""
    return pb.DecodeHello(limits=_limits(config, streams), epoch=streams.epoch, start_id=streams.start_id)


def _limits(config: ServerConfig, streams: StreamRegistry) -> pb.ServerLimits:
    return pb.ServerLimits(
        max_message_bytes=config.max_message_bytes,
        max_streams=streams.max_streams,
        max_queue_bytes=config.queue_bytes,
        max_queue_ms=milliseconds(config.max_queue_seconds),
        max_step_items=config.max_step_items,
        idle_lease_ms=milliseconds(config.idle_lease_seconds),
        stall_timeout_ms=milliseconds(config.stall_timeout_seconds),
        decode_window_bytes=config.decode_window_bytes,
    )


def _memory(streams: StreamRegistry, tenant: str) -> pb.MemoryInfo:
    arena = streams.arena.stats()
    if tenant == ONLY_TENANT:
        return pb.MemoryInfo(
            budget=arena.budget,
            reserved=arena.reserved,
            resident=arena.resident,
            shared=arena.shared,
            overcommit=arena.overcommit,
        )
    quota, usage = streams.tenants.get(tenant).quota.max_bytes, streams.usage(tenant)
    return pb.MemoryInfo(
        budget=arena.budget if quota is None else min(quota, arena.budget),
        reserved=usage.reserved,
        resident=usage.resident,
        shared=usage.shared,
        overcommit=arena.overcommit,
    )


def _tenant(name: str, quota: Quota) -> TenantInfo:
    return TenantInfo(
        name=name,
        max_streams=quota.max_streams,
        max_bytes=quota.max_bytes,
        steps_per_second=quota.steps_per_second,
        max_calls=quota.max_calls,
    )
