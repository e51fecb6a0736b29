"""Random calls of the package, sound, odd and hostile: each returns, or raises in words. `python fuzz.py SECONDS [SEED]`.

A mistake in chimera itself would come as `chimera.Bug`, as a panic of Rust's, or as the end of this process; a call that
takes long is one too. A case follows from its number alone.
"""

import copy
import json
import random
import resource
import signal
import sys
import time

import chimera_pipeline as chimera

MOST_SECONDS = 60
MOST_BYTES = 4 << 30
IN_WORDS = (ValueError, TypeError, OverflowError)  # chimera.Error is a ValueError
ODD = [0, -1, 1, 2, 3, 7, 33, (1 << 20) + 1, 1 << 31, 1 << 63, -(1 << 70), True, None, 0.5, -0.0, 1e300]
ODD += [float("nan"), float("inf"), "", "1", "auto", "\0", "\ud800", "é" * 300, b"{", [], [[]], {}, (), [None], object()]
SCHEDULES = list(chimera.schedules())
TIMES = ["forward", "backward", "input", "weight", "pair", "recompute_time", "message", "of_model"]


class TooLong(BaseException):
    """A call that takes too long."""


def stop(*_):
    raise TooLong


class Case:
    """One case: calls drawn from a number."""

    def __init__(self, number):
        self.random = random.Random(number)
        self.calls = []

    def oddly(self, sound):
        """Something sound, or at times something odd."""
        return self.random.choice(ODD) if self.random.random() < 0.04 else sound()

    def pick(self, *values):
        return self.oddly(lambda: self.random.choice(values))

    def some(self, **options):
        """Some of the options, each drawn."""
        return {name: draw() for name, draw in options.items() if self.random.random() < 0.3}

    def number(self, most):
        return self.oddly(lambda: self.random.randint(1, most))

    def time(self):
        one = lambda: self.oddly(lambda: self.random.choice([0, 0.5, 1, 3, 1e-300, 1e12]))
        if self.random.random() < 0.7:
            return one()
        return self.oddly(lambda: [one() for _ in range(self.random.randint(0, 9))])

    def times(self):
        drawn = {name: self.time for name in self.random.sample(TIMES, 2)} if self.random.random() < 0.4 else {}
        return self.some(**drawn) if self.random.random() < 0.98 else {"speed": 1}

    def call(self, function, *args, **options):
        """What a call returns, or nothing where it raises in words."""
        self.calls.append(f"{getattr(function, '__qualname__', function)}(*{args!r:.2000}, **{options!r:.2000})")
        try:
            return function(*args, **options)
        except IN_WORDS as error:
            assert str(error), "an error without words"
            return None

    def shape(self):
        return self.some(
            depth=lambda: self.number(9),
            micro_batches=lambda: self.number(24),
            pipes=lambda: self.number(8),
            chunks=lambda: self.number(4),
            scaling=lambda: self.pick("auto", "direct", "doubling", "halving"),
            waves=lambda: self.number(4),
        )

    def made(self):
        """A timetable by one of the ways to one."""
        way = self.random.choice(["schedule", "schedule", "schedule", "auto", "changed", "own", "text"])
        if way == "schedule":
            more = {name: lambda: self.number(8) for name in ("in_turn", "in_flight", "window")}
            return self.call(chimera.schedule, self.pick(*SCHEDULES), **self.shape(), **self.some(**more), **self.times())
        if way == "auto":
            more = self.some(
                placement=lambda: self.pick("mirrored", "line", "interleaved", "v", "wave"),
                recompute=lambda: self.pick("none", "full", "selective"),
                split_backward=lambda: self.pick(True, False),
                memory_cap=lambda: self.time(),
                search_seed=lambda: self.number(9),
            )
            shape = {"micro_batches": 4, **self.shape()}
            return self.call(chimera.auto, search_time=self.random.choice([0, 0.05]), **shape, **more, **self.times())
        whole = chimera.schedule(self.random.choice(["1f1b", "gpipe", "chimera", "dualpipe"]), depth=2, micro_batches=4)
        if way == "changed":
            return self.call(chimera.parse, self.changed(whole), **self.some(format=lambda: self.pick("json", "csv")))
        if way == "own":
            rows = [self.shuffled(row) for row in whole.rows]
            more = {name: lambda: self.number(8) for name in ("schedule", "micro_batches", "units_per_micro")}
            placement = self.oddly(lambda: whole.placement)
            return self.call(chimera.timetable, placement, self.oddly(lambda: rows), **self.some(**more))
        text = "".join(self.random.choice("0123FBIW,\n -{}[]") for _ in range(self.random.randint(0, 60)))
        return self.call(chimera.parse, self.oddly(lambda: text), **self.some(name=lambda: self.pick("x", "y" * 300)))

    def changed(self, timetable):
        """The text of a timetable with some of its values, or some of its letters, changed."""
        file = json.loads(timetable.to_json())
        for _ in range(self.random.randint(0, 3)):
            at, key = file, self.random.choice(list(file))
            while isinstance(at[key], (dict, list)) and at[key] and self.random.random() < 0.9:
                at = at[key]
                key = self.random.choice(list(at) if isinstance(at, dict) else range(len(at)))
            odd = [x for x in ODD if x is None or isinstance(x, (int, float, str, list, dict))]
            at[key] = copy.deepcopy(self.random.choice(odd))  # else a change in one place is one in others
        letters = list(json.dumps(file))
        for _ in range(self.random.choice([0, 0, 0, 1, 5])):
            letters[self.random.randrange(len(letters))] = self.random.choice('0123456789-{}[]",:e')
        text = "".join(letters)
        return text.encode(errors="replace") if self.random.random() < 0.5 else text

    def shuffled(self, row):
        """The cells of a row, at times two of them swapped, one left out or one odd."""
        row = [list(cell) for cell in row]
        if row and self.random.random() < 0.5:
            a, b = (self.random.randrange(len(row)) for _ in range(2))
            row[a], row[b] = row[b], row[a]
        if row and self.random.random() < 0.2:
            row.pop(self.random.randrange(len(row)))
        if row and self.random.random() < 0.2:
            row[self.random.randrange(len(row))] = self.random.choice(ODD)
        return row

    def passed(self, timetable):
        how = self.some(
            recompute=lambda: self.pick("none", "full", "selective"),
            hoist=lambda: self.pick(0, 1, 2, "auto", "on-demand"),
            split_backward=lambda: self.pick(True, False),
            memory_cap=self.time,
        )
        return self.call(timetable.passes, **how, **self.times()) or timetable

    def lowered(self, timetable):
        how = self.some(
            sync=lambda: self.pick("at-end", "eager", "eager-opt", "in-backward"),
            tied=lambda: self.pick([[0, 1]], [[0, timetable.stages - 1]], [[0], [0]], [[]], [[0, 0]], [[1, 0], [0, 1]]),
            barrier=lambda: self.pick(True, False),
            memory_cap=self.time,
        )
        return self.call(timetable.lower, **how, **self.times())

    def drawn(self, timeline):
        for name in ("makespan", "bubble_ratio", "busy", "windows", "unit", "events"):
            getattr(timeline, name)
        name = self.random.choice(["text", "svg", "html", "chrome", "_repr_svg_", "__repr__", "__str__"])
        self.call(getattr(timeline, name))

    def simulated(self, program):
        link = lambda: self.oddly(lambda: (self.time(), self.time()))
        how = self.some(
            width=lambda: self.number(8),
            ranks_per_node=lambda: self.number(16),
            inside=link,
            between=link,
            activation_bytes=self.time,
            gradient_bytes=self.time,
        )
        return self.call(program.simulate, **how, **self.times())

    def measured(self, program):
        event = lambda: tuple(self.oddly(lambda: self.random.randint(0, 5)) for _ in range(4))
        return self.call(program.timeline, self.oddly(lambda: [event() for _ in range(self.random.randint(0, 6))]))

    def run(self):
        timetable = self.made()
        if self.random.random() < 0.1:
            names = [self.pick(*SCHEDULES, "chimera --pipes 4", "1f1b --", '"') for _ in range(2)]
            compared = self.call(chimera.compare, *names, **self.shape(), **self.times())
            self.call(compared.__str__) if compared else None
        if timetable is None:
            return
        timetable = self.passed(timetable)
        for name in ("schedule", "depth", "stages", "pipes", "micro_batches"):
            getattr(timetable, name)
        for name in ("units_per_micro", "placement", "rows", "search"):
            getattr(timetable, name)
        assert chimera.parse(timetable.to_json()).to_json() == timetable.to_json()
        self.call(timetable.to_csv, **self.some(pipe=lambda: self.number(3)))
        self.call(getattr(timetable, self.random.choice(["text", "svg", "html", "_repr_svg_", "__repr__", "__reduce__"])))
        program = self.lowered(timetable)
        if program is None:
            return
        for name in ("schedule", "depth", "stages", "pipes", "micro_batches", "fingerprint", "channel_bound", "peaks"):
            getattr(program, name)
        for name in ("peak_kept", "weight_versions", "messages", "rows"):
            getattr(program, name)
        self.call(program.stages_of, self.pick(0, 1, 7, 65535, 65536))
        self.call(program.replicas, self.pick(0, 1, 7, 65535, 65536))
        self.call(program.one_order_rows)
        self.call(program.to_csv)
        self.call(program.__repr__)
        self.call(program._repr_svg_)
        for timeline in (self.simulated(program), self.measured(program)):
            if timeline is not None:
                self.drawn(timeline)


def main(seconds, first):
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGALRM, stop)
    ends, number, n_calls = time.monotonic() + seconds, first, 0
    while number == first or time.monotonic() < ends:
        case = Case(number)
        signal.alarm(MOST_SECONDS)
        try:
            case.run()
        except BaseException:
            print(f"case {number} failed: python fuzz.py 0 {number}", *case.calls, sep="\n  ", file=sys.stderr)
            raise
        signal.alarm(0)
        number, n_calls = number + 1, n_calls + len(case.calls)
    print(f"{number - first} cases, {n_calls} calls, none failed")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32))
