"use strict";
(() => {
  const data = JSON.parse(document.getElementById("timelines").textContent);
  const names = Object.keys(data);
  const tip = document.getElementById("tip");
  const done = () => { document.documentElement.dataset.drawn = "true"; };
  if (names.length === 0) { done(); return; }

  const LEFT = 64, ROW = 26, SUMS = 8, AXIS = 22, MEMORY = 46;
  // As in the drawings: pale, medium, strong and dark tones of the pipes that go down, and of those that go up.
  const TONES = [["#c3dcf7", "#84b4e6", "#3f83c8", "#1f5c9e"], ["#ffdcb8", "#f7b173", "#e07c30", "#b5520f"]];
  const TONE = { forward: 0, recompute: 0, "weight half": 1, "input half": 2, backward: 3 };
  const COLORS = { update: "#4b5763", reduction: "#8a95a1", wait: "#8884" };
  const CRITICAL = "#d62828";
  const OPS = { F: "forward", B: "backward", I: "input half", W: "weight half", R: "recompute" };
  const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const whole = Math.max(...names.map((name) => data[name].seconds)) || 1;
  let view = { from: 0, to: whole };

  const digits = (x, n) => String(Number(x.toPrecision(n)));
  const time = (seconds) => {
    const unit = UNITS.find(([size]) => Math.abs(seconds) >= size) || [1, "s"];
    return digits(seconds / unit[0], 4) + " " + unit[1];
  };
  const bytes = (n) => {
    const unit = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([size]) => n >= size) || [1, "B"];
    return digits(n / unit[0], 3) + " " + unit[1];
  };
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

  const piece = ([rank, lane, start, took, kind, name, ops], nth, critical) =>
    ({ rank, lane, start, took, kind, name, ops, isCritical: critical.has(nth) });
  // The halves of a backward are told apart by their ops.
  const pipes = names.flatMap((name) => data[name].slices.map((row) => (row[6].length > 0 ? row[6][0][1] : 0)));
  const nPipes = pipes.reduce((most, pipe) => Math.max(most, pipe + 1), 1);
  const goesUp = (s) => s.ops.length > 0 && nPipes > 1 && s.ops[0][1] >= nPipes / 2;
  const kindOf = (s) => (s.kind === "backward" && s.ops.length === 1 && OPS[s.ops[0][0]]) || s.kind;
  const lines = names.map((name) => {
    const rows = new Map(data[name].ranks.map((rank) => [rank, { own: [], sums: [], waits: [] }]));
    const critical = new Set(data[name].critical);
    for (const s of data[name].slices.map((row, nth) => piece(row, nth, critical))) {
      const row = rows.get(s.rank);
      if (row) (s.kind === "wait" ? row.waits : s.lane === 0 ? row.own : row.sums).push(s);
    }
    for (const row of rows.values()) Object.values(row).forEach((list) => list.sort((a, b) => a.start - b.start));
    return { name, rows, canvas: document.getElementById(name) };
  });
  const memory = document.getElementById("memory");
  const held = new Map();
  for (const name of names) {
    for (const [rank, steps] of data[name].memory) {
      if (!held.has(rank)) held.set(rank, {});
      held.get(rank)[name] = steps;
    }
  }
  const heldRanks = [...held.keys()].sort((a, b) => a - b);

  const prepare = (canvas, height) => {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const to = canvas.getContext("2d");
    to.scale(ratio, ratio);
    to.font = "11px system-ui, sans-serif";
    to.textBaseline = "middle";
    return { to, width };
  };
  const scale = (width) => (t) => LEFT + (t - view.from) / (view.to - view.from) * (width - LEFT - 4);
  const axis = (to, width, height, x) => {
    const rough = (view.to - view.from) / Math.max(2, (width - LEFT) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    to.strokeStyle = style("--line");
    to.fillStyle = style("--faint");
    to.textAlign = "center";
    for (let nth = Math.ceil(view.from / step); nth * step <= view.to; nth++) {
      const at = x(nth * step);
      to.beginPath(); to.moveTo(at, 0); to.lineTo(at, height - AXIS + 4); to.stroke();
      to.fillText(nth === 0 ? "0" : time(nth * step), Math.min(at, width - 24), height - AXIS / 2 + 3);
    }
  };

  const box = (to, x, s, top, height, label) => {
    const left = Math.max(x(s.start), LEFT), right = x(s.start + s.took);
    if (right < LEFT || left > to.canvas.clientWidth) return;
    const wide = Math.max(right - left, 0.5);
    const tone = TONE[kindOf(s)];
    to.fillStyle = tone === undefined ? COLORS[kindOf(s)] || "#777" : TONES[goesUp(s) ? 1 : 0][tone];
    to.fillRect(left, top, Math.max(wide - 0.5, 0.5), height);
    if (s.isCritical) {
      to.strokeStyle = CRITICAL;
      to.lineWidth = 1.5;
      to.strokeRect(left + 0.75, top + 0.75, Math.max(wide - 2, 0.5), height - 1.5);
      to.lineWidth = 1;
    }
    if (label && wide > to.measureText(s.name).width + 6) {
      to.fillStyle = tone < 2 ? "#1c2733" : "#fff";
      to.textAlign = "center";
      to.fillText(s.name, left + wide / 2, top + height / 2);
    }
  };

  const drawLine = (line) => {
    const height = line.rows.size * (ROW + SUMS) + AXIS;
    const { to, width } = prepare(line.canvas, height);
    const x = scale(width);
    axis(to, width, height, x);
    let top = 0;
    for (const [rank, row] of line.rows) {
      to.fillStyle = style("--ink");
      to.textAlign = "right";
      to.fillText("rank " + rank, LEFT - 8, top + ROW / 2);
      row.waits.forEach((s) => box(to, x, s, top + ROW / 2 - 2, 4, false));
      row.own.forEach((s) => box(to, x, s, top + 1, ROW - 2, true));
      row.sums.forEach((s) => box(to, x, s, top + ROW, SUMS - 3, false));
      top += ROW + SUMS;
    }
  };

  const drawMemory = () => {
    if (!memory) return;
    const height = heldRanks.length * MEMORY + AXIS;
    const { to, width } = prepare(memory, height);
    const x = scale(width);
    axis(to, width, height, x);
    const all = heldRanks.flatMap((rank) => Object.values(held.get(rank)).flat());
    const most = all.reduce((most, [, n]) => Math.max(most, n), 0) || 1;
    heldRanks.forEach((rank, nth) => {
      const base = (nth + 1) * MEMORY - 4;
      const peak = Object.values(held.get(rank)).flat().reduce((peak, [, n]) => Math.max(peak, n), 0);
      to.fillStyle = style("--ink");
      to.textAlign = "right";
      to.fillText("rank " + rank, LEFT - 8, base - MEMORY / 2 - 4);
      to.fillStyle = style("--faint");
      to.fillText(bytes(peak), LEFT - 8, base - MEMORY / 2 + 10);
      to.save();
      to.beginPath(); to.rect(LEFT, 0, width - LEFT, height); to.clip();
      for (const name of names.filter((name) => held.get(rank)[name])) {
        to.strokeStyle = style(name === "planned" ? "--faint" : "--loss");
        to.setLineDash(name === "planned" ? [4, 3] : []);
        to.beginPath();
        let before = 0;
        for (const [at, n] of held.get(rank)[name]) {
          const y = (amount) => base - amount / most * (MEMORY - 10);
          to.lineTo(x(at), y(before));
          to.lineTo(x(at), y(n));
          before = n;
        }
        to.stroke();
      }
      to.restore();
    });
  };
  const draw = () => { lines.forEach(drawLine); drawMemory(); };

  const at = (event) => {
    const area = event.currentTarget.getBoundingClientRect();
    return { x: event.clientX - area.left, y: event.clientY - area.top, width: area.width };
  };
  const timeAt = ({ x, width }) => view.from + (x - LEFT) / (width - LEFT - 4) * (view.to - view.from);
  const within = (list, t, slack) => list.find((s) => t >= s.start - slack && t <= s.start + s.took + slack);
  const found = (line, place) => {
    const t = timeAt(place), nth = Math.floor(place.y / (ROW + SUMS));
    const row = [...line.rows.values()][nth];
    if (!row || place.x < LEFT) return undefined;
    const slack = 1.5 * (view.to - view.from) / place.width;
    return place.y - nth * (ROW + SUMS) > ROW ? within(row.sums, t, slack)
      : within(row.own, t, 0) || within(row.own, t, slack) || within(row.waits, t, 0);
  };
  const told = (s) => {
    const ops = s.ops.map(([kind, pipe, stage, micro]) =>
      `${OPS[kind] || kind}: micro-batch ${micro}, stage ${stage}, pipe ${pipe}`);
    const what = ops.length > 0 ? [...ops] : [s.name];
    if (s.isCritical) what.push("on the critical path");
    return [...what, `rank ${s.rank}`, `start ${time(s.start)}`, `duration ${time(s.took)}`].join("\n");
  };
  const memoryTold = (place) => {
    const rank = heldRanks[Math.floor(place.y / MEMORY)], t = timeAt(place);
    if (rank === undefined || place.x < LEFT) return undefined;
    const now = (steps) => steps.reduce((n, [at, value]) => (at <= t ? value : n), 0);
    const each = names.filter((name) => held.get(rank)[name]);
    return [`rank ${rank} at ${time(t)}`, ...each.map((name) => `${name}: ${bytes(now(held.get(rank)[name]))}`)].join("\n");
  };
  const show = (event, text) => {
    tip.hidden = text === undefined;
    if (text === undefined) return;
    tip.textContent = text;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 6);
    const top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 6);
    tip.style.left = Math.max(left, 0) + "px";
    tip.style.top = Math.max(top, 0) + "px";
  };

  const look = (from, to) => {
    const length = Math.min(Math.max(to - from, whole * 1e-6), whole);
    const start = Math.min(Math.max(from, 0), whole - length);
    view = { from: start, to: start + length };
    draw();
  };
  const zoom = (factor, about = (view.from + view.to) / 2) =>
    look(about - (about - view.from) * factor, about + (view.to - about) * factor);
  const move = (part) => { const by = part * (view.to - view.from); look(view.from + by, view.to + by); };
  const KEYS = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => look(0, whole),
                 ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) };
  let drag;
  const listen = (canvas, tell) => {
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: at(event).x, view };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { drag = undefined; });
    canvas.addEventListener("pointercancel", () => { drag = undefined; });
    canvas.addEventListener("pointermove", (event) => {
      const place = at(event);
      if (drag) {
        const by = (drag.x - place.x) / (place.width - LEFT - 4) * (drag.view.to - drag.view.from);
        look(drag.view.from + by, drag.view.to + by);
      }
      show(event, drag ? undefined : tell(place));
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("dblclick", () => look(0, whole));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(1.0015 ** event.deltaY, timeAt(at(event)));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (!KEYS[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      KEYS[event.key]();
    });
  };
  lines.forEach((line) => listen(line.canvas, (place) => {
    const s = found(line, place);
    return s && told(s);
  }));
  if (memory) listen(memory, memoryTold);
  document.getElementById("in").addEventListener("click", () => zoom(0.5));
  document.getElementById("out").addEventListener("click", () => zoom(2));
  document.getElementById("fit").addEventListener("click", () => look(0, whole));

  const kinds = new Set(lines.flatMap((line) => [...line.rows.values()].flatMap((row) => Object.values(row).flat().map(kindOf))));
  const legend = (name, ...fills) => {
    const entry = document.createElement("span");
    for (const fill of fills) {
      const color = document.createElement("i");
      color.style.background = fill;
      entry.append(color);
    }
    entry.append(name);
    document.getElementById("kinds").append(entry);
  };
  const tones = (kind) => TONES.slice(0, nPipes).map((hues) => hues[TONE[kind]]);
  Object.keys(TONE).filter((kind) => kinds.has(kind)).forEach((kind) => legend(kind, ...tones(kind)));
  Object.keys(COLORS).filter((kind) => kinds.has(kind)).forEach((kind) => legend(kind, COLORS[kind]));
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  done();
})();
