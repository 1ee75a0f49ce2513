"""The log of a farm: one JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time

__all__ = ["detail", "journal", "write"]

_logger = logging.getLogger("hotblock.farm")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": round(time.time(), 3), "level": record.levelname.lower(), "event": record.getMessage()}
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def journal(level: str = "info") -> None:
    """Write what hotblock logs to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    root = logging.getLogger("hotblock")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def write(event: str, **fields: object) -> None:
    """One line."""
    _logger.info(event, extra={"fields": fields})


def detail(event: str, **fields: object) -> None:
    """One line for who looks closely (`--log-level debug`)."""
    _logger.debug(event, extra={"fields": fields})
