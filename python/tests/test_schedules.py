"""Timetables, programs and timelines: what the command says, Python says."""

import copy
import json
import os
import pickle
import subprocess

import chimera_pipeline as chimera
import pytest

COMMAND = os.environ.get("CHIMERA")
SHAPES = [(2, 2), (2, 5), (4, 4), (4, 8), (4, 12), (8, 16)]


def command(*words):
    """What the command prints, or the error that it ends with."""
    ran = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True)
    return ran.stdout if ran.returncode == 0 else ran.stderr


def raised(call, *args, **options):
    with pytest.raises(chimera.Error) as error:
        call(*args, **options)
    return error.value


needs_command = pytest.mark.skipif(not COMMAND, reason="CHIMERA names no command")


@needs_command
@pytest.mark.parametrize("name", list(chimera.schedules()))
def test_fingerprints_are_those_of_the_command(name):
    for depth, micro_batches in SHAPES:
        shape = ["--depth", depth, "--micro-batches", micro_batches]
        export = command("schedule", "export", name, *shape, "--format", "program-json")
        try:
            program = chimera.schedule(name, depth=depth, micro_batches=micro_batches).lower()
        except chimera.Unfit as unfit:
            assert str(unfit) in export
            continue
        assert program.to_json() == export
        assert json.loads(export)["fingerprint"] == program.fingerprint


@needs_command
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pipes": 4}, "--pipes 4"),
        ({"scaling": "doubling"}, "--scaling doubling"),
        ({"forward": [1, 1, 2, 1], "message": 0.5}, "--forward 1,1,2,1 --message 0.5"),
    ],
)
def test_options_mean_what_they_mean_to_the_command(options, words):
    times = {key: options[key] for key in ("forward", "message") if key in options}
    program = chimera.schedule("chimera", depth=4, micro_batches=8, **options).lower(**times)
    words = ["chimera", "--depth", 4, "--micro-batches", 8, *words.split()]
    assert program.to_json() == command("schedule", "export", *words, "--format", "program-json")
    assert program.simulate().makespan == json.loads(command("simulate", *words, "--json"))["makespan"]


@needs_command
def test_passes_are_those_of_the_command():
    words = "--depth 4 --micro-batches 8 --recompute full --split-backward".split()
    passed = chimera.schedule("1f1b", micro_batches=8).passes(recompute="full", split_backward=True)
    assert passed.to_json() == command("schedule", "export", "1f1b", *words, "--format", "json")
    assert chimera.parse(passed.to_json()) == passed


@needs_command
def test_networks_are_those_of_the_command():
    words = "--width 2 --ranks-per-node 2 --inside 0.1,0.001 --between 0.2,0.002 --activation-bytes 10 --gradient-bytes 20"
    figures = json.loads(command("simulate", "chimera", "--micro-batches", 4, *words.split(), "--json"))
    timeline = chimera.schedule("chimera", micro_batches=4).lower().simulate(
        width=2, ranks_per_node=2, inside=(0.1, 0.001), between=(0.2, 0.002), activation_bytes=10, gradient_bytes=20
    )
    assert timeline.makespan == pytest.approx(figures["makespan"], rel=1e-12)
    assert timeline.busy == [worker["busy"] for worker in figures["workers"]]
    windows = [[[start, end] for start, end, _ in of_worker] for of_worker in timeline.windows]
    assert windows == [worker["windows"] for worker in figures["workers"]]


@needs_command
def test_comparisons_are_those_of_the_command():
    told = json.loads(command("schedule", "compare", "--micro-batches", 8, "--json"))
    compared = chimera.compare(micro_batches=8)
    figures = [(e.name, e.makespan, e.speed_up, e.peak, e.copies, e.messages) for e in compared.entries]
    keys = ("name", "makespan", "speed_up", "peak_micro_batches", "weight_copies", "messages")
    # The command also lists `auto`, and passes that help.
    own = {e.name for e in compared.entries}
    listed = [entry for entry in told["schedules"] if entry["name"] in own]
    assert figures == [tuple(entry[key] for key in keys) for entry in listed]
    assert compared.left_out == {entry["name"]: entry["reason"] for entry in told["left_out"]}


def test_a_drawing_is_text_and_svg():
    timetable = chimera.schedule("chimera", depth=2)
    assert str(timetable) == "P0 0 1 1'- 0'-\nP1 1 0 0'- 1'-\n"
    for drawn in (timetable, timetable.lower(), timetable.lower().simulate()):
        assert drawn._repr_svg_().startswith("<svg")
    assert "<table" in timetable.html()
    assert json.loads(timetable.lower().simulate().chrome())


