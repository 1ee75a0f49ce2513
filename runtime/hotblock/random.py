"""`hb.random`: random tensors inside an `@hb.function`, as functions of the runtime's seed, the draw and the position."""

from hotblock.frontend.ops.random import bernoulli, normal, uniform

__all__ = ["bernoulli", "normal", "uniform"]
