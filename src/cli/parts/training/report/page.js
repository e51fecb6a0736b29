/* Generated from page/src/report by "cargo xtask page". */
(function() {
	// src/dom.ts
	/** Makes an element. An attribute that is `true` is there, one that is `false` or `null` is not. */
	function el(tag, attributes = {}, ...children) {
		const element = document.createElement(tag);
		for (const [name, value] of Object.entries(attributes)) if (value === true) element.setAttribute(name, "");
		else if (value !== false && value !== null && value !== void 0) element.setAttribute(name, String(value));
		element.append(...children.filter((child) => child !== null && child !== void 0));
		return element;
	}
	/** The element of the page with this id. */
	function byId(id) {
		const found = document.getElementById(id);
		if (!found) throw new Error(`the page has no element ${id}`);
		return found;
	}
	// src/timeline/axis.ts
	/** Workers of a schedule, whose times have no unit. */
	var WORKERS = {
		row: (nth) => `worker ${nth}`,
		name: (nth) => `P${nth}`,
		time: short,
		left: 40
	};
	/** Ranks of a run, with times in seconds. */
	function labelsOf(ranks) {
		const row = (nth) => `rank ${ranks[nth]}`;
		return {
			row,
			name: row,
			time: seconds,
			left: 64
		};
	}
	/** A number with four significant digits, or as many as are asked for. */
	function short(x, digits = 4) {
		return String(Number(x.toPrecision(digits)));
	}
	var UNITS$1 = [
		[1, "s"],
		[.001, "ms"],
		[1e-6, "µs"],
		[1e-9, "ns"]
	];
	/** Seconds in the largest unit that gives at least 1. */
	function seconds(x, digits = 4) {
		const [size, unit] = UNITS$1.find(([size]) => Math.abs(x) >= size) ?? [1, "s"];
		return `${short(x / size, digits)} ${unit}`;
	}
	/** Positions on a canvas, where time goes to the right. */
	var Axis = class {
		labels;
		width;
		from;
		to;
		top = 6;
		constructor(labels, width, from, to) {
			this.labels = labels;
			this.width = width;
			this.from = from;
			this.to = to;
		}
		/** Pixels of the canvas, with numbers below the rows. */
		get whole() {
			return this.top + this.rows + 22;
		}
		get left() {
			return this.labels.left;
		}
		/** Pixels per unit of time. */
		get scale() {
			const span = this.to - this.from;
			return span > 0 ? (this.width - this.left - 8) / span : 0;
		}
		x(time) {
			return this.left + (time - this.from) * this.scale;
		}
		time(x) {
			return this.scale > 0 ? this.from + (x - this.left) / this.scale : 0;
		}
	};
	var FAMILY = "Inter, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif";
	var font = (size) => `${size}px ${FAMILY}`;
	var INKS = [
		"ink",
		"soft",
		"idle",
		"line",
		"edge",
		"step",
		"sum",
		"work",
		"red",
		"mark",
		"accent"
	];
	/** The colours of an element's style sheet. */
	function inksOf(element) {
		const style = getComputedStyle(element);
		return Object.fromEntries(INKS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
	}
	/** Clears a canvas and draws the axis. Returns what one draws with: only to the right of the names. */
	function begin(canvas, axis) {
		const ratio = window.devicePixelRatio || 1;
		const [width, height] = [axis.width, axis.whole];
		if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
			canvas.width = Math.round(width * ratio);
			canvas.height = Math.round(height * ratio);
			canvas.style.height = `${height}px`;
		}
		const to = canvas.getContext("2d");
		if (!to) return null;
		const ink = inksOf(canvas);
		to.setTransform(ratio, 0, 0, ratio, 0, 0);
		to.clearRect(0, 0, width, height);
		to.font = font("12");
		to.textBaseline = "middle";
		to.lineWidth = 1;
		return [to, ink];
	}
	/** Draws lines and numbers of times. */
	function drawAxis(to, axis, ink) {
		if (axis.scale <= 0) return;
		const { labels } = axis;
		const digits = Math.min(Math.max(4, Math.ceil(Math.log10(axis.to * axis.scale / 64)) + 1), 15);
		const step = roundAbove(Math.max(64, to.measureText(labels.time(axis.to, digits)).width + 16) / axis.scale);
		const bottom = axis.top + axis.rows;
		to.textAlign = "center";
		for (let n = Math.ceil(axis.from / step); n * step <= axis.to; n += 1) {
			const x = Math.round(axis.x(n * step)) + .5;
			to.strokeStyle = ink.line;
			to.beginPath();
			to.moveTo(x, axis.top - 4);
			to.lineTo(x, bottom + 2);
			to.stroke();
			to.fillStyle = ink.soft;
			const text = labels.time(n * step, digits);
			to.fillText(text, Math.min(x, axis.width - to.measureText(text).width / 2), bottom + 12);
		}
	}
	/** Keeps what follows to the right of the names, until `to.restore()`. */
	function clip(to, axis) {
		to.save();
		to.beginPath();
		to.rect(axis.left, 0, axis.width - axis.left, axis.whole);
		to.clip();
	}
	/** The least of 1, 2 and 5 times a power of ten that is at least `least`. */
	function roundAbove(least) {
		const power = 10 ** Math.floor(Math.log10(least));
		return [
			1,
			2,
			5,
			10
		].map((by) => by * power).find((step) => step >= least) ?? 10 * power;
	}
	// src/timeline/scene.ts
	/** Kinds of work by letter. */
	var KINDS = {
		F: {
			name: "forward",
			tone: 0
		},
		B: {
			name: "backward",
			tone: 3
		},
		I: {
			name: "backward for inputs",
			tone: 2
		},
		W: {
			name: "backward for weights",
			tone: 1
		},
		R: {
			name: "recompute",
			tone: 0
		},
		O: {
			name: "offload",
			tone: 0
		},
		L: {
			name: "reload",
			tone: 1
		},
		K: {
			name: "keep",
			tone: 0
		},
		T: {
			name: "return",
			tone: 1
		},
		X: {
			name: "work beside the training",
			colour: "work"
		},
		U: {
			name: "update",
			colour: "step"
		},
		G: {
			name: "gradient reduction",
			colour: "sum"
		},
		"-": {
			name: "wait",
			colour: "edge"
		}
	};
	/** The cell of an event that is not one. */
	var NOT_A_CELL = 4294967295;
	/** Work in lanes below a row. */
	var BESIDE = "GOLKT";
	var letterOf = (events, i) => String.fromCharCode(events.letter[i]);
	/** Whether an event is a cell within its worker's row. */
	var isInRow = (events, i) => events.cell[i] !== 4294967295 && !BESIDE.includes(letterOf(events, i));
	function sceneOf(events, depth, tones, more = {}) {
		const rows = Array.from({ length: depth }, () => ({
			compute: [],
			waits: [],
			lanes: []
		}));
		const stages = rows.map(() => /* @__PURE__ */ new Set());
		const kinds = /* @__PURE__ */ new Set();
		let end = 0;
		for (let i = 0; i < events.length; i += 1) {
			const worker = events.worker[i];
			const row = rows[worker];
			const letter = letterOf(events, i);
			end = Math.max(end, events.end[i]);
			if (!row || events.end[i] <= events.start[i]) continue;
			if (BESIDE.includes(letter)) intoLane(row, events, i);
			else if (letter === "-") row.waits.push(i);
			else row.compute.push(i);
			kinds.add(letter);
			if (KINDS[letter]?.tone !== void 0) stages[worker]?.add(stageOf(events, i));
		}
		const lanes = Math.max(0, ...rows.map((row) => row.lanes.length));
		const letters = stages.map(lettersOf);
		return {
			events,
			rows,
			tones,
			kinds,
			end,
			letters,
			lanes,
			labels: WORKERS,
			names: /* @__PURE__ */ new Map(),
			isTimed: true,
			...more
		};
	}
	/** A number of a pipe's stage. */
	var stageOf = (events, i) => events.pipe[i] * 65536 + events.stage[i];
	/** In as few lanes as show nothing over another. */
	function intoLane(row, events, i) {
		const start = events.start[i] * (1 + 1e-9);
		const free = row.lanes.find((lane) => {
			const last = lane.at(-1);
			return last === void 0 || events.end[last] <= start;
		});
		if (free) free.push(i);
		else row.lanes.push([i]);
	}
	/** `a` for the first stage of a pipe on a worker, and so on; nothing where each pipe has one. */
	function lettersOf(stages) {
		const sorted = [...stages].sort((a, b) => a - b);
		const pipes = new Set(sorted.map((stage) => Math.floor(stage / 65536)));
		const letters = /* @__PURE__ */ new Map();
		if (sorted.length === pipes.size) return letters;
		const seen = /* @__PURE__ */ new Map();
		for (const stage of sorted) {
			const pipe = Math.floor(stage / 65536);
			const nth = seen.get(pipe) ?? 0;
			seen.set(pipe, nth + 1);
			letters.set(stage, nth < 26 ? String.fromCharCode(97 + nth) : "");
		}
		return letters;
	}
	/** The micro-batches of an event, after the letter of its stage: `3`, `b3`, `0-1`. */
	function labelOf(scene, i) {
		const { events } = scene;
		if (KINDS[letterOf(events, i)]?.tone === void 0) return "";
		const first = events.unit[i];
		const n = events.units[i];
		const span = n > 1 ? `${first}-${first + n - 1}` : String(first);
		return (scene.letters[events.worker[i]]?.get(stageOf(events, i)) ?? "") + span;
	}
	/** Positions of a scene: time goes to the right, workers go down. */
	var Layout = class extends Axis {
		scene;
		height;
		lane;
		gap;
		constructor(scene, width, from, to, most) {
			super(scene.labels, width, from, to);
			this.scene = scene;
			const depth = Math.max(1, scene.rows.length);
			this.height = Math.min(Math.max(most / depth, depth > 256 ? 1 : 3), 28);
			this.gap = this.height > 10 ? 4 : Number(depth <= 256);
			this.lane = scene.lanes === 0 ? 0 : Math.max(this.height / Math.max(scene.lanes, 4), 2);
		}
		get rows() {
			return this.scene.rows.length * this.pitch;
		}
		get pitch() {
			return this.height + this.lane * this.scene.lanes + this.gap;
		}
		y(worker) {
			return this.top + worker * this.pitch;
		}
		worker(y) {
			return Math.floor((y - this.top) / this.pitch);
		}
	};
	/** Pixels beside an event at which one still points at it. */
	var NEAR = 1.5;
	/** The event at a place: in a row, in a lane below it, or else a wait. */
	function eventAt(layout, x, y) {
		const { scene } = layout;
		const worker = layout.worker(y);
		const row = scene.rows[worker];
		if (!row || x < layout.left || layout.scale <= 0) return null;
		const [time, slack] = [layout.time(x), NEAR / layout.scale];
		const below = y - layout.y(worker) - layout.height;
		if (below > 0 && scene.lanes > 0) return nearest(scene, row.lanes[Math.floor((below - 1) / layout.lane)] ?? [], time, slack);
		return nearest(scene, row.compute, time, slack) ?? nearest(scene, row.waits, time, 0);
	}
	function nearest(scene, row, time, slack) {
		const { start, end } = scene.events;
		const place = firstAfter(scene, row, time);
		const [next, before] = [row[place], row[place - 1]];
		if (next !== void 0 && start[next] <= time + slack) return next;
		return before !== void 0 && end[before] >= time - slack ? before : null;
	}
	/** The place in a row of the first event that ends after a time. */
	function firstAfter(scene, row, time) {
		let [low, high] = [0, row.length];
		while (low < high) {
			const middle = low + high >> 1;
			if (scene.events.end[row[middle]] <= time) low = middle + 1;
			else high = middle;
		}
		return low;
	}
	/** The event of a cell of a worker. */
	function eventOf(scene, worker, cell) {
		const { events, rows } = scene;
		const row = rows[worker];
		return (row ? [...row.compute, ...row.lanes.flat()] : []).find((i) => events.cell[i] === cell && cell !== 4294967295) ?? null;
	}
	/** An event in words, with the other op of a pair. */
	function describe(scene, i) {
		const { events, labels } = scene;
		const [start, end] = [events.start[i], events.end[i]];
		const pair = [
			[i],
			[i, i + 1],
			[i - 1, i]
		][events.part[i]] ?? [i];
		const cell = events.cell[i] === 4294967295 ? "" : `, cell ${events.cell[i]}`;
		const parts = [pair.map((op) => workOf(scene, op)).join(" and "), labels.row(events.worker[i]) + cell];
		if (scene.isTimed) parts.push(`start ${labels.time(start)}`, `duration ${labels.time(end - start)}`);
		if (events.critical[i] === 1) parts.push("on the critical path");
		return parts.join(" · ");
	}
	function workOf(scene, i) {
		const { events } = scene;
		const [first, n] = [events.unit[i], events.units[i]];
		const { name = "work", tone } = KINDS[letterOf(events, i)] ?? {};
		if (tone === void 0) return scene.names.get(i) ?? `${name} of bucket ${first}`;
		return `${name} of ${n > 1 ? `micro-batches ${first} to ${first + n - 1}` : `micro-batch ${first}`}, stage ${events.stage[i]}, pipe ${events.pipe[i]}`;
	}
	// src/timeline/legend.ts
	/** The legend of timelines: the kinds of work in them, in the colours of all pipes. */
	function legendOf(scenes) {
		const used = new Set(scenes.flatMap(({ kinds }) => [...kinds]));
		const all = scenes.flatMap(({ tones }) => Object.values(tones));
		const hues = [...new Map(all.map((tones) => [tones[0], tones])).values()];
		const items = Object.entries(KINDS).filter(([letter]) => used.has(letter)).map(([, { name, tone, colour }]) => {
			return el("li", {}, ...(tone === void 0 ? [`var(--${colour})`] : hues.map((hue) => hue[tone])).map((fill) => {
				const swatch = el("span", {
					class: "swatch",
					"aria-hidden": true
				});
				swatch.style.background = fill;
				return swatch;
			}), name);
		});
		const ways = hues.length === 2 ? "blue goes down the workers, orange up" : hues.length > 2 && hues.length % 2 === 0 ? "the first half of the colours go down the workers, the others up" : "";
		return el("ul", { class: "legend kinds" }, ...items, ways ? el("li", {}, ways) : null);
	}
	// src/protocol.ts
	/** Room for events. */
	function noEvents(length) {
		const whole = () => new Uint16Array(length);
		return {
			length,
			start: new Float64Array(length),
			end: new Float64Array(length),
			cell: new Uint32Array(length),
			unit: new Uint32Array(length),
			units: whole(),
			stage: whole(),
			pipe: whole(),
			worker: whole(),
			letter: new Uint8Array(length),
			part: new Uint8Array(length),
			critical: new Uint8Array(length)
		};
	}
	// src/timeline/traced.ts
	/** A run's work as a scene: what traces and reports draw. */
	/** Letters of what is not an op. */
	var LETTERS = {
		reduction: "G",
		update: "U",
		wait: "-"
	};
	/** The scene of these ranks, a row for each. */
	function tracedScene(slices, ranks, tones) {
		const rows = new Map(ranks.map((rank, nth) => [rank, nth]));
		const sorted = slices.filter(({ rank }) => rows.has(rank)).sort((a, b) => a.start - b.start);
		const events = noEvents(sorted.reduce((n, { ops }) => n + Math.max(1, ops.length), 0));
		const names = /* @__PURE__ */ new Map();
		const cells = ranks.map(() => 0);
		let i = 0;
		for (const { rank, start, took, kind, name, ops, isCritical } of sorted) {
			const row = rows.get(rank) ?? 0;
			const bucket = /\d+$/.exec(name)?.[0] ?? "0";
			const all = ops.length > 0 ? ops : [{
				kind: LETTERS[kind] ?? "?",
				pipe: 0,
				stage: 0,
				micro_batches: bucket
			}];
			const cell = ops.length > 0 ? cells[row] : NOT_A_CELL;
			if (ops.length > 0) cells[row] = cell + 1;
			all.forEach((op, nth) => {
				const [first = 0, last = first] = op.micro_batches.split("-").map(Number);
				events.start[i] = start;
				events.end[i] = start + took;
				events.cell[i] = cell;
				events.unit[i] = first;
				events.units[i] = last - first + 1;
				events.stage[i] = op.stage;
				events.pipe[i] = op.pipe;
				events.worker[i] = row;
				events.letter[i] = op.kind.charCodeAt(0);
				events.part[i] = all.length > 1 ? nth + 1 : 0;
				events.critical[i] = Number(isCritical ?? false);
				if (KINDS[op.kind]?.tone === void 0 && op.kind !== "G" && op.kind !== "U") names.set(i, name);
				i += 1;
			});
		}
		return sceneOf(events, ranks.length, tones, {
			labels: labelsOf(ranks),
			names
		});
	}
	// src/timeline/canvas.ts
	/** Pixels that the pointer moves before a press becomes a drag. */
	var SLACK = 4;
	/** How much narrower than the whole a view may be. */
	var NARROWEST = 1e-6;
	/** The factor of a key, and the share of the view by which arrow keys move it. */
	var ZOOM$1 = 1.5;
	var MOVE = .2;
	var TimeCanvas = class {
		onWindow;
		canvas;
		element = document.createElement("div");
		tip = document.createElement("div");
		axis = null;
		press = null;
		longest = 0;
		window = null;
		queued = false;
		/** `onWindow` hears to which times the view was zoomed or moved, and shows them. */
		constructor(onWindow, canvas = document.createElement("canvas")) {
			this.onWindow = onWindow;
			this.canvas = canvas;
			this.element.className = "timeline";
			this.tip.className = "tip";
			this.tip.hidden = true;
			canvas.replaceWith(this.element);
			this.element.append(canvas, this.tip);
			canvas.tabIndex = 0;
			canvas.setAttribute("role", "application");
			this.listen();
			new ResizeObserver(() => this.paint()).observe(this.element);
		}
		/** Draws up to this time, so that several canvases have one scale. */
		set upTo(longest) {
			this.longest = longest;
			this.paint();
		}
		/** Shows these times; `null` shows all. */
		zoom(window) {
			this.window = window;
			this.paint();
		}
		/** Draws soon, once for all changes until then. */
		paint() {
			if (this.queued) return;
			this.queued = true;
			requestAnimationFrame(() => {
				this.queued = false;
				this.paintNow();
			});
		}
		paintNow() {
			const width = this.element.clientWidth;
			if (width === 0) return;
			this.axis = this.draw(width, ...this.view);
		}
		/** The times that are shown, or will be in the next frame. */
		get view() {
			return this.window ?? [0, this.whole];
		}
		get whole() {
			return Math.max(this.longest, this.end);
		}
		listen() {
			const { canvas } = this;
			canvas.addEventListener("pointerdown", (event) => this.down(event));
			canvas.addEventListener("pointermove", (event) => this.moved(event));
			canvas.addEventListener("pointerup", (event) => this.up(event));
			canvas.addEventListener("pointercancel", () => {
				this.press = null;
				this.release(null, 0);
			});
			canvas.addEventListener("pointerleave", () => this.tell(this.pointAt(-1, -1), 0, 0));
			canvas.addEventListener("dblclick", () => this.look(null));
			canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
			canvas.addEventListener("keydown", (event) => {
				if (event.ctrlKey || event.metaKey || !this.axis || !this.key(event)) return;
				event.preventDefault();
			});
		}
		down(event) {
			if (!this.axis || event.button !== 0) return;
			const { from, to } = this.axis;
			this.press = {
				x: event.offsetX,
				from,
				to,
				isDrag: false
			};
			this.canvas.setPointerCapture(event.pointerId);
		}
		moved({ offsetX: x, offsetY: y }) {
			const { press } = this;
			if (!press) {
				this.tell(this.pointAt(x, y), x, y);
				return;
			}
			if (!press.isDrag && Math.abs(x - press.x) < SLACK) return;
			press.isDrag = true;
			this.drag(press, x, y);
		}
		up(event) {
			const { press } = this;
			this.press = null;
			if (press) this.release(press, event.offsetX);
		}
		/** Moves the view with the pointer. */
		drag(press, x, _y) {
			if (!this.axis) return;
			this.tell(null, x, 0);
			const by = (press.x - x) / this.axis.scale;
			this.look([press.from + by, press.to + by]);
		}
		/** Ends a press, with `null` if it was broken off. */
		release(_press, _x) {}
		/** Follows a key. Returns false if it means nothing here. */
		key({ key }) {
			const act = {
				"+": () => this.zoomMiddle(1 / ZOOM$1),
				"=": () => this.zoomMiddle(1 / ZOOM$1),
				"-": () => this.zoomMiddle(ZOOM$1),
				0: () => this.look(null),
				Escape: () => this.look(null),
				ArrowLeft: () => this.move(-.2),
				ArrowRight: () => this.move(MOVE)
			}[key];
			act?.();
			return act !== void 0;
		}
		/** Shows words beside a place; `null` hides them. */
		tell(text, x, y) {
			this.tip.hidden = text === null;
			if (text === null) return;
			this.tip.textContent = text;
			const room = this.element.clientWidth - this.tip.offsetWidth - 4;
			this.tip.style.left = `${Math.max(4, Math.min(x + 12, room))}px`;
			this.tip.style.top = `${y + 18}px`;
		}
		wheel(event) {
			if (!this.axis) return;
			const { from, to, scale } = this.axis;
			if (event.ctrlKey || event.metaKey) {
				event.preventDefault();
				this.zoomBy(Math.exp(event.deltaY / 300), this.axis.time(event.offsetX));
			} else if (this.window && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) {
				event.preventDefault();
				const by = (event.deltaX || event.deltaY) / scale;
				this.look([from + by, to + by]);
			}
		}
		/** Zooms around a time. */
		zoomBy(by, around) {
			const [from, to] = this.view;
			this.look([around - (around - from) * by, around + (to - around) * by]);
		}
		/** Zooms around the middle. */
		zoomMiddle(by) {
			const [from, to] = this.view;
			this.zoomBy(by, (from + to) / 2);
		}
		/** Moves the view by a share of its width. */
		move(share) {
			const [from, to] = this.view;
			this.look([from + share * (to - from), to + share * (to - from)]);
		}
		/** Asks for a view, within the whole; `null` is all of it. */
		look(window) {
			const { whole } = this;
			const [from, to] = window ?? [0, whole];
			const span = Math.min(Math.max(to - from, whole * NARROWEST), whole);
			const start = Math.min(Math.max(from, 0), whole - span);
			this.onWindow(start, start + span);
		}
	};
	// src/timeline/draw.ts
	/** Events that together are narrower than this are drawn as one. */
	var LEAST = 1.5;
	var LEAST_LABEL = 7;
	/** Pixels of a wait, in the middle of its row. */
	var WAIT = 4;
	function draw(canvas, layout, marks) {
		const begun = begin(canvas, layout);
		if (!begun) return;
		const [to, ink] = begun;
		drawGround(to, layout, ink);
		drawAxis(to, layout, ink);
		clip(to, layout);
		const boxes = boxesOf(layout);
		drawBoxes(to, layout.scene, boxes, ink, marks);
		drawLabels(to, layout.scene, boxes, ink, marks);
		drawMarks(to, layout, boxes, ink, marks);
		to.restore();
	}
	function drawGround(to, layout, ink) {
		const { scene } = layout;
		const [from, until] = [layout.x(Math.max(0, layout.from)), layout.x(Math.min(scene.end, layout.to))];
		to.textAlign = "right";
		for (let worker = 0; worker < scene.rows.length; worker += 1) {
			to.fillStyle = ink.idle;
			to.fillRect(from, layout.y(worker), until - from, layout.height);
			if (layout.pitch > 12 || worker % Math.ceil(13 / layout.pitch) === 0) {
				to.fillStyle = ink.soft;
				to.fillText(scene.labels.name(worker), layout.left - 8, layout.y(worker) + layout.height / 2);
			}
		}
	}
	/** What is in sight, with neighbours that are too narrow to be told apart in one box. */
	function boxesOf(layout) {
		const { scene } = layout;
		const boxes = [];
		scene.rows.forEach((row, worker) => {
			const y = layout.y(worker);
			const bar = Math.min(WAIT, layout.height);
			rowBoxes(layout, row.waits, y + (layout.height - bar) / 2, bar, boxes);
			rowBoxes(layout, row.compute, y, layout.height, boxes);
			row.lanes.forEach((lane, nth) => {
				rowBoxes(layout, lane, y + layout.height + 1 + nth * layout.lane, Math.max(1, layout.lane - 1), boxes);
			});
		});
		return boxes;
	}
	function rowBoxes(layout, row, y, height, into) {
		const { events } = layout.scene;
		let last = null;
		for (let at = firstAfter(layout.scene, row, layout.from); at < row.length; at += 1) {
			const i = row[at];
			const start = events.start[i];
			if (start >= layout.to) break;
			const [x, end] = [layout.x(start), layout.x(events.end[i])];
			const part = events.part[i];
			const isCritical = events.critical[i] === 1;
			if (last && part === 0 && end - last.x < LEAST) {
				last.width = end - last.x;
				last.isCritical ||= isCritical;
				continue;
			}
			if (part === 0) last = {
				i,
				x,
				y,
				width: end - x,
				height,
				isCritical
			};
			else {
				const half = height / 2;
				last = {
					i,
					x,
					y: part === 1 ? y : y + half,
					width: end - x,
					height: half,
					isCritical
				};
			}
			into.push(last);
		}
	}
	function colourOf(scene, i, ink) {
		const { tone, colour = "sum" } = KINDS[letterOf(scene.events, i)] ?? {};
		const tones = scene.tones[scene.events.pipe[i]] ?? scene.tones[0];
		return (tone === void 0 ? void 0 : tones?.[tone]) ?? ink[colour];
	}
	var isLater = (events, i, now) => now !== null && events.start[i] >= now;
	function drawBoxes(to, scene, boxes, ink, marks) {
		const groups = /* @__PURE__ */ new Map();
		for (const box of boxes) {
			const key = (isLater(scene.events, box.i, marks.now) ? "faint " : "") + colourOf(scene, box.i, ink);
			const group = groups.get(key);
			if (group) group.push(box);
			else groups.set(key, [box]);
		}
		for (const [key, group] of groups) {
			to.globalAlpha = key.startsWith("faint ") ? .16 : 1;
			to.fillStyle = key.replace("faint ", "");
			group.forEach((box) => drawBox(to, box));
		}
		to.globalAlpha = 1;
	}
	/** One at a time: a path of many thousands takes seconds to fill. */
	function drawBox(to, { x, y, width, height }) {
		const isWide = width >= 5 && height >= 3;
		if (isWide && height > 8) {
			to.beginPath();
			to.roundRect(x, y, width - 1, height, Math.min(height / 8, 2.5));
			to.fill();
		} else to.fillRect(x, y, isWide ? width - 1 : width, height);
	}
	function drawLabels(to, scene, boxes, ink, marks) {
		to.textAlign = "center";
		for (const box of boxes) {
			if (box.width < 8 || box.height < 10) continue;
			const label = labelOf(scene, box.i);
			if (label === "") continue;
			const size = Math.min(box.height * .6, 13, (box.width - 2) / (label.length * .6));
			if (size <= LEAST_LABEL) continue;
			const isPale = (KINDS[letterOf(scene.events, box.i)]?.tone ?? 0) < 2;
			to.globalAlpha = isLater(scene.events, box.i, marks.now) ? .35 : 1;
			to.fillStyle = isPale ? "#1c2733" : "#ffffff";
			if (to.globalAlpha < 1) to.fillStyle = ink.soft;
			to.font = font(size.toFixed(1));
			to.fillText(label, box.x + (box.width - 1) / 2, box.y + box.height / 2 + .5);
		}
		to.globalAlpha = 1;
	}
	function drawMarks(to, layout, boxes, ink, marks) {
		const { events } = layout.scene;
		const outline = (box, colour, line) => {
			to.strokeStyle = colour;
			to.lineWidth = line;
			to.strokeRect(box.x - .5, box.y - .5, Math.max(box.width, 2), box.height + 1);
		};
		for (const box of boxes) {
			if (marks.critical && box.isCritical) outline(box, ink.mark, 1.5);
			if (marks.now !== null && events.start[box.i] < marks.now && events.end[box.i] >= marks.now && layout.height > 8) outline(box, ink.ink, 1.5);
		}
		const outlined = [
			[
				marks.hovered,
				ink.ink,
				1.5
			],
			[
				marks.selected,
				ink.ink,
				2.5
			],
			...marks.refused.map((i) => [
				i,
				ink.red,
				3
			])
		];
		for (const [i, colour, line] of outlined) {
			const box = i === null ? void 0 : boxes.find((box) => box.i === i);
			if (box) outline(box, colour, line);
		}
		if (marks.now !== null) vertical(to, layout, layout.x(marks.now), ink.ink);
		if (marks.drop) {
			const x = layout.x(marks.drop.time);
			to.fillStyle = ink.mark;
			to.fillRect(x - 2, layout.y(marks.drop.worker) - 2, 3, layout.height + 4);
		}
	}
	function vertical(to, layout, x, colour) {
		to.strokeStyle = colour;
		to.lineWidth = 1.5;
		to.beginPath();
		to.moveTo(x, layout.top - 4);
		to.lineTo(x, layout.top + layout.rows + 2);
		to.stroke();
	}
	// src/timeline/view.ts
	/** The cell at fault, and the cells at which workers wait for each other. */
	function refusedCells(refusal) {
		if (!refusal || refusal.worker === null || refusal.cell === null) return [];
		const waits = (refusal.reason ?? "").matchAll(/worker (\d+) waits at cell (\d+)/g);
		return [[refusal.worker, refusal.cell], ...[...waits].map(([, worker, cell]) => [Number(worker), Number(cell)])];
	}
	var Timeline = class extends TimeCanvas {
		hooks;
		flag = document.createElement("div");
		said = document.createElement("div");
		scene = null;
		/** The event at which the pointer was pressed. */
		pressed = null;
		/** Most pixels of all rows together. */
		rows = 560;
		/** Whether arrow keys move the view instead of selecting cells. */
		arrowsMove = false;
		marks = {
			now: null,
			hovered: null,
			selected: null,
			refused: [],
			critical: false,
			drop: null
		};
		constructor(hooks, canvas) {
			super((from, to) => hooks.window(from, to), canvas);
			this.hooks = hooks;
			this.flag.className = "flag";
			this.flag.hidden = true;
			this.flag.setAttribute("aria-hidden", "true");
			this.said.className = "unseen";
			this.said.setAttribute("aria-live", "polite");
			this.canvas.setAttribute("aria-roledescription", "timeline");
			this.element.append(this.flag, this.said);
		}
		/** Shows a scene; `name` is what a screen reader says of it. */
		show(scene, name, refusal = null) {
			this.scene = scene;
			this.marks.hovered = this.marks.selected = this.marks.drop = null;
			this.marks.refused = refusedCells(refusal).flatMap(([worker, cell]) => eventOf(scene, worker, cell) ?? []);
			this.flag.textContent = refusal?.reason?.split("; ")[0] ?? "";
			const arrows = this.arrowsMove ? "Arrow keys move the view" : "Arrow keys select a cell";
			const edits = this.hooks.move ? ", Alt with an arrow key moves it in its row" : "";
			this.canvas.setAttribute("aria-label", `${name}. ${arrows}${edits}, plus and minus zoom.`);
			this.paintNow();
		}
		/** The end of the scene, 0 without one. */
		get end() {
			return this.scene?.end ?? 0;
		}
		/** Times at which something begins or ends. */
		*times() {
			if (!this.scene) return;
			yield* this.scene.events.start;
			yield* this.scene.events.end;
		}
		draw(width, from, to) {
			if (!this.scene) return null;
			const layout = new Layout(this.scene, width, from, to, this.rows);
			draw(this.canvas, layout, this.marks);
			this.placeFlag(this.scene, layout);
			return layout;
		}
		/** Puts the reason of a refusal below its cell. */
		placeFlag({ events }, layout) {
			const [at] = this.marks.refused;
			this.flag.hidden = at === void 0 || this.flag.textContent === "";
			if (at === void 0 || this.flag.hidden) return;
			const x = layout.x(events.start[at]);
			const width = Math.min(360, layout.width - 8);
			const left = Math.max(4, Math.min(x - 14, layout.width - width - 4));
			this.flag.style.width = `${width}px`;
			this.flag.style.left = `${left}px`;
			const worker = events.worker[at];
			const marked = this.marks.refused.map((i) => events.worker[i]);
			const below = Math.max(worker, ...marked.filter((other) => other - worker < 4));
			this.flag.style.top = `${layout.y(below) + layout.height + 8}px`;
			this.flag.style.setProperty("--tail", `${Math.max(10, x - left + 6)}px`);
		}
		pointAt(x, y) {
			const event = this.axis && eventAt(this.axis, x, y);
			if (this.marks.hovered !== event) {
				this.marks.hovered = event;
				this.paint();
			}
			return event === null || !this.scene ? null : describe(this.scene, event);
		}
		down(event) {
			super.down(event);
			this.pressed = this.axis && eventAt(this.axis, event.offsetX, event.offsetY);
		}
		/** The cell under the press, if it can be moved. */
		get held() {
			const { scene, pressed } = this;
			return scene && pressed !== null && this.hooks.move && isInRow(scene.events, pressed) ? pressed : null;
		}
		drag(press, x, y) {
			const { scene, axis, held } = this;
			if (!scene || !axis || held === null) {
				super.drag(press, x, y);
				return;
			}
			const worker = scene.events.worker[held];
			const before = this.dropBefore(scene, worker, axis.time(x));
			this.marks.selected = this.marks.hovered = held;
			this.marks.drop = {
				worker,
				time: before.time
			};
			this.tell(describe(scene, held), x, y);
			this.paint();
		}
		release(press, x) {
			const { scene, axis, held } = this;
			this.marks.drop = null;
			if (press?.isDrag && scene && axis && held !== null) {
				const worker = scene.events.worker[held];
				const from = scene.events.cell[held];
				const { cell } = this.dropBefore(scene, worker, axis.time(x));
				this.hooks.move?.(worker, from, cell > from ? cell - 1 : cell);
			} else if (press && !press.isDrag) this.select(this.pressed);
			this.paint();
		}
		/** The cell before which one drops at a time, and where the mark stands. */
		dropBefore({ events, rows }, worker, time) {
			const cells = (rows[worker]?.compute ?? []).filter((i) => isInRow(events, i));
			const next = cells.find((i) => (events.start[i] + events.end[i]) / 2 > time);
			if (next !== void 0) return {
				cell: events.cell[next],
				time: events.start[next]
			};
			const last = cells.at(-1);
			return last === void 0 ? {
				cell: 0,
				time: 0
			} : {
				cell: events.cell[last] + 1,
				time: events.end[last]
			};
		}
		select(event) {
			this.marks.selected = event;
			if (event !== null && this.scene) this.said.textContent = describe(this.scene, event);
			this.paint();
		}
		key(event) {
			const { scene } = this;
			const selected = this.marks.selected;
			if (event.key === "0" || event.key === "Escape") this.select(null);
			const by = {
				ArrowLeft: -1,
				ArrowRight: 1
			}[event.key];
			const down = {
				ArrowUp: -1,
				ArrowDown: 1
			}[event.key];
			if (!scene || this.arrowsMove || !by && !down) return super.key(event);
			const { events, rows } = scene;
			const worker = selected === null ? 0 : events.worker[selected];
			const row = rows[worker]?.compute ?? [];
			const next = rows[worker + (down ?? 0)]?.compute;
			if (by && event.altKey && selected !== null) {
				const from = events.cell[selected];
				if (isInRow(events, selected)) this.hooks.move?.(worker, from, Math.max(0, from + by));
			} else if (by) {
				const place = selected === null ? -1 : row.indexOf(selected);
				this.select(row[Math.min(Math.max(place + by, 0), row.length - 1)] ?? null);
			} else if (next) {
				const time = selected === null ? 0 : events.start[selected];
				this.select(next.find((i) => events.end[i] > time) ?? next.at(-1) ?? null);
			} else return false;
			return true;
		}
	};
	// src/report/memory.ts
	/** Curves of the activation memory of ranks: planned ones dashed, measured ones solid. */
	/** Pixels of a rank, and of the gap below its curves. */
	var ROW = 46;
	var GAP = 4;
	var UNITS = [
		[2 ** 30, "GiB"],
		[2 ** 20, "MiB"],
		[1024, "KiB"]
	];
	function bytes(n) {
		const [size, unit] = UNITS.find(([size]) => n >= size) ?? [1, "B"];
		return `${Number((n / size).toPrecision(3))} ${unit}`;
	}
	var MemoryAxis = class extends Axis {
		rows;
		constructor(labels, width, from, to, rows) {
			super(labels, width, from, to);
			this.rows = rows;
		}
	};
	var Memory = class extends TimeCanvas {
		curves;
		labels;
		/** The peak of each rank, and of all. */
		peaks;
		peak;
		end = 0;
		constructor(curves, labels, onWindow, canvas) {
			super(onWindow, canvas);
			this.curves = curves;
			this.labels = labels;
			const largest = (numbers) => numbers.reduce((most, n) => Math.max(most, n), 0);
			this.peaks = curves.map((all) => largest(all.flatMap(({ steps }) => steps.map(([, n]) => n))));
			this.peak = largest(this.peaks) || 1;
			canvas.setAttribute("aria-label", "Activation memory over time. Arrow keys move the view, plus and minus zoom.");
		}
		show() {
			this.paintNow();
		}
		draw(width, from, to) {
			const axis = new MemoryAxis(this.labels, width, from, to, this.curves.length * ROW);
			const begun = begin(this.canvas, axis);
			if (!begun) return null;
			const [pen, ink] = begun;
			pen.textAlign = "right";
			pen.fillStyle = ink.soft;
			this.peaks.forEach((peak, row) => {
				const middle = axis.top + (row + .5) * ROW;
				pen.fillText(this.labels.name(row), axis.left - 8, middle - 7);
				pen.font = font("11");
				pen.fillText(bytes(peak), axis.left - 8, middle + 7);
				pen.font = font("12");
			});
			drawAxis(pen, axis, ink);
			clip(pen, axis);
			this.curves.forEach((curves, row) => {
				for (const { name, steps } of curves) {
					pen.strokeStyle = name === "planned" ? ink.soft : ink.accent;
					pen.setLineDash(name === "planned" ? [4, 3] : []);
					this.line(pen, axis, steps, axis.top + (row + 1) * ROW - GAP);
				}
			});
			pen.restore();
			return axis;
		}
		line(pen, axis, steps, base) {
			const x = (time) => Math.min(Math.max(axis.x(time), axis.left - GAP), axis.width + GAP);
			const y = (n) => base - n / this.peak * 38;
			let last = 0;
			pen.beginPath();
			for (const [time, n] of steps) {
				pen.lineTo(x(time), y(last));
				pen.lineTo(x(time), y(n));
				last = n;
			}
			pen.stroke();
		}
		pointAt(x, y) {
			const row = this.axis ? Math.floor((y - this.axis.top) / ROW) : -1;
			const curves = this.curves[row];
			if (!this.axis || !curves || x < this.axis.left) return null;
			const time = this.axis.time(x);
			const held = ({ name, steps }) => `${name} ${bytes(steps.findLast(([at]) => at <= time)?.[1] ?? 0)}`;
			return [`${this.labels.name(row)} at ${this.labels.time(time)}`, ...curves.map(held)].join(" · ");
		}
	};
	// src/report/report.ts
	/** The factor of the buttons. */
	var ZOOM = 2;
	var data = JSON.parse(byId("timelines").textContent ?? "{}");
	var scenes = Object.entries(data).map(([name, lanes]) => [name, tracedScene(slicesOf(lanes), lanes.ranks, lanes.tones)]);
	var whole = Math.max(0, ...scenes.map(([, { end }]) => end));
	var views = [];
	var show = (from, to) => views.forEach((view) => view.zoom([from, to]));
	function slicesOf({ slices, critical }) {
		const isCritical = new Set(critical);
		return slices.map(([rank, , start, took, kind, name, ops], nth) => ({
			rank,
			start,
			took,
			kind,
			name,
			isCritical: isCritical.has(nth),
			ops: ops.map(([kind, pipe, stage, micro_batches]) => ({
				kind,
				pipe,
				stage,
				micro_batches
			}))
		}));
	}
	function drawTimelines() {
		for (const [name, scene] of scenes) {
			const timeline = new Timeline({ window: show }, byId(name));
			timeline.rows = Infinity;
			timeline.arrowsMove = true;
			timeline.marks.critical = true;
			timeline.upTo = whole;
			timeline.show(scene, `The timeline ${name}`);
			views.push(timeline);
		}
		byId("kinds").replaceWith(legendOf(scenes.map(([, scene]) => scene)));
	}
	function drawMemory(canvas) {
		const curves = /* @__PURE__ */ new Map();
		for (const [name, { memory }] of Object.entries(data)) memory.forEach(([rank, steps]) => curves.set(rank, [...curves.get(rank) ?? [], {
			name,
			steps
		}]));
		const ranks = [...curves.keys()].sort((a, b) => a - b);
		const memory = new Memory(ranks.map((rank) => curves.get(rank) ?? []), labelsOf(ranks), show, canvas);
		memory.upTo = whole;
		memory.show();
		views.push(memory);
	}
	if (scenes.length > 0) {
		drawTimelines();
		const memory = document.getElementById("memory");
		if (memory) drawMemory(memory);
		byId("in").addEventListener("click", () => views[0]?.zoomMiddle(1 / ZOOM));
		byId("out").addEventListener("click", () => views[0]?.zoomMiddle(ZOOM));
		byId("fit").addEventListener("click", () => show(0, whole));
		window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => views.forEach((view) => view.paint()));
	}
	document.documentElement.dataset["drawn"] = "true";
})();
