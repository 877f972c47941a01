"""The subcommands of ``disco-fuse``; each is imported when it is called.

DisCoFuse and TVM take seconds to import, for which the list of commands, their completion and the
version need not wait.
"""

from __future__ import annotations

import importlib
import io
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click
from click.shell_completion import CompletionItem

from disco_fuse_autoload.program import end_at_once

# Name -> what it does, short enough for a line of the list on 80 columns.
COMMANDS = {
    "advise": "Bucket caps for your own PyTorch DDP job.",
    "bench": "Measure steps beside baselines and PyTorch DDP.",
    "bench-kernels": "Time training steps and kernels beside PyTorch's.",
    "bench-search": "Quality and speed of the search on many models.",
    "build": "Search and compile a model; write a plan folder.",
    "build-all": "Build many models and strategies for GPUs.",
    "compare": "How two strategies or plans differ.",
    "dashboard": "A live page of searches and trainings.",
    "eval-cost-model": "Errors of cost models on groups they have not seen.",
    "explain": "What a step waits for, and what each choice gains.",
    "extract": "Save a model's graph as a search problem.",
    "fidelity": "Simulated against measured steps of one model.",
    "graphs": "Size of models' graphs, and what their import costs.",
    "ops": "PyTorch operators that can be imported.",
    "profile": "Measure this machine: kernels, AllReduce, contention.",
    "run": "Train a plan on one rank or several.",
    "sample": "Measure fusion groups for a cost model to learn from.",
    "show": "What a plan or a strategy consists of.",
    "train-cost-model": "Train cost models on measured groups.",
    "tune": "Search a strategy on a simulated cluster.",
    "whatif": "Tune for other sizes, networks, batches and devices.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            self.add_command(_imported(cmd_name))
        return self.commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _imported(name: str) -> click.Command:
    """The command of that name, from the file of the same name."""
    attribute = name.replace("-", "_")
    with _interruptible():
        module = importlib.import_module(f"disco_fuse.cli.{attribute}")
        guard = importlib.import_module("disco_fuse.cli.guard")
    guarded: click.Command = guard.guarded(getattr(module, attribute))
    return guarded


@contextmanager
def _interruptible() -> Iterator[None]:
    """Inside, Ctrl-C ends the program at once; other threads leave signals alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="disco-fuse", prog_name="disco-fuse")
def main() -> None:
    """Joint op fusion and tensor fusion for data-parallel training."""
    # Names of files and models may hold what no encoding knows.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
