"""``python -m disco_fuse.cli`` is ``disco-fuse``."""

from __future__ import annotations

from disco_fuse.cli.main import main

if __name__ == "__main__":
    main(prog_name="disco-fuse")
