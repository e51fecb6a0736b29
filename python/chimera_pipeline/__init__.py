"""Pipeline schedules that are proven, simulated, drawn and run.

>>> import chimera_pipeline as chimera
>>> timetable = chimera.schedule("chimera", depth=4, micro_batches=4)
>>> program = timetable.lower()
>>> program.simulate(forward=1, backward=2).makespan
16.0
"""

from ._core import (
    Bug,
    Error,
    Program,
    Refusal,
    Timeline,
    Timetable,
    Unfit,
    __version__,
    auto,
    parse,
    schedule,
    schedules,
)
from ._compare import Comparison, compare
from ._own import timetable

__all__ = [
    "Bug",
    "Comparison",
    "Error",
    "Program",
    "Refusal",
    "Timeline",
    "Timetable",
    "Unfit",
    "__version__",
    "auto",
    "compare",
    "parse",
    "schedule",
    "schedules",
    "timetable",
]
