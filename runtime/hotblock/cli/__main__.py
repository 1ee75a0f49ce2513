"""`python -m hotblock.cli`."""

from hotblock.cli import main

main()
