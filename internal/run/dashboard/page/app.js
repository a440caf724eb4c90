// The live view: it exchanges the token, follows the stream, and shows the job.

import { Model, STATES, KINDS, SMOOTH, quiet } from "./model.js";
import { Chart, clockTime, eventTime, short } from "./charts.js";
import { Lanes, node, faultTimes } from "./lanes.js";

const $ = (id) => document.getElementById(id);
const model = new Model();
const lanes = new Lanes($("lanes"), act);
const charts = [
  [new Chart($("charts"), "Training loss of one worker's clock", {}), ["train_loss", "train_rmse"]],
  [new Chart($("charts"), "Test accuracy", { percent: true, rare: true }), ["test_accuracy"]],
  [new Chart($("charts"), "Test error (RMSE)", { rare: true }), ["test_rmse"]],
  [new Chart($("charts"), "Clocks per second", { zero: true }), ["clocks_per_second"]],
  [new Chart($("charts"), `Samples per second, mean of ${SMOOTH} s`, { zero: true, mean: SMOOTH }), ["samples_per_second"]],
];
const NO_END = 1e9; // clocks of a job that its programs end
let cursor; // the time that is shown; undefined: the latest
let playing; // a timer
let due = false;
let lost = false; // there is no connection

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = text === "";
}

// post sends a request that only this page can send.
const post = (path, body) => fetch(path, { method: "POST", headers: { "X-Perdure": "1" }, body: JSON.stringify(body) });

async function start() {
  const token = location.hash.slice(1);
  if (token) {
    history.replaceState(null, "", location.pathname);
    const r = await post("session", { token });
    if (r.ok) return stream(); // admitted, without another request
    notice(await r.text());
  }
  follow();
}

// follow receives the stream if this browser is admitted.
async function follow() {
  const r = await fetch("session").catch(() => null);
  if (r && !r.ok) {
    badge("✕", "not admitted");
    if ($("notice").hidden) notice(await r.text());
    return;
  }
  if (r) notice("");
  stream();
}

function hear() {
  lost = false;
  model.heard(performance.now());
}

// stream receives the stream. The browser reconnects by itself and sends the position of the last message.
function stream() {
  const s = new EventSource("stream");
  const on = (kind, f) => s.addEventListener(kind, (m) => { hear(); f(m.data); draw(); });
  on("reset", (data) => { model.reset(JSON.parse(data)); lanes.clear(); });
  on("job", (data) => { model.job = JSON.parse(data); });
  on("events", (data) => model.addEvents(data));
  on("series", (data) => model.addSeries(data));
  on("clocks", (data) => model.addClocks(data));
  on("now", (data) => model.setNow(JSON.parse(data)));
  on("end", (data) => { model.setEnd(JSON.parse(data)); s.close(); });
  s.addEventListener("problem", (m) => {
    s.close();
    notice(m.data);
    setTimeout(follow, 10000);
  });
  s.onopen = () => { hear(); notice(""); draw(); };
  s.onerror = () => {
    if (model.end) return;
    lost = true;
    showBadge();
    if (s.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  };
}

let fading; // a timer

async function act(kind, target = "") {
  clearTimeout(fading);
  $("answer").textContent = `${kind} ${target} …`;
  try {
    const r = await post("act", { kind, target });
    $("answer").textContent = r.ok ? `Accepted: ${(await r.json()).accepted || kind}` : `Refused: ${await r.text()}`;
    // The lanes and events show what follows. A refusal stays until the next action.
    if (r.ok) fading = setTimeout(() => { $("answer").textContent = ""; }, 10000);
  } catch {
    $("answer").textContent = "Not sent: no connection to the job.";
  }
}

// badge shows the state of the job. Screen readers announce it, but not the rest, which changes every second.
function badge(symbol, text, rest = "") {
  const all = `${symbol} ${text}`;
  if ($("badge").firstChild?.textContent !== all) $("badge").replaceChildren(all, node("span", { ariaLive: "off" }));
  $("badge").lastChild.textContent = rest;
}

let silence = 0; // as shown

function showBadge(t) {
  silence = model.silence(performance.now());
  if (lost) return badge("…", "connection lost; reconnecting");
  const [symbol, text] = model.condition(t);
  if (t !== undefined) badge(symbol, text, ` at ${clockTime(t)}`);
  else if (silence > 0) badge("?", "no news", ` for ${silence} s; last: ${text}`);
  else badge(symbol, text);
}

// draw shows the model before the next frame.
function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; show(); });
}

