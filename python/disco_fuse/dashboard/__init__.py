"""A live page of searches and trainings: files of events -> states -> websockets -> charts.

    events*.jsonl --tail--> lines --fold--> Search | Job --message--> every open page

Nothing but these files is read, and nothing is written.
"""

from disco_fuse.dashboard.access import Access
from disco_fuse.dashboard.server import serve
from disco_fuse.dashboard.watch import Watch

__all__ = ["Access", "Watch", "serve"]
