// The history of a run, and its state at any time of it. Nothing here touches the page.

// Symbols and names of the states of a process.
export const STATES = {
  serving: ["●", "works"], dead: ["✕", "dead"], suspected: ["?", "suspected"], frozen: ["‖", "frozen"],
  copying: ["↻", "copies rows"], cut: ["⊘", "no network"], slow: ["∼", "slow"], left: ["–", "left"],
  waiting: ["…", "not started"], ended: ["■", "ended"],
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
  left: ["–", "The process is not replaced, or a slot has finished its last clock."],
  scaled: ["±", "The number of workers changes."],
  checkpoint: ["▪", "Everything up to this clock is on disk."],
  cut: ["▪", "A checkpoint between the regular ones, mostly because a worker has died with copies of its updates."],
  complete: ["■", "Every worker has finished its last clock."],
};

const QUIET = new Set(["checkpoint", "placed", "joining", "joined", "moved", "copying", "interval", "attached"]);

// quiet reports whether an event is usually not worth a line.
export const quiet = (e) => QUIET.has(e.kind);

const MAX_SLOTS = 4096; // of a job

// SILENT is after how many ms without a message the page says so. While the coordinator works, the server sends the
// job's state every 500 ms.
export const SILENT = 2500;

// Limits of what the page keeps, so that a run of weeks stays fast. Older items are thinned out.
export const MAX = { events: 4000, points: 8000, cells: 2e6, segments: 4000 };

// bound returns a list of at most max items: if there are more, it keeps the newer half and every second older item.
export function bound(list, max) {
  while (list.length > max) {
    const half = list.length >> 1;
    list = list.filter((_, i) => i >= half || i % 2 === 0);
  }
  return list;
}

// merge thins out the older segments of a lane: of failures that would be drawn at the same place, it keeps one.
function merge(lane) {
  const old = lane.length - (MAX.segments >> 2), start = lane[0].from, width = (lane[old].from - start) / 400;
  const kept = [];
  let place = -1;
  lane.forEach((s, i) => {
    const at = Math.floor((s.from - start) / width);
    const same = at === place && i < old && lane[i + 1].from - s.from < width;
    if (s.state !== "serving" && same) return;
    if (s.state !== "serving") place = at;
    if (kept.at(-1)?.state !== s.state) kept.push(s);
  });
  return kept;
}

// Gaps finds the times without a sample. Rows are 0.5 s apart, or n times as much where the server left out rows of a
// long history: so a gap is 4 usual steps, but at least 2 s.
class Gaps {
  constructor() {
    this.list = []; // {from, until}
    this.newest = undefined;
    this.steps = Array(15).fill(0.5); // the newest ones
  }

  add(times) {
    const steps = [];
    let newest = this.newest;
    for (const t of times) {
      if (newest !== undefined && t > newest) steps.push({ from: newest, until: t });
      newest = Math.max(newest ?? t, t);
    }
    this.newest = newest;
    this.steps = [...this.steps, ...steps.map((s) => s.until - s.from)].slice(-15);
    const long = Math.max(2, 4 * [...this.steps].sort((a, b) => a - b)[7]);
    this.list = bound([...this.list, ...steps.filter((s) => s.until - s.from > long)], MAX.points);
  }
}

// apart returns a function that reports whether samples are missing between two times. Its calls are in order of time.
export function apart(gaps) {
  let i = 0;
  return (a, b) => {
    while (i < gaps.length && gaps[i].from < a) i++;
    return i < gaps.length && gaps[i].until <= b;
  };
}

// words formats the time between two steps of a recovery.
const words = (ms) => ms < 1000 ? `${Number(ms.toPrecision(2))} ms` : `${Number((ms / 1000).toPrecision(3))} s`;

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

// Faults that end or stop a process: what they are called, and what they do.
const INJECTED = {
  __proto__: null, kill: ["kill", "SIGKILL ends the process"], term: ["SIGTERM", "SIGTERM asks the process to end"],
  freeze: ["freeze", "SIGSTOP stops the process; if it stays frozen, it counts as failed"],
};