def test_a_shape_that_does_not_fit_names_the_nearest():
    unfit = raised(chimera.schedule, "chimera", depth=5)
    assert isinstance(unfit, chimera.Unfit)
    assert (unfit.schedule, unfit.nearest) == ("chimera", "depth 4 or 6")


def test_an_unsafe_timetable_is_refused_with_its_cell():
    swapped = chimera.timetable(
        placement=[[0, 1]],
        rows=[
            [("F", 0, 0, 0), ("F", 0, 0, 1), ("B", 0, 0, 1), ("B", 0, 0, 0)],
            [("F", 0, 1, 0), ("B", 0, 1, 0), ("F", 0, 1, 1), ("B", 0, 1, 1)],
        ],
    )
    refusal = raised(swapped.lower)
    assert isinstance(refusal, chimera.Refusal)
    assert (refusal.worker, refusal.cell) == (0, 2)
    assert refusal.row == "0 1 1' 0'\n    ^^"
    assert "the next message of its channel" in refusal.reason


def test_workers_that_wait_for_each_other_are_refused():
    f, b = lambda *op: ("F", *op), lambda *op: ("B", *op)
    dead = chimera.timetable(
        placement=[[0, 1], [1, 0]],
        rows=[[f(1, 1, 1), f(0, 0, 0), b(1, 1, 1), b(0, 0, 0)], [f(0, 1, 0), f(1, 0, 1), b(0, 1, 0), b(1, 0, 1)]],
    )
    refusal = raised(dead.lower)
    assert (refusal.worker, refusal.cell) == (0, 0)
    assert refusal.reason.startswith("deadlock: worker 0 waits at cell 0 for activation")


def test_own_timetables_are_read():
    timetable = chimera.schedule("1f1b", depth=2)
    own = chimera.timetable(timetable.placement, timetable.rows, schedule="1f1b")
    assert own == timetable
    assert chimera.parse(timetable.to_csv(), name="1f1b") == timetable
    assert chimera.parse(timetable.to_json().encode()) == timetable
    assert pickle.loads(pickle.dumps(timetable)) == timetable
    dual = chimera.schedule("dualpipe", depth=2, micro_batches=4)
    again = chimera.timetable(dual.placement, dual.rows, schedule="dualpipe")
    assert again.lower().fingerprint == dual.lower().fingerprint


@pytest.mark.parametrize(
    ("passes", "how"),
    [
        ({}, {}),
        ({"recompute": "full", "hoist": 1}, {"sync": "at-end", "tied": [[0, 3]], "barrier": False}),
        ({"split_backward": True}, {"sync": "eager", "memory_cap": 9, "forward": [1, 2, 3, 4], "backward": 0.1}),
        ({"bpipe": True, "transfer": 0.25}, {"input": 1, "weight": 0.5, "message": 0.125, "of_model": True}),
    ],
)
def test_a_program_is_pickled_as_it_was_lowered(passes, how):
    program = chimera.schedule("1f1b", micro_batches=8).passes(**passes).lower(**how)
    for copied in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
        assert copied.fingerprint == program.fingerprint
        assert copied.to_json() == program.to_json()
        # It has the times that it was lowered with.
        assert copied.simulate().makespan == program.simulate().makespan


def test_a_program_of_another_version_is_no_longer_the_one_that_was_pickled():
    function, (timetable, how, fingerprint) = chimera.schedule("chimera").lower().__reduce__()
    assert function(timetable, how, fingerprint).fingerprint == fingerprint
    other = str(raised(lambda: function(timetable, how, "0" * 64)))
    assert "pickled by another version of chimera" in other and "to_json" in other


