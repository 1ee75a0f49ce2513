"""Real texts that are on every machine: licences, by paragraph."""

from __future__ import annotations

import os
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Paragraph", "licence_paragraphs"]

_MIN_WORDS = 4


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph and the file it stands in."""

    source: str
    text: str


def licence_paragraphs(limit: int | None = None) -> list[Paragraph]:
    """Distinct paragraphs of the licence texts found on this machine, at most `limit`, in a fixed order."""
    found: dict[str, Paragraph] = {}
    for path in _licence_files():
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for block in re.split(r"\n\s*\n", text):
            paragraph = " ".join(block.split())
            if len(paragraph.split()) >= _MIN_WORDS:
                found.setdefault(paragraph, Paragraph(path.name, paragraph))
    return list(found.values())[:limit]


def _licence_files() -> list[Path]:
    files = [Path(os.__file__).parent / "LICENSE.txt"]
    common = Path("/usr/share/common-licenses")
    if common.is_dir():
        files += sorted(path for path in common.iterdir() if path.is_file() and not path.is_symlink())
    # Packages carry theirs in dist-info folders: a machine without the above has at least these.
    site = Path(sysconfig.get_paths()["purelib"])
    files += sorted(site.glob("*.dist-info/LICENSE*")) + sorted(site.glob("*.dist-info/licenses/LICENSE*"))
    return [path for path in files if path.is_file()]
