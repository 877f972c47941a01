"""How the tests run every example of every --help: as it is, or with smaller sizes.

An example that takes minutes as written is run with the same options and a smaller model, fewer
steps, or fewer names behind ``--all``; ``Run.line`` says with which. ``{tiny}`` stands for the
model of ``small_workload.py``. Where a size stands in the example, the one behind it counts, as
click takes the last of an option. A new example needs an entry here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

TINY = f"{Path(__file__).with_name('small_workload.py')}:workload"
_ONE = ("bert_small",)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run for an example.

    Attributes
    ----------
    line : str, optional
        Instead of the example; for reasons of time, if nothing else is said beside it.
    slow : bool
        Whether it takes more than some seconds even so.
    names : dict
        Where a list of models stands -> the shorter one that is used.
    """

    line: str | None = None
    slow: bool = False
    names: dict[str, Any] = field(default_factory=dict)


AS_IT_IS = Run()
# These start ranks; tests/python/distributed runs them, the others are run in tests/python/unit.
WITH_RANKS = ("bench", "fidelity", "profile", "run")
# Here a patched list of the zoo's models stands for all of them.
_ZOO = {"disco_fuse.zoo.models": lambda: _ONE}

RUNS = {
    "advise rank0.json rank1.json.gz": AS_IT_IS,
    "advise rank0.json --json advice.json": AS_IT_IS,
    "advise bert_small --cluster cluster-a": Run(line="advise {tiny} --cluster cluster-a"),
    "bench byte_gpt -n 2 --link 1gbit": Run(
        line="bench {tiny} -n 2 --link 1gbit --steps 2", slow=True
    ),
    "bench --all --link 1gbit --json bench.json": Run(
        line="bench --all --link 1gbit --json bench.json --steps 2",
        slow=True,
        names={"disco_fuse.cli.bench.MODELS": (TINY,)},
    ),
    "bench-kernels --json kernels.json": Run(
        line="bench-kernels --json kernels.json --models {tiny} --rounds 1", slow=True
    ),
    "bench-kernels --models gpt2,rnnlm --rounds 20 --no-groups": Run(
        line="bench-kernels --models {tiny} --rounds 2 --no-groups", slow=True
    ),
    "bench-search bert_small --time-limit 1": Run(slow=True),
    "bench-search --all --json search.json": Run(
        line="bench-search --all --json search.json --time-limit 0.1",
        slow=True,
        names={
            "disco_fuse.cli.bench_search.MODELS": _ONE,
            "disco_fuse.cli.bench_search.SCALING_OPS": (3000,),
        },
    ),
    "bench-search transformer --sweep --json -": Run(
        line="bench-search bert_small --sweep --json - --time-limit 0.1", slow=True
    ),
    "build gpt2_small -O plan": Run(line="build gpt2_small -O plan --max-steps 20 --threads 1"),
    "build bert_small -O plan_gpu --target sm_90 --max-steps 1000": Run(slow=True),
    "build gpt2_small -O again --strategy plan --ranks 4": AS_IT_IS,
    "build-all --small --json builds.json": Run(
        line="build-all --small --json builds.json --random 0 --targets sm_90",
        slow=True,
        names=_ZOO,
    ),
    "build-all --models bert,resnet50_small --targets sm_90": Run(
        line="build-all --models bert_small,gpt2_small --targets sm_90 --random 0", slow=True
    ),
    "compare plan plan2": AS_IT_IS,
    "compare plan plan2 --cluster a100-100gbe --json difference.json": AS_IT_IS,
    "compare baseline:ddp plan --plot timeline.png": AS_IT_IS,
    # Ports of the machine may be taken: 0 is any that is free.
    "dashboard logs": Run(line="dashboard logs --port 0"),
    "dashboard plan/events.jsonl logs --port 9000": Run(
        line="dashboard plan/events.jsonl logs --port 0"
    ),
    "dashboard logs --host 0.0.0.0 --token-file token": Run(
        line="dashboard logs --host 0.0.0.0 --token-file token --port 0"
    ),
    "eval-cost-model samples.db --json cost.json --plot cost.png": Run(slow=True),
    "eval-cost-model samples.db --models roofline,xgboost --folds 10": AS_IT_IS,
    "explain plan": AS_IT_IS,
    "explain plan --json why.json": AS_IT_IS,
    "explain plan --why '#0' '#1'": AS_IT_IS,
    "extract gpt2_small -O problem.json.gz": AS_IT_IS,
    "extract tutorials/quickstart.py:byte_gpt -O byte_gpt.json": Run(slow=True),
    "fidelity bert_small --strategies 20 --json fidelity.json": Run(
        line="fidelity {tiny} --strategies 2 --steps 5 --json fidelity.json", slow=True
    ),
    "fidelity byte_gpt --strategies 20 --link 1gbit --cost-model auto": Run(
        line="fidelity {tiny} --strategies 2 --steps 5 --link 1gbit --cost-model auto", slow=True
    ),
    "graphs bert_small": Run(slow=True),
    "graphs tutorials/quickstart.py:byte_gpt --json -": Run(slow=True),
    "graphs --all --json graphs.json": Run(slow=True, names=_ZOO),
    "ops": AS_IT_IS,
    "ops --json ops.json": AS_IT_IS,
    "profile bert_small": Run(line="profile {tiny} --largest 65536", slow=True),
    "profile --all-small -n 2 --link 1gbit --database profile.sqlite --json profile.json": Run(
        line="profile --all-small -n 2 --link 1gbit --database profile.sqlite --json profile.json "
        "--largest 65536",
        slow=True,
        names=_ZOO,
    ),
    "run plans/disco_fuse -n 2 --steps 20": AS_IT_IS,
    "run plans/disco_fuse -n 8 --hostfile hosts --data train.py:batches --checkpoints ckpt": Run(
        line="run plans/disco_fuse -n 2 --hostfile hosts --data train.py:batches --checkpoints ckpt"
    ),
    "mpirun -n 2 disco-fuse run plans/disco_fuse --steps 20": AS_IT_IS,
    "run plans/disco_fuse -n 2 --trace step.trace.json": Run(slow=True),
    "sample samples.db --groups 3000": Run(
        line="sample new.db --groups 4", slow=True, names=_ZOO
    ),
    "sample samples.db --models bert_small,vgg19_small --groups 200 --json -": Run(
        line="sample new.db --models {tiny} --groups 4 --json -"
    ),
    "show plan": AS_IT_IS,
    "show plan/strategy.json --top 20 --json plan.json": AS_IT_IS,
    "show plan --cluster dgx-h100": AS_IT_IS,
    "train-cost-model samples.db -O models": Run(slow=True),
    "train-cost-model samples.db -O models --models xgboost --seed 1": AS_IT_IS,
    "tune bert_small --max-steps 2000": Run(slow=True),
    "tune gpt2_small --preset paper --seed 1 --json result.json --max-steps 2000": Run(slow=True),
    "tune tutorials/quickstart.py:byte_gpt --cluster 1gbit-cpu --time-limit 1 -O plan": Run(
        line="tune {tiny} --cluster 1gbit-cpu --time-limit 0.1 -O plan"
    ),
    "whatif bert --world-size 2,8,64,512,4096 --json": Run(
        line="whatif {tiny} --world-size 2,8,64,512,4096 --json --max-steps 20 --starts 1"
    ),
    "whatif gpt2_small --bandwidth 0.1,1,10 --cluster cluster-b --plot whatif.png": Run(
        line="whatif {tiny} --bandwidth 0.1,1,10 --cluster cluster-b --plot whatif.png "
        "--max-steps 20 --starts 1"
    ),
    "whatif vgg19_small --batch 2,8 --device cluster-a,dgx-h100 --patience 200": Run(
        line="whatif {tiny} --batch 2,8 --device cluster-a,dgx-h100 --patience 20 --starts 1",
        slow=True,
    ),
}  # fmt: skip


def command_of(example: str) -> str:
    """The command of an example, which may begin with what starts its ranks."""
    return example.rpartition("disco-fuse ")[2].split()[0]


def runs(*, ranks: bool) -> list[Any]:
    """The examples of commands that start ranks, or of the others, as parameters of a test."""
    return [
        pytest.param(example, marks=pytest.mark.slow if run.slow else ())
        for example, run in RUNS.items()
        if (command_of(example) in WITH_RANKS) == ranks
    ]


def line_of(example: str) -> str:
    """What is run for an example."""
    return (RUNS[example].line or example).format(tiny=TINY)


@contextmanager
def shortened(example: str) -> Iterator[None]:
    """Lists of models are as short as the table says."""
    with pytest.MonkeyPatch.context() as patch:
        for place, names in RUNS[example].names.items():
            patch.setattr(place, names)
        yield


def written_by(line: str) -> list[Path]:
    """The files and folders that a line names as its results."""
    words = line.split()
    options = ("--json", "--plot", "-O", "-o", "--trace", "--database", "--checkpoints")
    return [Path(file) for option, file in pairwise(words) if option in options and file[0] != "-"]
