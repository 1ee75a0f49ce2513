"""The operations of the front end, named after the Python array API standard where it has them.

They work inside an `@hb.function`, on tensors and host scalars; calling one anywhere else raises HotblockError. Attributes
(axes, flags, dtypes) are fixed when the function is compiled; sizes, slices and scalars may be run-time values. Each op
appends instructions, whose rows in `hotblock.isa.table` say what they compute.
"""

from __future__ import annotations

from hotblock.frontend.ops import contractions, creation, elementwise, movement, reductions, state
from hotblock.frontend.ops.contractions import *
from hotblock.frontend.ops.creation import *
from hotblock.frontend.ops.declare import OPS as OPS
from hotblock.frontend.ops.elementwise import *
from hotblock.frontend.ops.movement import *
from hotblock.frontend.ops.random import dropout
from hotblock.frontend.ops.reductions import *
from hotblock.frontend.ops.state import *

__all__ = ["dropout"]
__all__ += contractions.__all__
__all__ += creation.__all__
__all__ += elementwise.__all__
__all__ += movement.__all__
__all__ += reductions.__all__
__all__ += state.__all__
