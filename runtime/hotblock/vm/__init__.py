"""The register VM: values, steps, the interpreter, and what programs of one runtime share."""

from hotblock.vm.arguments import check_arguments
from hotblock.vm.code import Code, load_program
from hotblock.vm.instrument import Instrument, Tracer
from hotblock.vm.interpreter import allocate, execute
from hotblock.vm.limits import Limits
from hotblock.vm.state import Constant, Parameters, RandomStream
from hotblock.vm.steps import StepMaker
from hotblock.vm.values import Layout, LayoutTable, TensorValue

__all__ = [
    "Code",
    "Constant",
    "Instrument",
    "Layout",
    "LayoutTable",
    "Limits",
    "Parameters",
    "RandomStream",
    "StepMaker",
    "TensorValue",
    "Tracer",
    "allocate",
    "check_arguments",
    "execute",
    "load_program",
]
