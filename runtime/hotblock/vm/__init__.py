"""The register VM: values, steps, the interpreter, and what programs of one runtime share."""

from hotblock.vm.arguments import check_arguments
from hotblock.vm.code import Code, Dying, Entry, EntryMaker, Node, Watch, load_program
from hotblock.vm.instrument import Instrument, Tracer
from hotblock.vm.interpreter import allocate, execute
from hotblock.vm.limits import Limits
from hotblock.vm.segments import Site
from hotblock.vm.state import Constant, Parameters, RandomStream
from hotblock.vm.steps import Registers, StepMaker
from hotblock.vm.values import Layout, LayoutTable, TensorValue

__all__ = [
    "Code",
    "Constant",
    "Dying",
    "Entry",
    "EntryMaker",
    "Instrument",
    "Layout",
    "LayoutTable",
    "Limits",
    "Node",
    "Parameters",
    "RandomStream",
    "Registers",
    "Site",
    "StepMaker",
    "TensorValue",
    "Tracer",
    "Watch",
    "allocate",
    "check_arguments",
    "execute",
    "load_program",
]
