"""Reads programs in JSON, as `chimera schedule export` writes them, by the rules of docs/library.md alone.

Plays each file on all workers and prints one line of JSON for it: what it found, or `{"error": …}` for the first rule that
is broken. Knows nothing of schedules, and uses the standard library only.
"""

import json
import sys
from collections import Counter, defaultdict, deque


class Broken(Exception):
    """A rule that a file breaks."""


def need(holds, *words):
    if not holds:
        raise Broken(" ".join(map(str, words)))


SAVED = ("saved", "deferred", "reloaded", "guest")
"""What counts as activations that a worker holds."""


class Program:
    """A file, and what follows from it without playing it."""

    def __init__(self, file):
        need(file["format"] == 0, "format", file["format"])
        self.file, self.tokens, self.buckets = file, file["tokens"], file["buckets"]
        self.depth, self.placement = file["depth"], file["placement"]
        self.n_units = file["micro_batches"] * file["units_per_micro"]
        self.n_updates = 1 + max(bucket["update"] for bucket in self.buckets)
        self.rows = {(row["worker"], row["lane"]): row["instructions"] for row in file["rows"]}
        lanes = ("compute", "moves") if len(file["rows"]) > self.depth else ("compute",)
        wanted = [(worker, lane) for worker in range(self.depth) for lane in lanes]
        need(sorted(self.rows) == sorted(wanted) and len(file["rows"]) == len(wanted), "rows of", sorted(self.rows))
        self.has_moves = len(lanes) > 1

    def channel(self, token, sender, receiver):
        """The channel of a token: messages of one channel keep their order."""
        about = self.tokens[token]
        return (sender, receiver, *(about.get(key) for key in ("kind", "pipe", "stage", "to", "lane")))

    def share(self, about):
        """What a token counts in micro-batches: with v stages of its pipe on a worker each counts 1/v."""
        if about["kind"] not in SAVED:
            return 0.0
        pipe = self.placement[about["pipe"]]
        n_held = pipe.count(pipe[about["stage"]])
        return len(about["units"]) / (n_held * self.file["units_per_micro"])

    def instructions(self):
        return (step for row in self.rows.values() for step in row)

    def check_tokens(self):
        """Every token is made once and eaten once, by whoever does it."""
        made, eaten, sent, received = Counter(), Counter(), Counter(), Counter()
        for step in self.instructions():
            for op in step.get("ops", ()):
                made.update(op["makes"])
                eaten.update(op["eats"])
            by_name = {"give": made, "take": eaten, "send": sent, "recv": received}
            if step["do"] in by_name:
                by_name[step["do"]][step["token"]] += 1
        for token, about in enumerate(self.tokens):
            need(made[token] == 1, f"token {token} ({about}) is made {made[token]} times")
            need(eaten[token] == 1, f"token {token} ({about}) is eaten {eaten[token]} times")
            need(sent[token] == received[token] <= 1, f"token {token} ({about}) is sent {sent[token]} times")
        need(max(made) < len(self.tokens), "a token that is not in the list")
        self.messages = set(sent)

    def check_passes(self):
        """Every unit goes once forward and once backward through every stage of one pipe, on the worker of the stage."""
        done = defaultdict(list)
        for (worker, _), row in self.rows.items():
            for op in (op for step in row for op in step.get("ops", ())):
                is_here = self.placement[op["pipe"]][op["stage"]] == worker
                need(is_here != (op["kind"] in "KT"), f"{op} is on worker {worker}")
                for unit in op["units"] if op["kind"] in "FBIW" else ():
                    done[unit, op["stage"]].append((op["pipe"], op["kind"]))
        for unit in range(self.n_units):
            pipes = set()
            for stage in range(self.file["stages"]):
                passes = done.pop((unit, stage), [])
                kinds = sorted(kind for _, kind in passes)
                need(kinds in (["B", "F"], ["F", "I", "W"]), f"unit {unit}, stage {stage}: {passes}")
                pipes.update(pipe for pipe, _ in passes)
            need(len(pipes) == 1, f"unit {unit} is in the pipes {pipes}")
        need(not done, f"passes that nobody asked for: {sorted(done)}")

    def check_synchronisation(self):
        """Each member sums, waits and updates once for each bucket, between the gradients of its update and the next."""
        for worker in range(self.depth):
            row = self.rows[worker, "compute"]
            at = {(step["do"], step["bucket"]): i for i, step in enumerate(row) if "bucket" in step}
            own = [b for b, bucket in enumerate(self.buckets) if worker in bucket["members"]]
            n_written = sum("bucket" in step for step in row)
            need(len(at) == n_written == 3 * len(own), f"worker {worker} has other sums")
            starts = sorted((at["reduce", b], self.buckets[b]["order"]) for b in own)
            orders = [order for _, order in starts]
            need(orders == sorted(set(orders)), f"worker {worker} starts its sums in another order")
            agrees = [i for i, step in enumerate(row) if step["do"] == "agree"]
            need(len(agrees) == 1, f"worker {worker} agrees {len(agrees)} times")
            for b in own:
                begin, end, update = at["reduce", b], at["await", b], at["step", b]
                need(begin < end < update, f"worker {worker}: bucket {b}")
                need(not self.file["barrier"] or end < agrees[0] < update, f"worker {worker}: bucket {b} and the agreement")
                self.check_gradients(row, self.buckets[b], begin, update)

    def check_gradients(self, row, bucket, begin, update):
        per_update = self.n_units // self.n_updates
        for i, step in enumerate(row):
            for op in step.get("ops", ()):
                if op["kind"] not in "BW" or op["stage"] not in bucket["stages"]:
                    continue
                of = op["units"][0] // per_update
                need(of != bucket["update"] or i < begin, f"{op} comes after the sum of {bucket}")
                need(of != bucket["update"] + 1 or i > update, f"{op} comes before the update of {bucket}")