// causeOf names the fault that caused a state.
export const causeOf = (c) => c.asked ? `a ${INJECTED[c.kind][0]} on request` : `a planned ${INJECTED[c.kind][0]}`;

const FAULT_STATES = { __proto__: null, kill: "dead", term: "dead", freeze: "frozen", cut: "cut", slow: "slow", jitter: "slow" };

const EVENT_STATES = {
  __proto__: null,
  detected: "dead", suspected: "suspected", left: "left", drained: "left", resumed: "serving", dropped: "dead",
};

// wordOf returns what the state after an event is called; undefined: as in STATES.
function wordOf(e) {
  if (e.kind !== "left") return undefined;
  return / has left at clock \d+$/.test(e.text) ? "left the job" : / is not replaced$/.test(e.text) ? "not replaced" : undefined;
}

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

// SMOOTH is the time over which samples per second are averaged: workers report them only once a second.
export const SMOOTH = 4;

// LATE is within how many seconds after a gap all workers have reported what they did in it.
const LATE = 1.5;

// mean replaces each rate by the mean over the last seconds. A rate is that since the point before. The samples of a gap
// are reported after it, so the mean includes both or neither.
export function mean(points, window) {
  if (window === 0) return points;
  const length = (i) => points[i].seconds - (points[i - 1]?.seconds ?? 0);
  let sum = 0, whole = 0, first = 0;
  return points.map((p, i) => {
    sum += p.value * length(i);
    whole += length(i);
    while (points[first].seconds + (length(first) > 2 ? LATE : 0) <= p.seconds - window) {
      sum -= points[first].value * length(first);
      whole -= length(first++);
    }
    return { seconds: p.seconds, value: whole > 0 ? Math.max(0, sum / whole) : p.value };
  });
}

export class Model {
  constructor() {
    this.heardAt = Infinity; // ms; reset keeps it
    this.reset({});
  }

  // heard records when the page received a message; ms are those of any clock that never goes backwards.
  heard(ms) { this.heardAt = ms; }

  // silence returns for how many whole seconds a running job has sent nothing; 0: it is heard.
  silence(ms) {
    const since = ms - this.heardAt;
    return this.end || since < SILENT ? 0 : Math.max(Math.round(SILENT / 1000), Math.floor(since / 1000));
  }

  reset(job) {
    this.job = job;
    this.events = [];
    this.series = { __proto__: null }; // by column: a list of {seconds, value}
    this.clocks = []; // {seconds, clock, ahead}
    this.gaps = { series: new Gaps(), clocks: new Gaps() };
    this.lanes = new Map(); // by process: a list of {from, state}, and word (its name, if not as in STATES), cause
    this.causes = new Map(); // by process: the fault that was injected last, until its consequences are known
    this.copies = new Map(); // by process: number of shards that it copies
    this.now = null;
    this.end = null;
    this.columns = [];
    this.deaths = new Map(); // by process: when its death was detected, until it works again
    this.failures = new Map(); // by process: of the summary, in order of time
    const first = ["coordinator"];
    for (let i = 0; i < (job.servers ?? 0); i++) first.push(`server:${i}`);
    for (let i = 0; i < (job.workers ?? 0); i++) first.push(`worker:${i}`);
    for (const target of first) this.appear(target, 0);
  }

  // appear records that a process existed at a time, whatever later events said of it.
  appear(target, at) {
    const lane = this.lane(target), i = lane.findLastIndex((s) => s.from <= at);
    if (lane[i]?.state !== "waiting") return;
    if (at === 0) lane[0].state = "serving";
    else lane.splice(i + 1, 0, { from: at, state: "serving" });
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
    if (this.events.length > MAX.events) {
      const half = this.events.length >> 1;
      this.events = bound(this.events.filter((e, i) => i >= half || !quiet(e)), MAX.events);
    }
  }

