#!/usr/bin/env python3
"""A second simulator of shared links, to test `chimera simulate --topology` against.

It was written from docs/links.md ("The rules") alone, without a look at the Rust sources. Each case draws a
topology and a program: a listed schedule or a timetable of its own, random times, bytes, `--message`, `--speeds` and
`--sync`. `chimera schedule export --format program-json` gives the rows. They are simulated here and compared with
`chimera simulate --json --trace`: the step, the makespan, and each op and reduction of the group that ends last.

    python3 contention.py target/debug/chimera 2000 1

runs 2,000 cases, with seeds from 1 on, and prints those that differ by more than a part in 10^9 of the step. Some
steps are chaotic: a part in 10^15 of the speeds grows until it changes the step; these are counted apart.
`contention.py COMMAND 1 SEED DIR` repeats a case and leaves its files in DIR. Exit code 1 if any case differs.
"""
import collections, functools, heapq, itertools, json, math, os, random, subprocess, sys, tempfile

COSTS = [("--forward", 1, 0.005, 0.02), ("--backward", 1, 0.01, 0.04), ("--pair", 0.2, 0.01, 0.04),
         ("--recompute-time", 0.2, 0.005, 0.02), ("--message", 0.3, 0.001, 0.01)]  # key, how often, from, to
OTHERS = [("--activation-bytes", 0.9, 1e7, 4e7), ("--gradient-bytes", 0.9, 2e7, 8e7), ("--speeds", 0.5, 0.5, 2)]
SCHEDULES = """gpipe, 1f1b, 1f1b --in-turn 2, seq1f1b --slices 2, seq1f1b --slices 3, gems, chimera --scaling direct,
mixpipe, chimera --scaling direct --pipes 4, chimera --scaling doubling, chimera --scaling halving, interleaved,
interleaved --chunks 3, hanayo, hanayo --waves 1, zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe, dualpipe-v, pipedream,
pipedream-2bw, timeprest, pipeoptim""".replace("\n", " ").split(", ")
REDUCTIONS = ["ring", "tree", "halving", "hierarchical"]
NEAR, TOLERANCE, NEVER, COUNTER = 1 + 1e-12, 1e-9, float("inf"), itertools.count()  # NEAR is rule 10
Flow = collections.namedtuple("Flow", "path size order then")


class Network:
    """Rules 2 and 3: resources and paths."""
    def __init__(self, topology):
        self.devices = [device["name"] for device in topology["devices"]]
        self.rate, self.dedicated, self.out = [], [], collections.defaultdict(list)
        for link in topology["links"]:
            for a, b in [(link["from"], link["to"]), (link["to"], link["from"])]:
                if a == link["from"] or link.get("duplex", "full") == "full":
                    self.rate.append(link["bytes_per_s"])
                    self.dedicated.append(link.get("dedicated", False))
                self.out[a].append((b, len(self.rate) - 1, link.get("latency_s", 0)))

    @functools.cache
    def path(self, a, b):
        """The resources from device a to device b, and their latency."""
        far, border = {b: 0}, [b]
        while border:
            new = {other: far[node] + 1 for node in border for other, _, _ in self.out[node] if other not in far}
            far, border = far | new, [node for node in new if node not in self.devices]
        path, latency = (), 0
        while a != b:
            a, resource, more = next(hop for hop in self.out[a] if far.get(hop[0]) == far[a] - 1
                                     and (hop[0] == b or hop[0] not in self.devices))
            path, latency = (*path, resource), latency + more
        return path, latency


class Fair:
    """Rule 5. `flows` has [bytes left, rate, end] of each."""

    def __init__(self, network, _):
        self.network, self.flows, self.last = network, {}, 0

    def begin(self, flow, now):
        self.flows[flow] = [flow.size, 0, NEVER]

    def next(self):
        return min((end for _, _, end in self.flows.values()), default=NEVER)

    def there(self, limit):
        there = [flow for flow, (_, _, end) in self.flows.items() if end <= limit]
        return [flow.then for flow in there if self.flows.pop(flow)]

    def settle(self, now):
        """New rates, at the end of an instant."""
        network, room, count, growing = self.network, {}, collections.Counter(), {}
        for flow, state in self.flows.items():
            state[0] -= state[1] * (now - self.last)
            growing[flow] = min((network.rate[r] for r in flow.path if network.dedicated[r]), default=NEVER)
            shared = [r for r in flow.path if not network.dedicated[r]]
            room.update((r, network.rate[r]) for r in shared)
            count.update(shared)
        while growing:  # each up to the limit of its dedicated links
            level = min([room[r] / count[r] for r in room if count[r]] + list(growing.values()))
            full = {r for r in room if count[r] and room[r] / count[r] <= level * NEAR}
            for flow in [f for f, limit in growing.items() if limit <= level * NEAR or full & set(f.path)]:
                del growing[flow]
                self.flows[flow][1:] = level, now + self.flows[flow][0] / level
                for r in room.keys() & set(flow.path):
                    room[r] -= level
                    count[r] -= 1
        self.last = now


