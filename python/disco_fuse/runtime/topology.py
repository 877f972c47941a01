"""Which ranks share a host: the groups of an AllReduce within hosts and between them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def host_groups(hosts: Sequence[Hashable], rank: int) -> tuple[list[int], list[int]]:
    """The ranks of a rank's host, and those with its position on each host.

    Parameters
    ----------
    hosts
        The host of every rank.
    rank
        Whose groups.

    Returns
    -------
    local, across
        Ascending, both with `rank` among them. Both empty where one ring through all ranks does
        as well: on one host, with one rank a host, or with unlike numbers of ranks on the hosts.

    Examples
    --------
    >>> host_groups(["a", "a", "b", "b"], 1)
    ([0, 1], [1, 3])
    """
    members: dict[Hashable, list[int]] = {}
    for other, host in enumerate(hosts):
        members.setdefault(host, []).append(other)
    sizes = {len(ranks) for ranks in members.values()}
    if len(members) < 2 or len(sizes) > 1 or sizes == {1}:
        return [], []
    local = members[hosts[rank]]
    position = local.index(rank)
    return local, [ranks[position] for ranks in members.values()]