  // follow updates the lanes after an event.
  follow(e) {
    if (e.kind === "fault") {
      const f = faultOf(e.text);
      if (!f || !FAULT_STATES[f.kind]) return;
      e.cause = { kind: f.kind, asked: !this.job.faults?.includes(e.text.replace("fault: ", "")), until: Infinity };
      if (f.kind === "freeze" && f.length > 0) e.cause.until = e.seconds + f.length;
      for (const target of this.lanes.keys()) {
        if (target === f.target || f.target.endsWith(":*") && target.startsWith(f.target.slice(0, -1))) {
          const cause = INJECTED[f.kind] && e.cause;
          if (cause) this.causes.set(target, cause);
          this.enter(target, e.seconds, FAULT_STATES[f.kind], { cause });
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
      const cause = this.causes.get(e.target);
      const over = e.kind === "serving" && !e.text.includes("no longer needed"); // then the process may still be frozen
      if ((e.kind === "suspected" || e.kind === "detected") && !cause?.dead && e.seconds <= cause?.until) {
        e.cause = cause;
        this.causes.set(e.target, { ...cause, until: Infinity, dead: e.kind === "detected" });
      } else if (e.kind === "serving" && cause?.until === Infinity) {
        e.cause = cause;
      }
      if (e.kind === "detected" && !e.cause || e.kind === "resumed" || over) this.causes.delete(e.target);
      if (e.kind === "detected") {
        this.copies.delete(e.target);
        this.deaths.set(e.target, e.seconds);
      }
      if (e.kind === "serving" && this.deaths.has(e.target)) {
        e.after = e.seconds - this.deaths.get(e.target);
        this.deaths.delete(e.target);
      }
      // a slot that had left gets a process again
      if (e.kind === "scaled" && / joins; /.test(e.text) && this.lane(e.target).at(-1).state === "left") {
        this.enter(e.target, e.seconds, "waiting");
      }
      if (over) this.enter(e.target, e.seconds, "serving");
      if (EVENT_STATES[e.kind]) {
        this.enter(e.target, e.seconds, e.details?.vacated ? "left" : EVENT_STATES[e.kind], { word: wordOf(e), cause: e.cause });
      }
    }
  }

  enter(target, from, state, { word, cause } = {}) {
    const lane = this.lane(target);
    while (lane.length > 1 && lane.at(-1).from > from) lane.pop(); // a planned end that comes too late
    if (lane.at(-1).state !== state || word && !lane.at(-1).word) lane.push({ from, state, word, cause });
    if (lane.length > MAX.segments) this.lanes.set(target, merge(lane));
  }

  // plan ends the present state of a process at a later time.
  plan(target, at) { this.lane(target).push({ from: at, state: "serving" }); }

  addSeries(text) {
    const times = [];
    for (const line of text.split("\n")) {
      const cells = line.split(",");
      if (cells[0] === "seconds") {
        this.columns = cells;
      } else if (cells.length === this.columns.length) {
        const at = Number(cells[0]);
        let regular = false; // others have only an evaluation, which may be late
        for (let i = 2; i < cells.length; i++) {
          const value = Number(cells[i]), column = this.columns[i];
          if (cells[i] === "" || !Number.isFinite(value)) continue;
          (this.series[column] ??= []).push({ seconds: at, value });
          regular ||= !column.startsWith("test_") && column !== "backlog";
        }
        if (regular) times.push(at);
      }
    }
    this.gaps.series.add(times);
    for (const column in this.series) this.series[column] = bound(this.series[column], MAX.points);
  }

  addClocks(text) {
    const times = [];
    for (const line of text.split("\n")) {
      const cells = line.split(",");
      if (cells.length !== 3 || cells[0] === "seconds") continue;
      const number = (a) => a !== "" && Number.isFinite(Number(a)) ? Number(a) : null; // "-": no process
      const ahead = cells[2].split(" ", MAX_SLOTS).map(number);
      const seconds = number(cells[0]), clock = number(cells[1]);
      if (seconds === null || clock === null) continue;
      ahead.forEach((a, i) => { if (a !== null) this.appear(`worker:${i}`, seconds); });
      this.clocks.push({ seconds, clock, ahead });
      times.push(seconds);
    }
    this.gaps.clocks.add(times);
    this.clocks = bound(this.clocks, Math.max(400, Math.min(MAX.points, MAX.cells / (this.clocks.at(-1)?.ahead.length || 1))));
  }

  setNow(state) {
    this.now = state;
    for (const p of state.processes) if (p.pid) this.appear(p.target, state.seconds);
    this.addFailures(state.summary);
  }

  setEnd(end) {
    this.end = end;
    this.addFailures(end.summary);
  }

  // addFailures records failures of a summary. While a run is running, the summary has only the newest ones.
  addFailures(summary) {
    for (const f of summary?.failures ?? []) {
      const known = this.failures.get(f.target) ?? [];
      const i = known.findLastIndex((k) => k.at_seconds <= f.at_seconds);
      if (i >= 0 && known[i].at_seconds === f.at_seconds) known[i] = f;
      else known.splice(i + 1, 0, f);
      this.failures.set(f.target, known.slice(-MAX.segments));
    }
  }

  // timesOf returns, in words, how long a failure took to be detected and until its process worked again; "": unknown.
  // After a freeze the summary also has the death by which it ends: then the times are those of the cause.
  timesOf(target, t, cause) {
    const f = this.failures.get(target)?.findLast((f) => f.at_seconds <= t + 0.05 && (!cause || f.kind === cause.kind));
    if (!Number.isFinite(f?.detected_after_ms)) return ""; // null: never
    const again = Number.isFinite(f.serving_again_after_ms) ? f.serving_again_after_ms : -1;
    if (!cause && again >= 0 && f.at_seconds + again / 1000 < t - 0.05) return ""; // t is later than this failure
    return `detected after ${words(f.detected_after_ms)}${again >= 0 ? `, works again after ${words(again)}` : ""}`;
  }

  // note returns the meaning of an event, and how long a recovery has taken.
  note(e) {
    const meaning = this.meaning(e);
    let times = e.kind === "serving" || e.kind === "detected" ? this.timesOf(e.target, e.seconds, e.cause) : "";
    if (e.kind === "detected") times = times.split(",")[0];
    if (times === "" && e.after !== undefined) times = `works again ${words(1000 * e.after)} after its death was detected`;
    return times ? `${meaning} ${times[0].toUpperCase()}${times.slice(1)}.` : meaning;
  }

  // meaning explains an event.
  meaning(e) {
    const cause = e.cause;
    if (cause && e.kind === "fault") return `${cause.asked ? "On request" : "As planned"}: ${INJECTED[cause.kind]?.[1] ?? "a failure is injected"}.`;
    if (cause && e.kind === "suspected") return `Because of ${causeOf(cause)}, the process sends no heartbeat, so it counts as failed.`;
    if (cause && e.kind === "detected") {
      return `The process ${cause.kind === "freeze" ? "was killed" : "has ended"} because of ${causeOf(cause)}; a replacement starts.`;
    }
    return KINDS[e.kind]?.[1] ?? "";
  }

  // recovering returns the state of a job while a process recovers, with its cause if it was injected.
  recovering(target, t) {
    const { cause } = this.segmentOf(target, t);
    return ["↻", `recovering ${target}${cause ? ` after ${causeOf(cause)}` : ""}`];
  }

  // condition returns the state of the job at a time: a symbol and its description. Without one, it is the latest state.
  condition(t) {
    if (t !== undefined && t < this.duration()) return this.conditionAt(t);
    if (this.end) return ["■", this.end.state === "done" ? "done" : `ended: ${this.end.text}`];
    if (!this.now) return ["…", this.job.ended ? "loading" : "starting"];
    if (!this.now.serving && this.now.clock === 0) {
      const first = this.now.processes.find((p) => p.state === "waiting" && p.pid === 0);
      return ["…", first && this.now.seconds > 2 ? `waiting for ${first.target}` : "starting"];
    }
    const state = (p) => p.state === "left" ? "left" : this.stateOf(p.target, this.duration());
    const of = (what) => this.now.processes.find((p) => p.target !== "coordinator" && what(p, state(p)))?.target;
    const works = (p) => p.state === "alive" && this.now.serving; // the event that says so may be missing
    const dead = of((p, s) => p.state === "dead" || p.state === "silent" || (s === "dead" || s === "suspected") && !works(p));
    if (dead) return this.recovering(dead, this.duration());
    const frozen = of((_, s) => s === "frozen");
    if (frozen) return ["‖", `frozen: ${frozen}`];
    const empty = of((p, s) => s !== "left" && p.state === "waiting" && p.pid === 0);
    if (empty) return ["…", `waiting for ${empty}`];
    const lonely = this.withoutCoordinator(this.duration());
    if (lonely) return lonely;
    return this.now.serving ? ["●", "training"] : ["↻", "recovering"];
  }

  // conditionAt returns the state of the job at an earlier time, from its events.
  conditionAt(t) {
    const of = (...states) => [...this.ordered().keys()].find((target) => {
      const s = this.segmentOf(target, t);
      return target !== "coordinator" && states.includes(s.state) && s.from > 0; // a slot waits from 0 until it joins
    });
    const dead = of("dead", "suspected"), frozen = of("frozen"), empty = of("waiting");
    if (dead) return this.recovering(dead, t);
    if (frozen) return ["‖", `frozen: ${frozen}`];
    if (empty) return ["…", `waiting for ${empty}`];
    const lonely = this.withoutCoordinator(t);
    if (lonely) return lonely;
    for (const [target, failures] of this.failures) {
      const state = this.stateOf(target, t);
      if (state === "left" || state === "waiting") continue; // the summary counts some of these as a death
      const f = failures.findLast((f) => f.at_seconds <= t);
      if (target !== "coordinator" && t < f?.at_seconds + f?.serving_again_after_ms / 1000) return ["↻", `recovering ${target}`];
    }
    return ["●", "training"];
  }

  // withoutCoordinator returns the state of a job whose coordinator does not work at a time; otherwise undefined.
  withoutCoordinator(t) {
    const state = this.stateOf("coordinator", t);
    if (state === "frozen") return ["‖", "frozen: coordinator"];
    if (state === "dead" || state === "suspected") return ["●", "training without a coordinator"];
  }

  // duration returns the time of the newest record.
  duration() {
    const of = (list) => list?.at(-1)?.seconds ?? 0;
    return Math.max(of(this.events), of(this.clocks), of(this.series.train_loss), this.end ? 0 : this.now?.seconds ?? 0, 0.5);
  }

  // segmentOf returns the segment of a process's lane at a time.
  segmentOf(target, t) {
    return this.lanes.get(target)?.findLast((s) => s.from <= t) ?? { from: 0, state: "serving" };
  }

  // stateOf returns the state of a process at a time.
  stateOf(target, t) { return this.segmentOf(target, t).state; }

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
    for (const c of ["train_loss", "train_rmse", "test_loss", "test_accuracy", "test_rmse", "clocks_per_second"]) {
      n[c] = this.value(c, at);
    }
    const samples = this.series.samples_per_second ?? [], until = last(samples, at);
    n.samples_per_second = mean(samples.slice(Math.max(0, until - 40), until + 1), SMOOTH).at(-1)?.value;
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

  // machineSeconds returns how long machines were part of the job, in sum, as the bill of perdure runs counts them: one
  // for each server, each worker and the coordinator.
  machineSeconds() {
    const whole = this.end?.summary?.wall_seconds ?? this.duration();
    let sum = 0;
    for (const [target, lane] of this.lanes) {
      lane.forEach((s, i) => {
        if (target === "log" || s.state === "left" || s.state === "waiting") return;
        sum += Math.max(0, Math.min(lane[i + 1]?.from ?? whole, whole) - s.from);
      });
    }
    return sum;
  }

  summary() { return this.end?.summary ?? this.now?.summary; }
}
