"""How commands tell what happened: errors as one line and an exit code, results as text or JSON."""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import click

from hotblock.errors import HotblockError, ProgramError, ResourceError

__all__ = ["ErrorGroup", "describe", "emit_json", "json_option"]

json_option = click.option("--json", "as_json", is_flag=True, help="Write the result as one JSON object.")

_MAX_VALUES = 10_000


class ErrorGroup(click.Group):
    """A group whose commands end in a documented exit code and one clear line on standard error."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HotblockError as error:
            _report(ctx, error, error.reason, str(error))
            sys.exit(3 if isinstance(error, ProgramError) else 4 if isinstance(error, ResourceError) else 1)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BrokenPipeError:
            sys.stderr.close()  # the reader has gone; Python would complain about flushing at exit
            sys.exit(1)
        except Exception as error:
            _report(ctx, error, "internal", f"{type(error).__name__}: {error}; run again with --debug for the trace")
            sys.exit(1)


def _report(ctx: click.Context, error: Exception, reason: str, message: str) -> None:
    if ctx.obj:
        traceback.print_exception(error)
    if "--json" in sys.argv:
        emit_json({"error": {"type": type(error).__name__, "reason": reason, "message": message}})
    click.echo("error: " + message.replace("\n  ", " | "), err=True)


def emit_json(value: Any) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(value, ensure_ascii=False))


def describe(value: Any) -> dict[str, Any]:
    """A result for JSON: a number as it is, a tensor with dtype, shape and (up to a size) its values."""
    if isinstance(value, (bool, int, float)):
        return {"kind": type(value).__name__, "value": _finite(value)}
    described: dict[str, Any] = {"kind": "tensor", "dtype": value.dtype.name, "shape": list(value.shape)}
    if value.size <= _MAX_VALUES:
        plain = value.tolist() if value.dtype.kind in "biuf" else value.astype("float32").tolist()
        described["value"] = _finite(plain)
    return described


def _finite(value: Any) -> Any:
    """JSON has no inf and NaN: they are written as strings."""
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