class Fifo:
    """Rule 6. Dedicated resources are served in the same order as the others, but are always free."""
    there = staticmethod(lambda limit: [])  # in the queue of events
    def __init__(self, network, at):
        self.network, self.at, self.queues, self.free = network, at, [[] for _ in network.rate], [0] * len(network.rate)

    def begin(self, flow, now, hop=0, end=0):
        if hop == len(flow.path):
            self.at(end, flow.then)
        else:
            heapq.heappush(self.queues[flow.path[hop]], (now, flow.order, next(COUNTER), flow, hop, end))

    def next(self):
        return min((free for free, queue in zip(self.free, self.queues) if queue), default=NEVER)

    def settle(self, now):
        r = 0
        while r < len(self.queues):
            if self.queues[r] and self.free[r] <= now * NEAR:
                *_, flow, hop, end = heapq.heappop(self.queues[r])
                carried = now + flow.size / self.network.rate[r]
                self.free[r] = 0 if self.network.dedicated[r] else carried
                self.begin(flow, now, hop + 1, max(end, carried))
                r = -1
            r += 1


def rounds(kind, members, size, island):
    """Rule 8: lists of (sender, receiver, bytes)."""
    n = len(members)
    if kind == "hierarchical":
        islands = {}
        for rank in members:
            islands.setdefault(island[rank], []).append(rank)
        groups, k = list(islands.values()), len(islands)
        m = n // k
        if all(len(group) == m for group in groups):
            inside = [[(g[j], g[(j + 1) % m], size / m) for g in groups for j in range(m)]] * (m - 1)
            across = [(groups[i][j], groups[(i + 1) % k][j], size / (m * k)) for j in range(m) for i in range(k)]
            return inside + [across] * (2 * (k - 1)) + inside
    if kind in ("ring", "hierarchical"):
        return [[(members[i], members[(i + 1) % n], size / n) for i in range(n)]] * (2 * (n - 1))
    if kind == "tree":
        up = [[(members[i], members[i - s], size) for i in range(n) if i % (2 * s) == s]
              for s in (2 ** e for e in range(n.bit_length())) if s < n]
        return up + [[(b, a, size) for a, b, size in flows] for flows in reversed(up)]
    p = 2 ** (n.bit_length() - 1)
    extra = [(members[i], members[i - p], size) for i in range(p, n)]
    distances = [2 ** e for e in range(p.bit_length() - 1)]
    halves = [[(members[i], members[i ^ d], size * d / p) for i in range(p)] for d in distances[::-1] + distances]
    return [extra] + halves + [[(b, a, size) for a, b, size in extra]] if extra else halves


