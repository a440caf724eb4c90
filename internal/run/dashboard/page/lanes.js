// The lanes: one row for each process, with its state over time, its clock and its actions.

import { STATES, apart, causeOf, faultOf } from "./model.js";
import { element, eventTime, timeAxis } from "./charts.js";

const HEIGHT = 32;

// node creates an HTML element.
export function node(name, of = {}, ...children) {
  const e = document.createElement(name);
  Object.assign(e, of);
  e.append(...children);
  return e;
}

export class Lanes {
  constructor(parent, act) {
    this.parent = parent;
    this.act = act;
    this.rows = new Map();
    this.axis = element("svg", { "aria-hidden": "true" });
    parent.append(node("div", { className: "lane axis" },
      node("span", { className: "name" }), node("span", { className: "state" }), this.axis));
  }

  clear() {
    for (const r of this.rows.values()) r.root.remove();
    this.rows.clear();
  }

  row(target) {
    let r = this.rows.get(target);
    if (r) return r;
    r = { name: node("span", { className: "name" }, target), state: node("span", { className: "state" }), acts: node("span", { className: "acts" }) };
    r.track = element("svg", { role: "img" });
    r.root = node("div", { className: "lane" }, r.name, r.state, r.track, r.acts);
    r.root.dataset.process = target;
    r.buttons = [["kill", "Kill"], ["freeze", "Freeze"], ["resume", "Resume"], ["remove", "Remove"]].filter(
      ([kind]) => kind !== "remove" || target.startsWith("worker:")).map(([kind, text]) => {
      const b = node("button", { type: "button" }, text);
      b.dataset.act = kind;
      b.setAttribute("aria-label", `${text} ${target}`);
      b.addEventListener("click", () => this.act(kind, target));
      r.acts.append(b);
      return b;
    });
    this.rows.set(target, r);
    return r;
  }

  draw(model, duration, cursor) {
    const width = this.axis.clientWidth;
    const x = (t) => 2 + (width - 4) * Math.min(t, duration) / duration;
    this.axis.setAttribute("viewBox", `0 0 ${width} 18`);
    this.axis.replaceChildren(...timeAxis(x, duration, 13, width));
    const known = new Map((cursor === undefined ? model.now?.processes ?? [] : []).map((p) => [p.target, p]));
    const numbers = model.numbers(cursor);
    const lead = leadOf(model);
    let previous = this.axis.parentElement;
    for (const [target, segments] of model.ordered()) {
      const r = this.row(target);
      if (r.root.previousElementSibling !== previous) previous.after(r.root);
      previous = r.root;
      const now = known.get(target);
      this.describe(r, target, shownState(model, target, cursor, now), numbers, now);
      this.track(r, target, segments, model, { x, duration, cursor, lead, width });
      for (const b of r.buttons) b.disabled = !now?.local || model.end !== null;
    }
  }

  describe(r, target, [state, word], numbers, now) {
    let clock = "";
    if (target.startsWith("worker:")) {
      const ahead = numbers.ahead[Number(target.slice(7))];
      const at = now?.clock ?? (ahead === null || ahead === undefined ? undefined : numbers.clock + ahead);
      if (at !== undefined && state !== "left" && state !== "ended") clock = `clock ${at}${at > numbers.clock ? ` (+${at - numbers.clock})` : ""}`;
    }
    r.state.className = `state s-${state}`;
    r.state.replaceChildren(node("b", {}, STATES[state][0]), ` ${word}${clock ? `, ${clock}` : ""}`);
    r.root.dataset.state = state;
    r.root.dataset.clock = now?.clock ?? "";
    r.root.dataset.pid = now?.pid ?? "";
  }

  // track draws the states of a process over time and, of a worker, how far it was ahead of the slowest one.
  track(r, target, segments, model, { x, duration, cursor, lead, width }) {
    if (width === 0) return;
    const all = [], told = [];
    let failures = 0;
    segments.forEach((s, i) => {
      const until = Math.min(segments[i + 1]?.from ?? duration, duration);
      if (s.from > duration) return;
      const wide = Math.max(s.state === "serving" ? 0 : 4, x(until) - x(s.from));
      const high = s.state === "serving" ? 8 : s.state === "left" ? 2 : 14;
      const rect = element("rect", { x: x(s.from).toFixed(1), y: HEIGHT - 4 - high, width: wide.toFixed(1), height: high, class: `s-${s.state}` });
      if (s.state !== "serving") rect.append(element("title", {}, tip(model, target, s, until)));
      all.push(rect);
      if (s.state !== "serving") told.push([x(s.from), STATES[s.state][0], s.state]);
      if (s.state !== "serving" && s.state !== "left" && s.state !== "waiting") failures++;
    });
    if (target.startsWith("worker:")) {
      const i = Number(target.slice(7)), step = Math.max(1, Math.floor(model.clocks.length / Math.max(1, width)));
      const missing = apart(model.gaps.clocks.list);
      let path = "", before; // the time of the point before; undefined: none
      for (let k = 0; k < model.clocks.length; k += step) {
        const { seconds, ahead } = model.clocks[k], a = ahead[i];
        if (a === null || a === undefined) { before = undefined; continue; }
        const pen = before === undefined || missing(before, seconds) ? "M" : "L";
        path += `${pen}${x(seconds).toFixed(1)} ${(HEIGHT - 5 - 18 * a / lead).toFixed(1)}`;
        before = seconds;
      }
      if (path) all.push(element("path", { d: path, class: "lead" }));
    }
    let free = -Infinity;
    for (const [at, symbol, state] of told) {
      if (at < free) continue;
      all.push(element("text", { x: Math.min(at, width - 10).toFixed(1), y: 11, class: `mark s-${state}` }, symbol));
      free = at + 13;
    }
    if (cursor !== undefined) all.push(element("line", { x1: x(cursor), x2: x(cursor), y1: 0, y2: HEIGHT, class: "cursor" }));
    r.track.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    r.track.setAttribute("aria-label", `${target}: ${failures} failures or recoveries`);
    r.track.replaceChildren(...all);
  }
}

// shownState returns the state of a process at a time, and what it is called; undefined: the latest state, for which now
// is what the job says of the process, if it says anything.
export function shownState(model, target, cursor, now) {
  let { state, word } = model.segmentOf(target, cursor ?? model.duration());
  if (now?.state === "waiting" && now.pid === 0 && state === "serving") state = "waiting";
  if (now?.state === "left" && state !== "left") [state, word] = ["left", "left the job"];
  if (model.end && cursor === undefined && state === "serving") state = "ended";
  return [state, word ?? STATES[state][1]];
}

// tip returns the tooltip of a segment of a lane.
function tip(model, target, s, until) {
  const times = s.state === "left" || s.state === "waiting" ? "" : model.timesOf(target, s.from, s.cause);
  return `${target} ${s.word ?? STATES[s.state][1]}, ${eventTime(s.from)} to ${eventTime(until)}${s.cause ? `, after ${causeOf(s.cause)}` : ""}${times ? `; ${times}` : ""}`;
}

// leadOf returns how far a worker was ahead recently. The numbers of a job with many workers are too many for Math.max.
export function leadOf(model) {
  let lead = 1;
  for (const c of model.clocks.slice(-400)) for (const a of c.ahead) lead = Math.max(lead, a ?? 0);
  return lead;
}

// faultTimes returns when faults and deaths happened.
export function faultTimes(model) {
  return model.events.filter((e) => e.kind === "fault" && faultOf(e.text) || e.kind === "detected").map((e) => e.seconds);
}