function show() {
  const job = model.job;
  if (!job.id) return;
  $("main").hidden = false;
  $("main").className = job.refuses === "" ? "" : "readonly";
  document.title = `Perdure: ${job.workload}`;
  $("title").textContent = `${job.workload}, ${job.consistency}, recovery ${job.recovery}, ${job.workers} workers, ${job.servers} servers`;
  $("promise").textContent = `Promise of ${job.recovery}: ${job.promise}`;
  $("add").hidden = job.refuses !== "";
  $("add").disabled = model.end !== null;
  const duration = model.duration();
  const t = cursor === undefined ? undefined : Math.min(cursor, duration);
  showBadge(t);
  const n = model.numbers(t);
  showCaption(n);
  showTiles(n);
  showReplay(t, duration);
  lanes.draw(model, duration, t);
  const faults = faultTimes(model);
  const curves = charts.filter(([, columns]) => columns.some((c) => model.series[c]?.length > 0)).length;
  $("charts").className = curves === 4 ? "four" : "";
  for (const [chart, columns] of charts) chart.draw(columns.map((c) => model.series[c]), model.gaps.series.list, duration, faults, t);
  $("whole").hidden = t === undefined;
  showShares();
  showEvents(t ?? Infinity);
  showSummary();
}

function showCaption(n) {
  const text = (model.job.captions ?? []).filter((c) => c.clock <= n.clock).at(-1)?.text ?? "";
  $("caption").hidden = text === "";
  if ($("caption").textContent !== text) $("caption").textContent = text;
}

function showTiles(n) {
  const percent = (v) => v === undefined ? "–" : `${(100 * v).toFixed(2)}%`;
  const tiles = [
    ["clock", "Clock", String(n.clock), n.end && n.end < NO_END ? ` of ${n.end}` : ""],
    ["seconds", "Time", clockTime(n.seconds), ""],
    ["speed", "Clocks/s", short(n.clocks_per_second), ""],
    ["samples", "Samples/s", short(n.samples_per_second), ""],
    ["loss", n.train_rmse === undefined ? "Training loss" : "Training RMSE", short(n.train_rmse ?? n.train_loss), ""],
    n.test_rmse === undefined ? ["accuracy", "Test accuracy", percent(n.test_accuracy), ""] : ["rmse", "Test RMSE", short(n.test_rmse), ""],
    ["lost", "Updates lost", String(n.lost), ""],
    ["redone", "Clocks redone", String(n.redone), " in total"],
    ["durable", "Last checkpoint", n.durable ? String(n.durable) : "–", ""],
  ];
  $("tiles").replaceChildren(...tiles.map(([id, name, value, more]) => {
    const dd = node("dd", { id: `n-${id}` }, value, node("small", {}, more));
    return node("div", {}, node("dt", {}, name), dd);
  }));
}

function showReplay(t, duration) {
  if (document.activeElement !== $("time") || t === undefined) $("time").value = 1000 * (t ?? duration) / duration;
  $("at").textContent = clockTime(t ?? duration);
  $("time").setAttribute("aria-valuetext", clockTime(t ?? duration));
  $("live").setAttribute("aria-pressed", String(t === undefined));
  $("play").textContent = playing ? "Pause" : "Replay";
}

function bars(parent, rows) {
  const items = rows.flatMap(([name, share, text]) => {
    const bar = node("i");
    bar.style.width = `${100 * share}%`;
    return [node("span", {}, name), node("div", {}, bar), node("span", {}, text)];
  });
  parent.className = rows.length ? "bars" : "note";
  parent.replaceChildren(...(rows.length ? items : ["Nothing was measured yet."]));
}

