"""One compile for one recipe, however many ask: in this process (`local`), or in the fleet, on Redis Streams."""

from hotblock_farm.jobs.front import RedisQueue
from hotblock_farm.jobs.local import JobQueue, LocalQueue
from hotblock_farm.jobs.streams import QueueSettings
from hotblock_farm.jobs.worker import RedisWorker

__all__ = ["JobQueue", "LocalQueue", "QueueSettings", "RedisQueue", "RedisWorker"]
