"""The algorithms, each written once as a recursion on stacked workers, and the engines that run them."""

if __name__ != "dissensus.algorithms":
    raise ImportError(f"import dissensus.algorithms, not {__name__}: the repository folder is not a top-level package")

from dissensus.algorithms.engines.distributed.entering import init_process_group
from dissensus.algorithms.engines.distributed.front_door import Decentralized, decentralize
from dissensus.algorithms.engines.distributed.front_door_checkpoint import load_training, save_training
from dissensus.algorithms.engines.distributed.nodes import node_groups
from dissensus.algorithms.engines.distributed.peers import PeerError
from dissensus.algorithms.engines.distributed.timeline import Timeline
from dissensus.algorithms.engines.evaluation import Evaluation, evaluate
from dissensus.algorithms.engines.participation import Cyclic, Independent, Intervals, OnOff, Participation, Straggler
from dissensus.algorithms.engines.stacked import StackedEngine, StepRecord
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.optimizers import AccumAdam, AccumAdamW
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import algorithm, algorithms, register
from dissensus.algorithms.simulate import Simulation, simulate
from dissensus.algorithms.streams import numpy_stream, stream

__all__ = [
    "AccumAdam",
    "AccumAdamW",
    "Algorithm",
    "AlgorithmError",
    "Cyclic",
    "Decentralized",
    "Evaluation",
    "Independent",
    "Intervals",
    "OnOff",
    "Participation",
    "PeerError",
    "Simulation",
    "StackedEngine",
    "StepRecord",
    "Straggler",
    "Timeline",
    "algorithm",
    "algorithms",
    "decentralize",
    "evaluate",
    "init_process_group",
    "load_training",
    "node_groups",
    "numpy_stream",
    "register",
    "save_training",
    "simulate",
    "stream",
]