class Play:
    """The rows of a program, played on all workers with channels of bounded room."""

    def __init__(self, program, room):
        self.program, self.room = program, room
        self.next = dict.fromkeys(program.rows, 0)
        self.held = [set() for _ in range(program.depth)]
        self.channels = defaultdict(deque)
        self.started, self.agreed = defaultdict(set), set()
        self.made = defaultdict(int)
        self.now, self.peaks = [0.0] * program.depth, [0.0] * program.depth

    def run(self):
        """Plays until nothing moves; returns true if all rows have ended."""
        moved = True
        while moved:
            moved = False
            for (worker, lane), row in self.program.rows.items():
                at = self.next[worker, lane]
                while at < len(row) and self.step(worker, lane, row[at]):
                    self.next[worker, lane] = at = at + 1
                    moved = True
        return all(self.next[at] == len(row) for at, row in self.program.rows.items())

    def step(self, worker, lane, step):
        """Does an instruction; returns false if it has to wait."""
        what, held = step["do"], self.held[worker]
        if what == "run":
            return self.run_ops(worker, lane, step["ops"])
        if what == "send":
            channel = self.channels[self.program.channel(step["token"], worker, step["to"])]
            need(step["token"] in held, f"worker {worker} has nothing for {step}")
            if len(channel) == self.room:
                return False
            channel.append(step["token"])
            held.remove(step["token"])
        elif what == "recv":
            channel = self.channels[self.program.channel(step["token"], step["from"], worker)]
            if not channel:
                return False
            need(channel[0] == step["token"], f"worker {worker}: {step}, but {channel[0]} comes before it in its channel")
            held.add(channel.popleft())
        elif what == "give":
            held.add(step["token"])
        elif what == "take":
            if step["token"] not in held:
                return False
            held.remove(step["token"])
        elif what == "reduce":
            self.started[step["bucket"]].add(worker)
        elif what == "await":
            return self.started[step["bucket"]] == set(self.program.buckets[step["bucket"]]["members"])
        elif what == "agree":
            moves = self.program.rows.get((worker, "moves"), [])
            if self.next.get((worker, "moves"), 0) < len(moves):
                return False
            self.agreed.add(worker)
            return len(self.agreed) == self.program.depth
        else:
            need(what == "step", f"unknown instruction {step}")
            for stage in self.program.buckets[step["bucket"]]["stages"]:
                self.made[worker, stage] += 1
        return True

    def check_read(self, worker, read, op):
        """Weights that an op reads are there: the newest version, or in a double buffer the one before it."""
        made, version = self.made[worker, read["stage"]], read["version"]
        kept = 1 if self.program.file["update"] == "double-buffer" else 0
        is_there = version == "newest" or made - kept <= version <= made
        need(is_there or (read.get("predicted") and version >= made), f"worker {worker}: {op} reads {read} after {made} updates")

    def run_ops(self, worker, lane, ops):
        held = self.held[worker]
        eaten = [token for op in ops for token in op["eats"]]
        if not held.issuperset(eaten):
            need(self.program.has_moves, f"worker {worker} lacks what {ops} eats")
            return False
        for op in ops:
            for read in op.get("reads", []):
                self.check_read(worker, read, op)
        shares = [sum(map(self.share, op["makes"])) - sum(map(self.share, op["eats"])) for op in ops]
        self.now[worker] += sum(max(share, 0.0) for share in shares)
        self.peaks[worker] = max(self.peaks[worker], self.now[worker])
        self.now[worker] += sum(min(share, 0.0) for share in shares)
        held.difference_update(eaten)
        held.update(token for op in ops for token in op["makes"])
        return True

    def share(self, token):
        return self.program.share(self.program.tokens[token])


