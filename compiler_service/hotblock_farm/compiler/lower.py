"""`python -m hotblock_farm.compiler.lower STAGE`: a CompileJob on standard input, what a stage makes of it on the output."""

from __future__ import annotations

import sys

from hotblock.errors import HotblockError
from hotblock.isa.segment import Segment
from hotblock.shapes.classes import ShapeClass
from hotblock.stages import Stage
from hotblock_farm.compiler.codegen.target import target_named
from hotblock_farm.compiler.pipeline import lower, show
from hotblock_farm.errors import FarmError
from hotblock_proto.v1 import artifact_pb2 as pb

__all__ = ["main"]


def main() -> int:
    """0 with the stage's text, 1 with the reason why there is none."""
    request = pb.CompileJob.FromString(sys.stdin.buffer.read())
    try:
        segment, shape_class = Segment.decode(request.segment), ShapeClass.decode(request.shape_class)
        stages = lower(segment, shape_class, target_named(request.target))
        sys.stdout.write(show(stages, Stage(sys.argv[1])))
    except (FarmError, HotblockError) as error:
        sys.stdout.write(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