class Simulation:
    """One step. Cells of a row are ("op", time), ("send", token, worker, bytes, message), ("recv", token),
    ("reduce", bucket) and ("await", bucket); buckets are (workers, bytes)."""

    def __init__(self, topology, width, rows, buckets, speeds):
        self.network, self.rows, self.depth, count = Network(topology), rows, len(rows), len(rows) * width
        self.device = (topology.get("ranks") or self.network.devices)[:count]
        island = {device["name"]: device["island"] for device in topology["devices"]}
        self.carrier = {"fair": Fair, "fifo": Fifo}[topology.get("sharing", "fair")](self.network, self.when)
        # The rules do not say that a worker is as fast as the slowest of its ranks in all groups.
        self.speed = [min(speeds[rank % len(speeds)] for rank in range(w, count, len(rows))) for w in range(len(rows))]
        self.now, self.events, self.at, self.begun = 0, [], [0] * count, [0] * count
        self.here, self.waits = [set() for _ in range(count)], [None] * count  # to receive or await
        self.spans = [[] for _ in range(count)]  # (whether a reduction, begin, end)
        self.busy, self.buckets = set(), []  # busy are the members of reductions under way
        for workers, size in buckets:
            # By groups, in each in order of pipes. Rule 8 says in order of ranks.
            members = [group * self.depth + worker for group in range(width) for worker in workers]
            plan = rounds(topology.get("reductions", "ring"), members, size, [island[d] for d in self.device])
            self.buckets.append({"members": members, "rounds": plan, "row": {}, "waits": bool(plan and size)})
        self.run()

    def when(self, time, call):
        heapq.heappush(self.events, (time, next(COUNTER), call))

    def send(self, a, b, size, row, delay, then):
        """Rule 4."""
        path, latency = self.network.path(self.device[a], self.device[b])
        flow = Flow(path, size, (a, row, b), then)
        self.when(self.now + delay + latency, lambda: self.carrier.begin(flow, self.now) if size and path else then())

    def arrive(self, rank, cell):
        self.here[rank].add(cell)
        if self.waits[rank] == cell:
            self.go(rank)

    def go(self, rank):
        """Rule 1: a rank runs its row until it has to wait."""
        row, first = self.rows[rank % self.depth], rank - rank % self.depth
        while self.at[rank] < len(row):
            kind, what, *more = cell = row[self.at[rank]]
            self.waits[rank] = cell if kind in ("recv", "await") and cell not in self.here[rank] else None
            if self.waits[rank]:
                return
            self.at[rank] += 1
            if kind == "op":
                begin = self.now

                def end():
                    self.spans[rank].append((False, begin, self.now))
                    self.go(rank)
                return self.when(self.now + what / self.speed[rank % self.depth], end)
            if kind == "send":
                to, size, delay = more
                then = functools.partial(self.arrive, first + to, ("recv", what))
                self.send(rank, first + to, size, self.begun[rank], delay, then)
            if kind == "reduce":
                bucket = self.buckets[what]
                bucket["row"][rank] = self.begun[rank]
                if not bucket["waits"] and len(bucket["row"]) == len(bucket["members"]):
                    for member in bucket["members"]:
                        self.arrive(member, ("await", what))
            self.begun[rank] += kind in ("send", "reduce")

    def begin_reductions(self):
        """Rule 7."""
        began = False
        for name, bucket in enumerate(self.buckets):
            members = set(bucket["members"])
            if bucket["waits"] and len(bucket["row"]) == len(members) and not self.busy & members:
                self.busy |= members
                bucket["waits"], began = False, True
                self.next_round(name, bucket, self.now, bucket["rounds"])
        return began

    def next_round(self, name, bucket, begin, rest):
        left = list(rest[0] if rest else [])
        for a, b, size in list(left):
            self.send(a, b, size, bucket["row"][a], 0,
                      lambda: left.pop() and (left or self.next_round(name, bucket, begin, rest[1:])))
        for rank in [] if rest else bucket["members"]:
            self.busy.discard(rank)
            self.spans[rank] += [(True, begin, self.now)] if self.now > begin else []
            self.arrive(rank, ("await", name))

    def run(self):
        for rank in range(len(self.at)):
            self.go(rank)
        while self.now < NEVER:
            calls = True
            while calls or self.begin_reductions():  # all that happens at this instant
                calls = self.carrier.there(self.now * NEAR)
                while self.events and self.events[0][0] <= self.now * NEAR:
                    calls.append(heapq.heappop(self.events)[2])
                for call in calls:
                    call()
            self.carrier.settle(self.now)
            self.now = min(self.carrier.next(), self.events[0][0] if self.events else NEVER)
        self.makespan = max(end for spans in self.spans for _, _, end in spans)
        latency = max(self.network.path(self.device[0], other)[1] for other in self.device)
        self.step = self.makespan + math.ceil(math.log2(len(self.at))) * latency  # rule 9


