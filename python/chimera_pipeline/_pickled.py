"""What pickles of this package call when they are loaded."""

from __future__ import annotations

from typing import Any, Mapping

from ._core import Error, Program, parse


def lowered(timetable: str, how: Mapping[str, Any], fingerprint: str) -> Program:
    """The program of a pickle: its timetable is lowered, and so proven, again.

    It must be the program that was pickled: ranks that are given one by a pickle and one by `lower` train together.
    """
    program = parse(timetable, format="json").lower(**how)
    if program.fingerprint != fingerprint:
        raise Error(
            f"the pickled program has the fingerprint {fingerprint}, and its timetable is lowered to {program.fingerprint} here: it was "
            "pickled by another version of chimera; keep the timetable instead (`timetable.to_json()`), and lower it where it is used"
        )
    return program
