// The history of a run, and its state at any time of it. Nothing here touches the page.

// Symbols and names of the states of a process.
export const STATES = {
  serving: ["●", "works"], dead: ["✕", "dead"], suspected: ["?", "suspected"], frozen: ["‖", "frozen"],
  copying: ["↻", "copies rows"], cut: ["⊘", "no network"], slow: ["∼", "slow"], left: ["–", "left"],
  waiting: ["…", "not started"],
};

// Symbols of events, and sentences that explain them.
export const KINDS = {
  __proto__: null, // an edited record may contain any name
  fault: ["⚡", "A failure is injected."],
  detected: ["✕", "The process has ended; a replacement starts."],
  suspected: ["?", "The process sent no heartbeat in time, so it counts as failed."],
  dropped: ["−", "The replicas on other servers continue without it."],
  lost: ["!", "Some updates have no copy any more."],
  restored: ["↻", "The shards start with the rows of a checkpoint."],
  replay: ["↻", "The shards are read from the update log again."],
  rollback: ["↶", "All processes return to the last checkpoint and redo the later clocks."],
  serving: ["●", "The process works again, or the job continues without it."],
  resumed: ["▶", "A frozen process continues."],
  left: ["–", "The process is not replaced."],
  scaled: ["±", "The number of workers changes."],
  checkpoint: ["▪", "Everything up to this clock is on disk."],
  complete: ["■", "Every worker has finished its last clock."],
};

const QUIET = new Set(["checkpoint", "cut", "placed", "joining", "joined", "moved", "copying", "interval", "attached"]);

// quiet reports whether an event is usually not worth a line.
export const quiet = (e) => QUIET.has(e.kind);

const MAX_SLOTS = 4096; // of a job

const UNITS = { h: 3600, m: 60, s: 1, ms: 0.001, "µs": 1e-6, us: 1e-6, ns: 1e-9 };

// seconds parses a duration such as 1m2.5s.
export function seconds(text) {
  let sum = 0;
  for (const [, n, unit] of text.matchAll(/([\d.]+)(h|ms|m|s|µs|us|ns)/g)) sum += Number(n) * UNITS[unit];
  return sum;
}

// faultOf parses the text of a fault event; null: it is none.
export function faultOf(text) {
  const m = /^fault: ([a-z]+)(?:\*[\d.]+)?:([^@]+)@[^+]*(?:\+(.*))?$/.exec(text);
  return m && { kind: m[1], target: m[2], length: m[3] ? seconds(m[3]) : 0 };
}

const FAULT_STATES = { __proto__: null, kill: "dead", term: "dead", freeze: "frozen", cut: "cut", slow: "slow", jitter: "slow" };

const EVENT_STATES = {
  __proto__: null,
  detected: "dead", suspected: "suspected", left: "left", drained: "left", resumed: "serving", dropped: "dead",
};

// order sorts processes: the coordinator, the log, servers, workers.
function order(a, b) {
  const [x, i] = a.split(":"), [y, j] = b.split(":");
  const rank = (r) => ["coordinator", "log", "server", "worker"].indexOf(r);
  return rank(x) - rank(y) || Number(i ?? 0) - Number(j ?? 0);
}

// last returns the index of the last item whose time is at most t, or -1.
export function last(items, t) {
  let low = 0, high = items.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (items[mid].seconds <= t) low = mid + 1; else high = mid;
  }
  return low - 1;
}

export class Model {
  constructor() { this.reset({}); }

  reset(job) {
    this.job = job;
    this.events = [];
    this.series = { __proto__: null }; // by column: a list of {seconds, value}
    this.clocks = []; // {seconds, clock, ahead}
    this.lanes = new Map(); // by process: a list of {from, state}
    this.copies = new Map(); // by process: number of shards that it copies
    this.now = null;
    this.end = null;
    this.columns = [];
    const first = ["coordinator"];
    for (let i = 0; i < (job.servers ?? 0); i++) first.push(`server:${i}`);
    for (let i = 0; i < (job.workers ?? 0); i++) first.push(`worker:${i}`);
    for (const target of first) this.appear(target, 0);
  }

  // appear records that a process existed at a time, whatever later events said of it.
  appear(target, at) {
    const lane = this.lane(target);
    if (lane[0].state !== "waiting") return;
    if (at === 0) lane[0].state = "serving";
    else if (lane.length === 1 || lane[1].from > at) lane.splice(1, 0, { from: at, state: "serving" });
  }

  lane(target) {
    if (!this.lanes.has(target)) {
      this.lanes.set(target, [{ from: 0, state: "waiting" }]);
      this.sorted = false;
    }
    return this.lanes.get(target);
  }

  // ordered returns the lanes in the order in which they are shown.
  ordered() {
    if (!this.sorted) this.lanes = new Map([...this.lanes].sort(([a], [b]) => order(a, b)));
    this.sorted = true;
    return this.lanes;
  }

  addEvents(text) {
    for (const line of text.split("\n")) {
      let e;
      try { e = JSON.parse(line); } catch { continue; } // a full disk may have truncated it
      if (typeof e?.kind !== "string" || typeof e.text !== "string" || !Number.isFinite(e.seconds)) continue;
      this.events.push(e);
      this.follow(e);
    }
  }