def draw_topology(rng, count, number):
    """Islands, trees, meshes and stars."""
    devices, islands = rng.choice([count, count, rng.randint(1, count), count + 2]), rng.randint(1, 4)
    home = rng.choice([[i * islands // devices for i in range(devices)], rng.choices(range(islands), k=devices)])
    names, nics = [f"d{i}" for i in range(devices)], [f"n{i}" for i in range(islands)]
    inner = nics + [f"s{i}" for i in range(rng.randint(1, 4))]
    attach = rng.choice([lambda i: nics[home[i]], lambda i: rng.choice(inner), lambda i: inner[-1]])
    pairs = [(inner[i], rng.choice(inner[:i])) for i in range(1, len(inner))]
    pairs += [(names[i], attach(i)) for i in range(devices)]
    pairs += [rng.sample(inner + names, 2) for _ in range(rng.choice([0, 0, len(inner), 2 * len(inner) + devices]))]
    halves, lone = rng.random() / 2, rng.random() / 2  # how many links are half-duplex, and dedicated
    links = [{"from": a, "to": b, "bytes_per_s": number(5e8, 4e9), "latency_s": rng.choice([0, number(1e-3, 1e-2)]),
              "dedicated": rng.random() < lone, "duplex": "half" if rng.random() < halves else "full"}
             for a, b in (rng.sample(pair, 2) for pair in rng.sample(pairs, len(pairs)))]
    topology = {"format": 1, "links": links, "nics": nics, "switches": inner[islands:],
                "sharing": rng.choice(["fair", "fifo"]), "reductions": rng.choice(REDUCTIONS),
                "devices": [{"name": name, "island": f"i{i}"} for name, i in zip(names, home)]}
    if devices < count or rng.random() < 0.5:
        topology["ranks"] = rng.choices(names, k=count) if devices < count else rng.sample(names, count)
    return topology


def draw_timetable(rng):
    """Any placement, in a random order that the dependencies allow."""
    depth, stages, pipes, each = rng.randint(1, 4), rng.randint(1, 5), rng.randint(1, 3), rng.randint(1, 3)
    placement = [rng.choices(range(depth), k=stages) for _ in range(pipes)]
    needs, rows, done = {}, [[] for _ in range(depth)], set()
    for pipe, stage in itertools.product(range(pipes), range(stages)):
        back = rng.choice("BI")
        for m in range(pipe * each, pipe * each + each):
            needs["F", pipe, stage, m] = {("F", pipe, stage - 1, m), ("F", pipe, stage, m - 1)}
            needs[back, pipe, stage, m] = {("F", pipe, stage, m), (back, pipe, stage, m - 1)} | {
                (kind, pipe, stage + 1, m) for kind in "BI"}
            if back == "I":
                needs["W", pipe, stage, m] = {("I", pipe, stage, m)}
    while len(done) < len(needs):
        op = rng.choice([op for op in needs if op not in done and not (needs[op] & set(needs)) - done])
        done.add(op)
        rows[placement[op[1]][op[2]]].append(dict(zip(["kind", "pipe", "stage"], op), micro_batches=[op[3]]))
    return {"schedule": "drawn", "depth": depth, "stages": stages, "pipes": pipes, "micro_batches": pipes * each,
            "placement": placement, "rows": rows}


def rows_of(program, options, at_end):
    """Rows and buckets for a Simulation, from an exported program, which is that of `--sync eager-opt`."""
    def of(key, default=(0,)):
        values = [float(value) for value in options[key].split(",")] if key in options else default
        return values * program["stages"] if len(values) == 1 else values
    forward, halves = of("--forward"), [time / 2 for time in of("--backward")]
    times = {"F": forward, "B": of("--backward"), "I": halves, "W": halves, "pair": of("--pair"),
             "R": of("--recompute-time", forward)}
    message, activation, gradient = of("--message"), of("--activation-bytes"), of("--gradient-bytes")
    rows, units = [], program["units_per_micro"]
    for row in program["rows"]:
        cells, late = [], []
        for do in row["instructions"]:
            if do["do"] == "run":
                ops = [(op["kind"], op["stage"], len(op["units"]) / units) for op in do["ops"]]
                if "--pair" in options and len(ops) == 2:  # its time is by the stage of the forward
                    ops = [("pair", *op[1:]) for op in ops if op[0] == "F"]
                cells.append(("op", sum(times[op][stage] * share for op, stage, share in ops)))
            elif do["do"] == "send":
                token = program["tokens"][do["token"]]
                size = activation[token["stage"] - (token["kind"] == "gradient")] * len(token["units"]) / units
                cells.append(("send", do["token"], do["to"], size, message[token["stage"]]))
            elif do["do"] == "recv":
                cells.append(("recv", do["token"]))
            elif do["do"] in ("reduce", "await"):
                (late if at_end else cells).append((do["do"], do["bucket"]))
        rows.append(cells + late)
    return rows, [(bucket["members"], sum(gradient[s] for s in bucket["stages"])) for bucket in program["buckets"]]


def compare(mine, answer, trace):
    """The largest difference of the step, the makespan, and the spans of the group that ends last (of several, any)."""
    theirs = sorted((event["pid"], event["cat"] == "reduction", event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
                    for event in trace["traceEvents"] if event["ph"] == "X")
    groups = []
    for first in range(0, len(mine.at), mine.depth):
        spans = sorted((w, *span) for w in range(mine.depth) for span in mine.spans[first + w])
        if len(spans) == len(theirs) and max(span[3] for span in spans) * (1 + TOLERANCE) >= mine.makespan:
            groups.append(max(abs(a - b) for pair in zip(theirs, spans) for a, b in zip(*pair)))
    worst = [abs(mine.step - answer["step"]), abs(mine.makespan - answer["makespan"]), min(groups, default=NEVER)]
    return max(worst) / answer["step"]


def case(seed, command, folder):
    rng = random.Random(seed)
    kind = rng.choice(["even", "round", "any"])  # many events at one instant, some, hardly any

    def number(low, high, form=float):
        return form(low if kind == "even" else rng.choice([low, high]) if kind == "round" else round(
            rng.uniform(low, high), -2 if high > 1e3 else 5))  # --gradient-bytes are rounded

    def ask(*words, refusal=RuntimeError):
        done = subprocess.run([command, *words], capture_output=True, text=True)
        if done.returncode:
            raise refusal(" ".join(words) + done.stderr)
        return json.loads(done.stdout)

    def file(name, value):
        with open(os.path.join(folder, name), "w") as opened:
            json.dump(value, opened)
        return opened.name
    schedule = rng.choice(SCHEDULES).split()  # many do not fit, and are refused
    depth = rng.choice([2, 4, 4, 6, 8] if len(schedule) > 1 else [1, 2, 2, 3, 4, 5, 6])
    schedule += ["--depth", str(depth), "--micro-batches", str(math.ceil(depth * rng.choice([0.5, 1, 1, 1.5, 2, 3])))]
    schedule += rng.choice([[], [], ["--recompute", "full", "--hoist", rng.choice(["0", "1", "on-demand"])]])
    schedule += rng.choice([[], [], [], [], ["--border", "free"], ["--split-backward"]])
    schedule = schedule if rng.random() < 0.75 else [file("timetable.json", draw_timetable(rng))]
    program = ask("schedule", "export", *schedule, "--format", "program-json", refusal=NotImplementedError)
    width = rng.randint(1, max(1, min(6, 24 // program["depth"])))
    many = collections.defaultdict(lambda: program["stages"], {"--speeds": program["depth"]})
    costs, rest = ({key: ",".join(number(low, high, str) for _ in range(many[key] if rng.random() < 0.2 else 1))
                    for key, chance, low, high in options if rng.random() < chance} for options in (COSTS, OTHERS))
    if rng.random() < 0.5 or program["steps"] > 1 or "--split-backward" in schedule:
        rest.pop("--speeds", None)  # they decide orders and places of reductions, and `export` does not take them
    at_end = "--speeds" in rest or program["steps"] == 1 and rng.random() < 0.3
    schedule += itertools.chain(*costs.items())
    program = ask("schedule", "export", *schedule, "--format", "program-json")
    topology, trace = draw_topology(rng, width * program["depth"], number), os.path.join(folder, "trace.json")
    words = ["simulate", *schedule, *itertools.chain(*rest.items()), "--width", str(width), "--sync",
             "at-end" if at_end else "eager-opt", "--topology", file("topology.json", topology)]
    answer = ask(*words, "--json", "--trace", trace)
    given, speeds = rows_of(program, costs | rest, at_end), rest.get("--speeds", "1").split(",")
    mine, again = (Simulation(topology, width, *given, [float(speed) * change for speed in speeds])
                   for change in (1, 1 + 1e-15))
    what = f"{mine.step!r} here, {answer['step']!r} there: {command} {' '.join(words)}"
    with open(trace) as opened:
        return compare(mine, answer, json.load(opened)), abs(again.step - mine.step) / mine.step, what


def main(command, cases, seed, folder=None):
    counts, largest, folder = collections.Counter(), 0, folder or tempfile.mkdtemp()
    for seed in range(int(seed), int(seed) + int(cases)):
        try:
            difference, growth, what = case(seed, command, folder)
        except NotImplementedError:
            counts["refused"] += 1
            continue
        kind = "agree" if difference <= TOLERANCE else "chaotic" if growth > difference / 100 else "differ"
        counts[kind] += 1
        largest = max(largest, difference) if kind == "agree" else largest
        if kind != "agree":
            print(f"seed {seed}, {kind}: by {difference:.1e}, a change of 1e-15 makes {growth:.1e}; {what}", flush=True)
    print(f"{dict(counts)}; those that agree by at most {largest:.1e}")
    return counts["differ"] > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