function showShares() {
  const sum = model.summary();
  const counts = Object.entries(sum?.clock_differential ?? {}).map(([k, n]) => [Number(k), n]).sort((a, b) => b[0] - a[0]);
  const whole = counts.reduce((s, [, n]) => s + n, 0);
  bars($("staleness"), counts.slice(0, 14).map(([k, n]) => [String(k), n / whole, `${(100 * n / whole).toFixed(1)}%`]));
  const split = sum?.time_split;
  bars($("split"), split ? [["compute", split.compute], ["wait for other workers", split.staleness],
    ["communication", split.communication]].map(([name, s]) => [name, s, `${(100 * s).toFixed(1)}%`]) : []);
  const usage = Object.entries(sum?.usage ?? {}).sort();
  const mb = (v) => v === null || v === undefined ? "–" : `${short(v)} MB`;
  const cell = (text) => node("td", { className: "n" }, text);
  const head = node("tr", {}, ...["", "CPU", "memory", "written", "stored"].map((h, i) => node("th", { className: i ? "n" : "" }, h)));
  const machines = node("p", { className: "note" }, `${short(model.machineSeconds() / 3600)} machine hours${model.end ? "" : " so far"}: ` +
    "one machine for each server, each worker and the coordinator.");
  $("cost").replaceChildren(node("table", {}, head, ...usage.map(([role, u]) => node("tr", {}, node("th", {}, role),
    cell(`${short(u.cpu_seconds)} s`), cell(mb(u.mb_peak)), cell(mb(u.mb_written)), cell(mb(u.mb_stored))))), machines);
}

let shown = "";

function showEvents(t) {
  const all = $("all").checked;
  const list = model.events.filter((e) => e.seconds <= t && (all || !quiet(e))).slice(-200).reverse();
  const recent = list.find((e) => e.kind === "detected" || e.kind === "serving");
  const key = `${list.length} ${list[0]?.seconds} ${all} ${model.job.id} ${recent && model.note(recent)}`;
  if (key === shown) return;
  shown = key;
  $("events").replaceChildren(...list.map((e) => {
    const symbol = KINDS[e.kind]?.[0] ?? "·";
    const li = node("li", {}, node("time", {}, eventTime(e.seconds)), node("span", { ariaHidden: "true" }, symbol), node("span", {}, e.text));
    const note = model.note(e);
    if (note) li.append(node("span", { className: "note" }, note));
    li.dataset.kind = e.kind;
    return li;
  }));
}

function showSummary() {
  const rows = Object.entries(model.summary() ?? {}).filter(([, v]) => v !== null && typeof v !== "object");
  $("summary").replaceChildren(...rows.map(([k, v]) => {
    const td = node("td", {}, String(v));
    td.dataset.field = k;
    return node("tr", {}, node("th", {}, k), td);
  }));
}

function stop() {
  clearInterval(playing);
  playing = undefined;
}

function play() {
  if (playing) { stop(); draw(); return; }
  const slow = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const every = slow ? 1000 : 100, speed = Math.max(1, model.duration() / 30);
  cursor = cursor === undefined || cursor >= model.duration() ? 0 : cursor;
  playing = setInterval(() => {
    cursor += speed * every / 1000;
    if (cursor >= model.duration()) { stop(); cursor = undefined; }
    draw();
  }, every);
  draw();
}

$("play").addEventListener("click", play);
$("live").addEventListener("click", () => { stop(); cursor = undefined; draw(); });
$("time").addEventListener("input", () => { stop(); cursor = $("time").value / 1000 * model.duration(); draw(); });
$("all").addEventListener("change", draw);
$("add").addEventListener("click", () => act("add"));
$("legend").replaceChildren(...Object.entries(STATES).map(([state, [symbol, word]]) =>
  node("span", { className: `s-${state}` }, `${symbol} ${word}`)),
node("span", {}, "line: clocks ahead of the slowest worker"));
setInterval(() => { if (model.silence(performance.now()) !== silence) draw(); }, 250);
addEventListener("resize", draw);
start();
