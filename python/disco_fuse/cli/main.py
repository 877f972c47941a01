"""The program itself: its subcommands are one file each."""

from __future__ import annotations

import io
import sys

import click

from disco_fuse import __version__
from disco_fuse.cli.advise import advise
from disco_fuse.cli.bench import bench
from disco_fuse.cli.bench_kernels import bench_kernels
from disco_fuse.cli.bench_search import bench_search
from disco_fuse.cli.build import build
from disco_fuse.cli.build_all import build_all
from disco_fuse.cli.compare import compare
from disco_fuse.cli.dashboard import dashboard
from disco_fuse.cli.eval_cost_model import eval_cost_model
from disco_fuse.cli.explain import explain
from disco_fuse.cli.extract import extract
from disco_fuse.cli.fidelity import fidelity
from disco_fuse.cli.graphs import graphs
from disco_fuse.cli.ops import ops
from disco_fuse.cli.profile import profile
from disco_fuse.cli.run import run
from disco_fuse.cli.sample import sample
from disco_fuse.cli.show import show
from disco_fuse.cli.train_cost_model import train_cost_model
from disco_fuse.cli.tune import tune
from disco_fuse.cli.whatif import whatif


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="disco-fuse")
def main() -> None:
    """Joint op fusion and tensor fusion for data-parallel training."""
    # Names of files and models may hold what no encoding knows.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


for command in (
    advise,
    bench,
    bench_kernels,
    bench_search,
    build,
    build_all,
    compare,
    dashboard,
    eval_cost_model,
    explain,
    extract,
    fidelity,
    graphs,
    ops,
    profile,
    run,
    sample,
    show,
    train_cost_model,
    tune,
    whatif,
):
    main.add_command(command)