def test_a_search_finds_what_it_says():
    found = chimera.auto(depth=4, micro_batches=4, search_time=0.5)
    assert found.schedule == "auto"
    assert found.lower().simulate().makespan == found.search["makespan"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: chimera.schedule("nothing"), "unknown schedule `nothing`: choose one of gpipe, "),
        (lambda: chimera.schedule("1fb1"), "unknown schedule `1fb1`: did you mean `1f1b`?"),
        (lambda: chimera.schedule("gpipe", depth=0), "`depth` is 0: choose a number from 1 to 8192"),
        (lambda: chimera.schedule("gpipe", micro_batches=-1), "`micro_batches` is -1: "),
        (lambda: chimera.schedule("gpipe", depth=8192, micro_batches=1 << 20), "nearest: at most"),
        (lambda: chimera.schedule("gpipe", scaling="none"), "unknown scaling `none`"),
        (lambda: chimera.schedule("gpipe").lower(forward=[1, 2]), "--forward has 2 numbers, but gpipe has 4 stages"),
        (lambda: chimera.schedule("gpipe").lower(forward=-1), "`-1` is not a number from 0 to 1e12"),
        (lambda: chimera.schedule("gpipe").lower(forward=[]), "a list of times has no number"),
        (lambda: chimera.schedule("gpipe").lower(backward=1, weight=1), "`backward` is the time of both halves"),
        (lambda: chimera.schedule("gpipe").lower(sync="x"), "unknown sync policy `x`"),
        (lambda: chimera.schedule("gpipe").lower(tied=[[9]]), "a tied tensor cannot live on stage 9"),
        (lambda: chimera.schedule("gpipe").lower(memory_cap=1), "more than the limit of 1"),
        (lambda: chimera.schedule("gpipe").lower().simulate(ranks_per_node=3), "--ranks-per-node 3: groups of 4"),
        (lambda: chimera.schedule("gpipe").lower(tied=[[-1]]), "a tied tensor cannot live on stage -1"),
        (lambda: chimera.schedule("gpipe").lower().replicas(9), "there is no stage 9: choose one from 0 to 3"),
        (lambda: chimera.schedule("gpipe").lower().stages_of(99), "there is no worker 99: choose one from 0 to 3"),
        (lambda: chimera.schedule("gpipe").lower().stages_of(-1), "there is no worker -1"),
        (lambda: chimera.schedule("chimera").to_csv(-1), "there is no pipe -1: choose one from 0 to 1"),
        (lambda: chimera.schedule("gpipe", depth=2**70), "`depth` is 2^63 or more: choose a number from 1 to 8192"),
        (lambda: chimera.schedule("gpipe", micro_batches=-(2**70)), "`micro_batches` is -2^63 or less"),
        (lambda: chimera.schedule("gpipe").lower().simulate(width=2**70), "`width` is 2^63 or more"),
        (lambda: chimera.schedule("gpipe").lower().timeline([(0, -1, 0, 1)]), "worker 0 has no instruction -1"),
        (lambda: chimera.auto(search_seed=-1), "`search_seed` is -1: choose a number from 0 to"),
        (lambda: chimera.schedule("gpipe").lower().timeline([(9, 0, 0, 1)]), "worker 9 has no instruction 0"),
        (lambda: chimera.schedule("gpipe").passes(hoist=2), "hoist 2 moves recomputations"),
        (lambda: chimera.schedule("chimera").to_csv(), "choose one of pipe 0, 1"),
        (lambda: chimera.parse("{}"), "missing field `schedule`"),
        (lambda: chimera.parse("0F0,0BW0"), "unknown type: choose F, B, I or W"),
        (lambda: chimera.parse("0F0,0B0", name="\n"), "`name` has more than 256 bytes or control characters"),
        (lambda: chimera.timetable([], []), "depth: 0 is not in 1 to 65535"),
        (lambda: chimera.timetable([[0]], [[("F", 0)]]), "('F', 0) is no op: choose (kind, pipe, stage, micro_batches)"),
        (lambda: chimera.timetable([[0]], [[("F", 0, 0, None)]]), "('F', 0, 0, None) is no op"),
        (lambda: chimera.timetable([[0]], [[("F", 0, 0, "a")]]), "('F', 0, 0, 'a') is no op"),
        (lambda: chimera.timetable([[0]], [[3]]), "3 is no cell: choose an op"),
        (lambda: chimera.timetable([[0]], [3]), "`rows` is [3]: give a list of cells for each worker"),
        (lambda: chimera.timetable([0], [[("F", 0, 0, 0)]]), "`placement` is [0]: give the worker of each stage"),
        (lambda: chimera.compare("1f1b --pipes"), "`1f1b --pipes`: after the name come options with their values"),
        (lambda: chimera.timetable([[0]], [[]], units_per_micro=0), "`units_per_micro` is 0: choose a number from 1"),
        (lambda: chimera.compare("chimera '"), "`chimera '` is no name of a schedule"),
        (lambda: chimera.auto(pipes=3), "3 mirrored pipes"),
        (lambda: chimera.auto(placement="x"), "unknown placement `x`"),
    ],
)
def test_bad_input_is_refused_in_words(call, says):
    assert says in str(raised(call))