class InOneOrder(Play):
    """The rows, of which messages, sums and the agreement take their turns in the one order of the file."""

    def __init__(self, program):
        super().__init__(program, None)
        self.ready, self.arrived, self.done = set(), set(), set()

    def step(self, worker, lane, step):
        what = step["do"]
        if what == "send":
            self.ready.add(step["token"])
            self.held[worker].remove(step["token"])
            return True
        if what == "recv":
            if step["token"] in self.arrived:
                self.held[worker].add(step["token"])
            return step["token"] in self.arrived
        if what == "await":
            return ("reduction", step["bucket"]) in self.done
        if what == "agree":
            super().step(worker, lane, step)
            return ("agreement", True) in self.done
        return super().step(worker, lane, step)

    def check(self):
        """Every event of the list takes place when its turn comes, with all that take part."""
        events = [next(iter(event.items())) for event in self.program.file["one_order"]]
        wanted = {("message", token) for token in self.program.messages} | {("agreement", True)}
        wanted |= {("reduction", bucket) for bucket in range(len(self.program.buckets))}
        need(len(events) == len(wanted) and set(events) == wanted, "the one order has other events")
        for event in events:
            self.run()
            name, what = event
            if name == "message":
                need(what in self.ready, f"one order: nobody can send {what} in its turn")
                self.arrived.add(what)
            elif name == "reduction":
                members = set(self.program.buckets[what]["members"])
                need(self.started[what] == members, f"one order: sum {what} has not been started by all in its turn")
            else:
                need(len(self.agreed) == self.program.depth, "one order: not all agree in their turn")
            self.done.add(event)
        need(self.run(), "one order: workers wait for ever")


def read(file):
    """Checks a program, and returns what the command prints of it too."""
    program = Program(file)
    program.check_tokens()
    program.check_passes()
    program.check_synchronisation()
    bound = file["channel_bound"]
    play = Play(program, bound)
    if not play.run():
        waits = [(*of, row[play.next[of]]) for of, row in program.rows.items() if play.next[of] < len(row)]
        raise Broken(f"workers wait for ever: {waits}")
    need(not any(play.held) and not any(play.channels.values()), "tokens are left")
    need(bound == 1 or not Play(program, bound - 1).run(), f"channels of {bound - 1} messages suffice")
    if file["one_order"] is not None:
        InOneOrder(program).check()
    n_messages = sum(program.tokens[token]["kind"] != "memory" for token in program.messages)
    return {"messages": n_messages, "peaks": play.peaks, "channel_bound": bound, "has_moves": program.has_moves}


def main():
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as text:
            file = json.load(text)
        try:
            found = read(file)
        except Broken as broken:
            found = {"error": str(broken)}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
