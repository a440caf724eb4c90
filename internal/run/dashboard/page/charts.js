// Pictures of the model, as SVG. Their coordinates are pixels.

import { apart, mean } from "./model.js";

const SVG = "http://www.w3.org/2000/svg";

// element creates an SVG element.
export function element(name, attributes = {}, text = "") {
  const e = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== "") e.textContent = text;
  return e;
}

// ticks returns at most n round numbers from low to high.
export function ticks(low, high, n) {
  if (!(high > low)) return [low];
  let step = 10 ** Math.floor(Math.log10((high - low) / n));
  for (const f of [2, 2.5, 2]) if ((high - low) / step > n) step *= f;
  const all = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) all.push(v);
  return all;
}

// short formats a number with three digits.
export function short(v) {
  if (v === undefined || v === null || !Number.isFinite(v)) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (Math.abs(v) >= size) return `${Number((v / (size === 1e4 ? 1e3 : size)).toPrecision(3))} ${unit}`;
  }
  return String(Number(v.toPrecision(3)));
}

// clockTime formats seconds.
export function clockTime(t) {
  if (t < 120) return `${Number(t.toFixed(t < 10 ? 1 : 0))} s`;
  const h = Math.floor(t / 3600), m = Math.floor(t / 60) % 60, s = Math.floor(t % 60);
  return h > 0 ? `${h} h ${m} min` : `${m} min ${s} s`;
}

// eventTime formats the seconds of an event: the steps of a recovery are milliseconds apart.
export const eventTime = (t) => t < 120 ? `${t.toFixed(2)} s` : clockTime(t);

// thin keeps what can be seen of points: the first, lowest, highest and last of each pixel column.
function thin(points, x) {
  if (points.length < 2000) return points;
  const kept = [];
  let column = -1, group = [];
  const flush = () => {
    if (group.length === 0) return;
    let low = group[0], high = group[0];
    for (const p of group) { if (p.value < low.value) low = p; if (p.value > high.value) high = p; }
    kept.push(...[...new Set([group[0], low, high, group.at(-1)])].sort((a, b) => a.seconds - b.seconds));
  };
  for (const p of points) {
    const c = Math.floor(x(p.seconds));
    if (c !== column) { flush(); group = []; column = c; }
    group.push(p);
  }
  flush();
  return kept;
}

// pieces cuts points where samples are missing. Rare points, such as evaluations, are due less often than samples: one is
// missing only if the time since the point before is twice the usual one.
export function pieces(points, gaps, rare) {
  const steps = rare ? points.slice(1).map((p, i) => p.seconds - points[i].seconds).sort((a, b) => a - b) : [];
  const long = 2 * (steps[steps.length >> 1] ?? 0), missing = apart(gaps), all = [];
  points.forEach((p, i) => {
    const before = points[i - 1];
    if (!before || missing(before.seconds, p.seconds) && p.seconds - before.seconds >= long) all.push([]);
    all.at(-1).push(p);
  });
  return all;
}

// Chart is a curve over the time of the run.
export class Chart {
  constructor(parent, title, options) {
    this.options = options;
    const figure = document.createElement("div");
    const heading = document.createElement("h2");
    heading.textContent = title;
    this.svg = element("svg", { role: "img", "aria-label": title });
    figure.append(heading, this.svg);
    parent.append(figure);
    this.figure = figure;
    this.title = title;
  }

  draw(lists, gaps, duration, faults, cursor) {
    const points = mean(lists.find((l) => l?.length > 0) ?? [], this.options.mean ?? 0);
    this.figure.hidden = points.length === 0;
    const width = this.svg.clientWidth, height = 150;
    if (points.length === 0 || width === 0) return;
    const left = 48, right = 8, top = 8, bottom = 20;
    let low = Infinity, high = -Infinity;
    for (const p of points) { low = Math.min(low, p.value); high = Math.max(high, p.value); }
    if (this.options.zero) low = 0;
    if (high === low) { high += Math.abs(high) * 0.1 || 1; }
    const x = (t) => left + (width - left - right) * t / duration;
    const y = (v) => height - bottom - (height - top - bottom) * (v - low) / (high - low);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", `${this.title}: ${short(points.at(-1).value)} at ${clockTime(points.at(-1).seconds)}`);
    const all = [];
    for (const v of ticks(low, high, 4)) {
      all.push(element("line", { x1: left, x2: width - right, y1: y(v), y2: y(v), class: "grid" }));
      all.push(element("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, this.options.percent ? `${short(100 * v)}%` : short(v)));
    }
    all.push(...timeAxis(x, duration, height - 5, width));
    for (const t of new Map(faults.map((t) => [Math.round(x(t)), t])).values()) all.push(element("line", { x1: x(t), x2: x(t), y1: top, y2: height - bottom, class: "fault" }));
    const place = (p) => `${x(p.seconds).toFixed(1)} ${y(p.value).toFixed(1)}`;
    const path = pieces(thin(points, x), gaps, this.options.rare).map((p) => `M${p.map(place).join("L")}${p.length === 1 ? "h0" : ""}`).join("");
    all.push(element("path", { d: path, class: "curve" }));
    if (points.length < 30) for (const p of points) all.push(element("circle", { cx: x(p.seconds), cy: y(p.value), r: 2.2, class: "dot" }));
    if (cursor !== undefined) all.push(element("line", { x1: x(cursor), x2: x(cursor), y1: top, y2: height - bottom, class: "cursor" }));
    this.svg.replaceChildren(...all);
  }
}

// STEPS are the steps of a time axis in seconds. The smallest one is the last digit of clockTime.
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400];

// timeTicks returns at most n + 1 round times from 0 to duration, and their labels, which all differ.
export function timeTicks(duration, n) {
  const step = STEPS.find((s) => duration / s <= n) ?? 86400 * Math.ceil(duration / 86400 / n);
  const label = (t) => {
    if (step < 60 || t === 0) return clockTime(t);
    const h = Math.floor(t / 3600), m = t / 60 % 60;
    return [h > 0 ? `${h} h` : "", m > 0 ? `${m} min` : ""].filter((s) => s !== "").join(" ");
  };
  return Array.from({ length: Math.floor(duration / step + 1e-9) + 1 }, (_, i) => [i * step, label(i * step)]);
}

// timeAxis returns the labels of the time axis.
export function timeAxis(x, duration, y, width) {
  return timeTicks(duration, Math.max(2, Math.floor(width / 80))).filter(([t]) => x(t) < width - 16).map(([t, label]) =>
    element("text", { x: x(t), y, "text-anchor": t === 0 ? "start" : "middle" }, label));
}
