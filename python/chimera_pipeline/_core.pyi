from typing import Any, Dict, List, Optional, Sequence, Tuple, Union
from typing_extensions import TypedDict, Unpack

__version__: str

Numbers = Union[float, Sequence[float]]
"""One number for all stages, or one for each."""

class Times(TypedDict, total=False):
    """Times of ops and messages, in any unit. Without any, a forward of a micro-batch through 1/D of the model takes 1."""

    forward: Optional[Numbers]
    backward: Optional[Numbers]
    input: Optional[Numbers]
    weight: Optional[Numbers]
    pair: Optional[Numbers]
    recompute_time: Optional[Numbers]
    message: Optional[Numbers]
    transfer: Optional[Numbers]
    of_model: bool

class Error(ValueError):
    """The request is impossible."""

class Unfit(Error):
    """A schedule has no such shape."""

    schedule: str
    reason: str
    nearest: str

class Refusal(Error):
    """A timetable is not safe."""

    schedule: str
    worker: Optional[int]
    cell: Optional[int]
    reason: str
    row: str

class Bug(RuntimeError):
    """A mistake in chimera itself."""

class Timetable:
    """A schedule at a shape: who holds which stage, and in which order each worker computes."""

    schedule: str
    depth: int
    stages: int
    pipes: int
    micro_batches: int
    units_per_micro: int
    placement: List[List[int]]
    graph: Dict[str, Any]
    rows: List[List[List[Tuple[str, int, int, List[int]]]]]
    search: Optional[Dict[str, Any]]
    def with_graph(
        self, *, sources: Sequence[int], edges: Sequence[Tuple[int, int]], losses: Sequence[int]
    ) -> Timetable: ...
    def passes(
        self,
        *,
        recompute: str = "none",
        hoist: Union[int, str, None] = None,
        split_backward: bool = False,
        bpipe: bool = False,
        offload: str = "none",
        memory_cap: Optional[float] = None,
        **times: Unpack[Times],
    ) -> Timetable: ...
    def lower(
        self,
        *,
        sync: str = "eager-opt",
        tied: Optional[Sequence[Sequence[int]]] = None,
        barrier: bool = True,
        memory_cap: Optional[float] = None,
        **times: Unpack[Times],
    ) -> Program: ...
    def to_json(self) -> str: ...
    def to_csv(self, pipe: Optional[int] = None) -> str: ...
    def text(self) -> str: ...
    def svg(self) -> str: ...
    def html(self) -> str: ...
    def _repr_svg_(self) -> str: ...

class Program:
    """What every worker does in a step, proven."""

    schedule: str
    depth: int
    stages: int
    pipes: int
    micro_batches: int
    fingerprint: str
    channel_bound: int
    peaks: List[float]
    peak_kept: List[float]
    weight_versions: List[int]
    messages: int
    rows: List[List[Dict[str, Any]]]
    def stages_of(self, worker: int) -> List[int]: ...
    def replicas(self, stage: int) -> List[int]: ...
    def one_order_rows(self) -> List[List[Dict[str, Any]]]: ...
    def to_json(self) -> str: ...
    def to_csv(self) -> str: ...
    def to_dict(self) -> Dict[str, Any]: ...
    def simulate(
        self,
        *,
        width: int = 1,
        ranks_per_node: Optional[int] = None,
        inside: Optional[Tuple[float, float]] = None,
        between: Optional[Tuple[float, float]] = None,
        activation_bytes: Optional[Numbers] = None,
        gradient_bytes: Optional[Numbers] = None,
        **times: Unpack[Times],
    ) -> Timeline: ...
    def timeline(self, events: Sequence[Tuple[int, int, float, float]]) -> Timeline: ...
    def _repr_svg_(self) -> str: ...

class Timeline:
    """Start and end of every piece of work of a step, simulated or measured."""

    makespan: float
    bubble_ratio: float
    busy: List[float]
    windows: List[List[Tuple[float, float, float]]]
    unit: str
    events: List[Dict[str, Any]]
    def text(self) -> str: ...
    def svg(self) -> str: ...
    def html(self) -> str: ...
    def chrome(self) -> str: ...
    def _repr_svg_(self) -> str: ...

def schedules() -> Dict[str, Dict[str, Any]]: ...
def schedule(
    name: str,
    *,
    depth: int = 4,
    micro_batches: Optional[int] = None,
    pipes: int = 2,
    chunks: int = 2,
    scaling: str = "auto",
    in_turn: int = 1,
    waves: int = 2,
    in_flight: Optional[int] = None,
    window: int = 2,
    slices: int = 4,
    **times: Unpack[Times],
) -> Timetable: ...
def auto(
    *,
    placement: str = "mirrored",
    depth: int = 4,
    micro_batches: Optional[int] = None,
    pipes: int = 2,
    chunks: int = 2,
    waves: int = 2,
    scaling: str = "auto",
    recompute: str = "none",
    split_backward: bool = False,
    memory_cap: Optional[float] = None,
    search_time: float = 10.0,
    search_seed: int = 1,
    **times: Unpack[Times],
) -> Timetable: ...
def parse(content: Union[str, bytes], *, format: Optional[str] = None, name: str = "timetable") -> Timetable: ...