  // follow updates the lanes after an event.
  follow(e) {
    if (e.kind === "fault") {
      const f = faultOf(e.text);
      if (!f || !FAULT_STATES[f.kind]) return;
      for (const target of this.lanes.keys()) {
        if (target === f.target || f.target.endsWith(":*") && target.startsWith(f.target.slice(0, -1))) {
          this.enter(target, e.seconds, FAULT_STATES[f.kind]);
          if (f.length > 0 && FAULT_STATES[f.kind] !== "dead") this.plan(target, e.seconds + f.length);
        }
      }
    } else if (e.kind === "joining" || e.kind === "joined") {
      const target = e.text.split(" ")[0];
      if (!/^server:\d+$/.test(target)) return;
      const n = Math.max(0, (this.copies.get(target) ?? 0) + (e.kind === "joining" ? 1 : -1));
      this.copies.set(target, n);
      this.enter(target, e.seconds, n > 0 ? "copying" : "serving");
    } else if (/^(server|worker):\d+$|^coordinator$|^log$/.test(e.target)) {
      if (e.kind === "detected") this.copies.delete(e.target);
      if (e.kind === "serving" && !e.text.includes("no longer needed")) this.enter(e.target, e.seconds, "serving");
      if (EVENT_STATES[e.kind]) {
        this.enter(e.target, e.seconds, e.details?.vacated ? "left" : EVENT_STATES[e.kind]);
      }
    }
  }

  enter(target, from, state) {
    const lane = this.lane(target);
    while (lane.length > 1 && lane.at(-1).from > from) lane.pop(); // a planned end that comes too late
    if (lane.at(-1).state !== state) lane.push({ from, state });
  }

  // plan ends the present state of a process at a later time.
  plan(target, at) { this.lane(target).push({ from: at, state: "serving" }); }

  addSeries(text) {
    for (const line of text.split("\n")) {
      const cells = line.split(",");
      if (cells[0] === "seconds") {
        this.columns = cells;
      } else if (cells.length === this.columns.length) {
        const at = Number(cells[0]);
        for (let i = 2; i < cells.length; i++) {
          const value = Number(cells[i]);
          if (cells[i] === "" || !Number.isFinite(value)) continue;
          (this.series[this.columns[i]] ??= []).push({ seconds: at, value });
        }
      }
    }
  }

  addClocks(text) {
    for (const line of text.split("\n")) {
      const cells = line.split(",");
      if (cells.length !== 3 || cells[0] === "seconds") continue;
      const number = (a) => a !== "" && Number.isFinite(Number(a)) ? Number(a) : null; // "-": no process
      const ahead = cells[2].split(" ", MAX_SLOTS).map(number);
      const seconds = number(cells[0]), clock = number(cells[1]);
      if (seconds === null || clock === null) continue;
      ahead.forEach((a, i) => { if (a !== null) this.appear(`worker:${i}`, seconds); });
      this.clocks.push({ seconds, clock, ahead });
    }
  }

  setNow(state) {
    this.now = state;
    for (const p of state.processes) if (p.pid) this.appear(p.target, state.seconds);
  }

  // duration returns the time of the newest record.
  duration() {
    const of = (list) => list?.at(-1)?.seconds ?? 0;
    return Math.max(of(this.events), of(this.clocks), of(this.series.train_loss), this.end ? 0 : this.now?.seconds ?? 0, 0.5);
  }

  // stateOf returns the state of a process at a time.
  stateOf(target, t) {
    let state = "serving";
    for (const s of this.lanes.get(target)) if (s.from <= t) state = s.state;
    return state;
  }

  // value returns the newest value of a column at a time.
  value(column, t) {
    const list = this.series[column] ?? [];
    return list[last(list, t)]?.value;
  }

  // numbers returns the numbers at a time. Without one, they are those of the summary, or of the summary so far.
  numbers(t) {
    const sum = t === undefined ? this.end?.summary ?? this.now?.summary : undefined;
    const at = t ?? Infinity;
    const row = this.clocks[last(this.clocks, at)];
    const n = {
      clock: row?.clock ?? 0, end: this.now?.end || this.job.clocks, ahead: row?.ahead ?? [],
      lost: 0, redone: 0, durable: 0, seconds: t ?? this.duration(),
    };
    for (let i = 0; i <= last(this.events, at); i++) {
      const e = this.events[i];
      if (e.clock > n.clock) n.clock = e.clock;
      if (e.kind !== "fault") {
        n.lost = e.details?.updates_lost ?? n.lost;
        n.redone = e.details?.clocks_redone ?? n.redone;
      }
      if (e.kind === "checkpoint") n.durable = Number(/clock (\d+)/.exec(e.text)?.[1] ?? n.durable);
    }
    for (const c of ["train_loss", "train_rmse", "test_loss", "test_accuracy", "test_rmse", "clocks_per_second", "samples_per_second"]) {
      n[c] = this.value(c, at);
    }
    if (!sum) return n;
    n.clock = sum.clocks ?? n.clock;
    n.lost = sum.updates_lost ?? n.lost;
    n.redone = sum.clocks_redone ?? n.redone;
    n.seconds = sum.wall_seconds;
    if (this.end?.summary) {
      for (const c of ["train_loss", "train_rmse", "test_loss", "test_accuracy", "test_rmse"]) n[c] = sum[c] ?? n[c];
    } else if (this.now) {
      n.durable = this.now.durable;
    }
    return n;
  }

  summary() { return this.end?.summary ?? this.now?.summary; }
}
