"""The program itself: its subcommands are one file each."""

from __future__ import annotations

import click

from disco_fuse import __version__
from disco_fuse.cli.bench import bench
from disco_fuse.cli.bench_kernels import bench_kernels
from disco_fuse.cli.bench_search import bench_search
from disco_fuse.cli.build import build
from disco_fuse.cli.build_all import build_all
from disco_fuse.cli.compare import compare
from disco_fuse.cli.eval_cost_model import eval_cost_model
from disco_fuse.cli.explain import explain
from disco_fuse.cli.extract import extract
from disco_fuse.cli.graphs import graphs
from disco_fuse.cli.ops import ops
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


main.add_command(build_all)
main.add_command(graphs)
main.add_command(ops)
main.add_command(extract)
main.add_command(tune)
main.add_command(bench_search)
main.add_command(bench)
main.add_command(run)
main.add_command(bench_kernels)
main.add_command(sample)
main.add_command(train_cost_model)
main.add_command(eval_cost_model)
main.add_command(show)
main.add_command(explain)
main.add_command(compare)
main.add_command(whatif)
main.add_command(build)
