"""The process of an embedded farm: what `hotblock farm serve` runs, for the runtimes of one user, until they are gone.

`resident SETTINGS`, as `HouseholdSettings.encode` writes them. It leaves the process that started it at once, says on its
standard output when it listens, and ends some time after its last client.
"""

from __future__ import annotations

import os
import sys

_NICE = 10


def main() -> None:
    """Go to the background, then run."""
    os.nice(_NICE)  # before anything is imported: the runtime's calls go on meanwhile
    if os.fork():
        os._exit(0)  # the runtime has no child to wait for, and none that its own end would take along
    # Only now: what these import would be imported in vain by the process that leaves.
    from hotblock_farm.residence import reside

    reside(sys.argv[1])


if __name__ == "__main__":
    main()
