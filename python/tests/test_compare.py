"""Comparisons of schedules, and searches."""

import os
import signal
import threading
import time

import chimera_pipeline as chimera
import pytest


def test_a_name_that_is_compared_may_have_options_without_values():
    compared = chimera.compare("1f1b", "1f1b --split-backward", "1f1b --recompute=full", micro_batches=8)
    split = chimera.schedule("1f1b", micro_batches=8).passes(split_backward=True, of_model=True).lower(of_model=True)
    assert {entry.name: entry.makespan for entry in compared.entries}["1f1b --split-backward"] == split.simulate().makespan
    assert len(compared.entries) == 3


def test_times_of_transfers_are_compared_too():
    moved = chimera.schedule("1f1b", micro_batches=8).passes(offload="auto", memory_cap=2, transfer=0)
    quick, slow = (chimera.compare(moved, micro_batches=8, transfer=time).entries[0].makespan for time in (0, 100))
    assert slow > quick


def test_timetables_of_one_schedule_are_all_shown():
    plain = chimera.schedule("chimera", micro_batches=8)
    split = plain.passes(split_backward=True)
    compared = chimera.compare(plain, split, "chimera", plain, "gems --pipes 3", "gems --pipes 3", micro_batches=8)
    makespans = {entry.name: entry.makespan for entry in compared.entries}
    wanted = {name: made.lower(of_model=True).simulate().makespan for name, made in (("chimera", plain), ("chimera (2)", split))}
    assert {name: makespans[name] for name in wanted} == wanted
    assert compared.left_out["chimera (3)"] == compared.left_out["chimera (4)"] == "as chimera"


def test_each_speed_up_is_over_1f1b_of_the_same_shape():
    shapes = [(2, 4), (4, 12)]
    mine = [chimera.schedule("chimera", depth=d, micro_batches=n) for d, n in shapes]
    ours = chimera.compare(*mine, "gpipe --depth 8", depth=4, micro_batches=8).entries
    for entry, (d, n) in zip([*(next(e for e in ours if e.name == f"chimera{k}") for k in ("", " (2)")), ours[-1]], [*shapes, (8, 8)]):
        baseline = chimera.schedule("1f1b", depth=d, micro_batches=n).lower(of_model=True).simulate().makespan
        assert entry.speed_up == pytest.approx(baseline / entry.makespan), (d, n)


@pytest.mark.parametrize("after", [0.3, 1.0])
def test_a_search_may_be_interrupted(after):
    """At any time: after an eighth of the time a search is at half of the micro-batches."""
    timer = threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        chimera.auto(depth=8, micro_batches=32, split_backward=True, placement="interleaved", memory_cap=6, message=0.3, search_time=6)
    assert time.monotonic() - began < after + 3