def test_what_is_compared_is_a_name_or_a_timetable():
    with pytest.raises(TypeError, match="1 is neither the name of a schedule nor a timetable"):
        chimera.compare(1)


def test_unknown_words_are_no_times():
    with pytest.raises(TypeError, match="unknown keyword argument `speed`: times are forward"):
        chimera.schedule("gpipe").lower(speed=1)


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: chimera.schedule("gpipe", depht=2), "depth"),
        (lambda: chimera.schedule("gpipe", microbatches=2), "micro_batches"),
        (lambda: chimera.schedule("gpipe").lower(forwards=1), "forward"),
        (lambda: chimera.schedule("gpipe").passes(split_backwards=True), "split_backward"),
        (lambda: chimera.auto(search_tim=1), "search_time"),
    ],
)
def test_a_misspelt_option_is_told_the_nearest(call, meant):
    with pytest.raises(TypeError, match=f"did you mean `{meant}`"):
        call()


def test_rows_in_one_order_have_the_same_instructions():
    program = chimera.schedule("dualpipe", depth=4, micro_batches=8).lower()
    for row, in_order in zip(program.rows, program.one_order_rows()):
        key = lambda instruction: json.dumps(instruction, sort_keys=True)
        assert sorted(map(key, row)) == sorted(map(key, in_order))


@needs_command
def test_pytorchs_files_are_those_of_the_command():
    timetable = chimera.schedule("zb-v", micro_batches=8)
    words = ["schedule", "export", "zb-v", "--micro-batches", 8, "--format"]
    assert timetable.to_csv() == command(*words, "pytorch-csv")
    assert timetable.lower().to_csv() == command(*words, "pytorch-comms-csv")
    words = ["schedule", "export", "chimera", "--micro-batches", 4, "--format", "pytorch-comms-csv"]
    assert chimera.schedule("chimera", micro_batches=4).lower().to_csv() == command(*words)
    halved = chimera.schedule("chimera", micro_batches=8, scaling="halving").lower()
    assert "cut into 2" in str(raised(halved.to_csv))


def test_a_measured_step_is_a_timeline():
    program = chimera.schedule("1f1b", depth=2, micro_batches=1).lower()
    events = [(w, i, i, i + 1) for w, row in enumerate(program.rows) for i in range(len(row))]
    measured = program.timeline(events)
    assert measured.makespan == max(len(row) for row in program.rows)
    assert [e for e in measured.events if "ops" in e][0]["ops"] == [("F", 0, 0, [0])]


def test_stages_may_be_a_graph():
    chain = chimera.schedule("1f1b", depth=4, micro_batches=6)
    assert chain.graph == {"sources": [0], "edges": [(0, 1), (1, 2), (2, 3)], "losses": [3]}
    graph = {"sources": [0], "edges": [(0, 1), (0, 3), (1, 2), (2, 3)], "losses": [1, 3]}
    skips = chain.with_graph(**graph)
    assert skips.graph == graph and skips != chain
    assert chimera.parse(skips.to_json()) == skips
    program = skips.lower()
    assert program.messages == chain.lower().messages + 2 * 6
    assert program.fingerprint != chain.lower().fingerprint
    assert program.to_dict()["graph"] == json.loads(json.dumps(graph))
    assert "its stages are a graph" in str(raised(skips.to_csv))
    back = str(raised(chain.with_graph, **{**graph, "edges": [(1, 0)]}))
    assert "goes back" in back
    rows = [[("F", 0, 0, 0), ("F", 0, 1, 0), ("B", 0, 1, 0), ("B", 0, 0, 0)]]
    towers = {"sources": [0, 1], "edges": [], "losses": [0, 1]}
    assert chimera.timetable([[0, 0]], rows, graph=towers).lower().messages == 0


def test_own_timetables_may_have_numbers_of_other_types():
    class Number:
        def __index__(self):
            return 0

    rows = [[("F", Number(), 0, Number()), ("B", 0, Number(), (Number(),))]]
    assert chimera.timetable([[Number()]], rows) == chimera.timetable([[0]], [[("F", 0, 0, 0), ("B", 0, 0, 0)]])


def test_the_old_import_name_warns_and_gives_the_same_classes():
    with pytest.warns(FutureWarning, match="import chimera_pipeline as chimera"):
        import chimera as old
    assert old.Timetable is chimera.Timetable
    assert old.schedule("1f1b", depth=2, micro_batches=2) == chimera.schedule("1f1b", depth=2, micro_batches=2)
