"""Models and data for the tutorials, benchmarks and the command line; each file imports its own.

The six models of DisCo (Yi et al., IEEE TPDS 2022, section 6.1), GPT-2 small and ViT-S, in textbook
form, each at its batch and as a small one (``_small``) that trains in a test.
"""

from __future__ import annotations

from disco_fuse.workload import Workload, load_workload

# Name of the model's function -> the file it is in; read on demand, for the files need torch.
_FILES = {
    "vgg19": "vgg",
    "resnet50": "resnet",
    "transformer": "transformer",
    "rnnlm": "rnnlm",
    "bert": "bert",
    "reformer": "reformer",
    "gpt2": "gpt2",
    "vit": "vit",
}


def models() -> tuple[str, ...]:
    """Names of all models: full size first, then the same with ``_small``."""
    return (*_FILES, *(f"{name}_small" for name in _FILES))


def reference(name: str) -> str:
    """The ``package.module:function`` of the model called ``name``.

    Raises
    ------
    ValueError
        If there is no such model.
    """
    if name not in models():
        raise ValueError(f"no model {name!r} in the zoo; allowed: {', '.join(models())}")
    return f"disco_fuse.zoo.{_FILES[name.removesuffix('_small')]}:{name}"


def workload(name: str) -> Workload:
    """The model called ``name``, with its loss, SGD with momentum, and random batches.

    Weights and batches are the same on every call; batches differ from rank to rank.

    Raises
    ------
    ValueError
        If there is no such model.
    """
    return load_workload(reference(name))
