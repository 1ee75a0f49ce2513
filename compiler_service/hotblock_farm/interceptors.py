"""What is done for every call: it is counted, timed, and written to the log with the name that its caller gave it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from hotblock_farm.journal import detail

__all__ = ["CallCounts", "Observed"]


class CallCounts:
    """Calls that have ended, by RPC and status code, and their seconds by RPC."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)


class Observed(grpc.aio.ServerInterceptor):
    """Belongs to one event loop."""

    def __init__(self, counts: CallCounts) -> None:
        self._counts = counts

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        service, _, name = handler_call_details.method.lstrip("/").rpartition("/")
        if handler is None or not service.startswith("hotblock."):
            return handler
        request = dict(handler_call_details.invocation_metadata or ()).get("x-request-id", "")
        if handler.unary_unary is not None:
            unary = handler.unary_unary

            async def run(message: Any, context: Any) -> Any:
                began = time.monotonic()
                try:
                    return await unary(message, context)
                finally:
                    self._ended(name, context, began, request)

            return grpc.unary_unary_rpc_method_handler(run, handler.request_deserializer, handler.response_serializer)
        stream = handler.unary_stream

        async def run_stream(message: Any, context: Any) -> Any:
            began = time.monotonic()
            try:
                async for answer in stream(message, context):
                    yield answer
            finally:
                self._ended(name, context, began, request)

        return grpc.unary_stream_rpc_method_handler(
            run_stream, handler.request_deserializer, handler.response_serializer
        )

    def _ended(self, name: str, context: Any, began: float, request: Any) -> None:
        if context.cancelled():
            code = grpc.StatusCode.CANCELLED.name
        else:
            found = context.code()  # 0 where nobody has said anything: all went well
            code = found.name if isinstance(found, grpc.StatusCode) else grpc.StatusCode.OK.name
        seconds = time.monotonic() - began
        self._counts.ended[name, code] += 1
        self._counts.seconds[name] += seconds
        detail("call", rpc=name, code=code, seconds=round(seconds, 5), request=str(request)[:64])
