-- SPDX-License-Identifier: Apache-2.0
--- The document of the page: markup, style and script, and nothing from
-- elsewhere. All that agents tell is put in as text, never as markup.
local TEXT = [==[
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Perigee</title>
<link rel="icon" href="data:,">
<style nonce="@NONCE@">
:root {
  color-scheme: light dark;
  --back: #fcfcfd; --fore: #1c2024; --dim: #5c6570; --line: #d5d9de;
  --mark: #0b62c4; --good: #18794e; --warn: #a15c00; --bad: #c62a2f;
  --panel: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #111315; --fore: #eceef0; --dim: #a0a8b0; --line: #33383d;
    --mark: #70b8ff; --good: #3dd68c; --warn: #ffb44d; --bad: #ff8589;
    --panel: #191c1f;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--fore);
  font: 14px/1.45 system-ui, sans-serif; }
header, main { max-width: 1200px; margin: 0 auto; padding: 12px 16px; }
header { display: flex; flex-wrap: wrap; gap: 16px; align-items: baseline; }
h1 { font-size: 20px; margin: 0; } h2 { font-size: 16px; margin: 24px 0 8px; }
h3 { font-size: 14px; margin: 16px 0 6px; }
#said { color: var(--dim); } #said.lost { color: var(--bad); }
#plots { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); }
figure { margin: 0; padding: 10px 12px; background: var(--panel);
  border: 1px solid var(--line); border-radius: 6px; }
figcaption { display: flex; flex-wrap: wrap; column-gap: 14px;
  font-variant-numeric: tabular-nums; }
figcaption b { flex-basis: 100%; font-weight: 600; }
.first { color: var(--mark); } .second { color: var(--warn); }
svg { display: block; width: 100%; height: 72px; margin-top: 6px; }
svg path { fill: none; stroke: var(--mark); stroke-width: 1.5;
  vector-effect: non-scaling-stroke; }
svg path.second { stroke: var(--warn); }
.table { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px;
  background: var(--panel); }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; padding: 8px 10px; color: var(--dim); }
th, td { padding: 4px 10px; text-align: right; white-space: nowrap;
  border-top: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th { font-weight: 600; } .text { text-align: left; }
td.name { max-width: 340px; overflow: hidden; text-overflow: ellipsis; }
tr[aria-current] {
  background: color-mix(in srgb, var(--mark) 14%, transparent); }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0;
  cursor: pointer; text-align: inherit; }
td button, #close { color: var(--mark); text-decoration: underline; }
:focus-visible { outline: 2px solid var(--mark); outline-offset: 2px; }
input { font: inherit; padding: 3px 8px; color: inherit;
  background: var(--panel); border: 1px solid var(--line); border-radius: 4px; }
.asleep, .running { color: var(--good); } .busy { color: var(--warn); }
.stopped, .dead, .failing { color: var(--bad); }
.bar { width: 45%; min-width: 160px; }
.bar span { display: block; height: 10px; background: var(--mark);
  border-radius: 2px; }
</style>
</head>
<body>
<header>
  <h1>Perigee</h1>
  <span id="said" role="status">connecting</span>
  <span id="count"></span>
</header>
<main>
  <section id="plots" aria-label="The last ten minutes"></section>
  <h2 id="agents">Agents</h2>
  <p><label>Only those with <input id="only" type="search"
    autocomplete="off"></label></p>
  <div class="table" tabindex="0" role="region" aria-labelledby="agents">
    <table><thead><tr id="heads"></tr></thead><tbody id="rows"></tbody></table>
  </div>
  <section id="one" hidden tabindex="-1" aria-labelledby="title">
    <h2 id="title"></h2>
    <p><button id="close" type="button">Close</button></p>
    <h3 id="methods-title">Methods, since it began</h3>
    <div class="table" tabindex="0" role="region"
      aria-labelledby="methods-title"><table>
      <thead><tr><th class="text" scope="col">Method</th>
        <th class="text" scope="col">Side</th><th scope="col">Calls</th>
        <th class="text" scope="col">Failures</th><th scope="col">p50</th>
        <th scope="col">p99</th><th scope="col">Longest</th>
        <th scope="col">Sent</th><th scope="col">Received</th></tr></thead>
      <tbody id="methods"></tbody></table></div>
    <div id="histogram" hidden>
      <h3 id="histogram-title"></h3>
      <div class="table" tabindex="0" role="region"
        aria-labelledby="histogram-title"><table>
        <thead><tr><th scope="col">Up to</th><th scope="col">Calls</th>
          <th scope="col">Share</th><td class="bar"></td></tr></thead>
        <tbody id="bins"></tbody></table></div>
    </div>
    <h3 id="links-title">Links</h3>
    <div class="table" tabindex="0" role="region"
      aria-labelledby="links-title"><table>
      <thead><tr><th class="text" scope="col">Peer</th>
        <th class="text" scope="col">Over</th>
        <th class="text" scope="col">State</th><th scope="col">Sent</th>
        <th scope="col">Received</th>
        <th class="text" scope="col">Why it ended</th></tr></thead>
      <tbody id="links"></tbody></table></div>
  </section>
</main>
<script nonce="@NONCE@">
"use strict";
const by = id => document.getElementById(id);
const make = (tag, kind) => {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  return element;
};
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

// ---- Words ----------------------------------------------------------------

const scaled = (value, steps, names) => {
  let i = 0;
  while (i < names.length - 1 && value >= steps) { value /= steps; i++; }
  return (value >= 100 || value === Math.round(value)
    ? value.toFixed(0) : value.toPrecision(3)) + names[i];
};
const rate = value => value == null ? "–"
  : scaled(value < 0.05 ? 0 : value, 1000, ["", " k", " M", " G"]);
const size = value => value == null ? "–"
  : scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
const time = value => value == null ? "–"
  : value < 1e-3 ? scaled(value * 1e9, 1000, [" ns", " µs"])
  : value < 1 ? scaled(value * 1e3, 1000, [" ms"])
  : value < 120 ? scaled(value, 1e9, [" s"])
  : value < 7200 ? scaled(value / 60, 1e9, [" min"])
  : scaled(value / 3600, 1e9, [" h"]);

// ---- The last ten minutes -------------------------------------------------

const PLOTS = [
  { title: "Calls in a second", show: rate, of: ["calls", "served"],
    names: ["begun", "answered"] },
  { title: "Failures in a second", show: rate,
    of: ["failed_calls", "failed_answers"], names: ["begun", "answered"] },
  { title: "Bytes in a second", show: size, of: ["sent", "received"],
    names: ["sent", "received"] },
  { title: "How long calls took", show: time, of: ["p50", "p99"],
    names: ["p50", "p99"] },
];
let points = [], most = 300, bounds = [];

function make_plot(plot) {
  const figure = make("figure"), caption = make("figcaption");
  const name = make("b");
  name.textContent = plot.title;
  caption.append(name);
  plot.now = plot.names.map((_, i) => {
    const now = make("span", i > 0 ? "second" : "first");
    caption.append(now);
    return now;
  });
  plot.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  plot.svg.setAttribute("viewBox", "0 0 300 72");
  plot.svg.setAttribute("preserveAspectRatio", "none");
  plot.svg.setAttribute("role", "img");
  plot.paths = plot.of.map((_, i) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg",
      "path");
    if (i > 0) path.setAttribute("class", "second");
    plot.svg.append(path);
    return path;
  });
  figure.append(caption, plot.svg);
  by("plots").append(figure);
}

// Lines break where nothing was measured.
function line(name, top) {
  let text = "", pen = "M";
  points.forEach((point, i) => {
    const value = point[name];
    if (value == null) { pen = "M"; return; }
    const x = 300 * (i + most - points.length) / Math.max(most - 1, 1);
    text += pen + x.toFixed(1) + " " + (70 - 66 * value / top).toFixed(1);
    pen = "L";
  });
  return text;
}

function draw(plot) {
  let top = 0;
  for (const point of points)
    for (const name of plot.of) top = Math.max(top, point[name] || 0);
  plot.of.forEach((name, i) =>
    plot.paths[i].setAttribute("d", line(name, top || 1)));
  const last = points[points.length - 1] || {};
  const now = plot.of.map((name, i) => plot.names[i] + " "
    + plot.show(last[name]));
  now.forEach((words, i) => put(plot.now[i], words));
  plot.svg.setAttribute("aria-label", plot.title + ": " + now.join(", ")
    + " now; at most " + plot.show(top) + " in the last ten minutes");
}

function keep(point) {
  points.push(point);
  if (points.length > most) points.shift();
  PLOTS.forEach(draw);
}

// ---- Agents ---------------------------------------------------------------

const text = (a, b) => a < b ? -1 : a > b ? 1 : 0;
const COLUMNS = [
  { title: "Agent", of: a => a.name, kind: "text" },
  { title: "Scope", of: a => a.scope, kind: "text" },
  { title: "State", of: a => a.state, kind: "text" },
  { title: "Answered/s", of: a => a.served, show: rate },
  { title: "Calls/s", of: a => a.calls, show: rate },
  { title: "Failed/s", of: a => a.failed_calls == null ? null
    : a.failed_calls + a.failed_answers, show: rate },
  { title: "p50", of: a => a.p50, show: time },
  { title: "p99", of: a => a.p99, show: time },
  { title: "Sent/s", of: a => a.sent, show: size },
  { title: "Received/s", of: a => a.received, show: size },
  { title: "Sessions", of: a => a.sessions, show: rate },
  { title: "Oldest call", of: a => a.oldest, show: time },
  { title: "Host", of: a => a.host, kind: "text" },
  { title: "Process", of: a => a.pid, show: pid => String(pid) },
];
const rows = new Map();
let agents = [], column = 0, down = false, chosen = null, method = null;
const key_of = a => a.scope + "/" + a.name + "@" + a.host;

function make_heads() {
  COLUMNS.forEach((each, i) => {
    const head = make("th", each.kind), button = make("button");
    head.scope = "col";
    button.type = "button";
    button.textContent = each.title;
    button.addEventListener("click", () => {
      down = column === i ? !down : each.kind !== "text";
      column = i;
      order();
    });
    head.append(button);
    by("heads").append(head);
    each.head = head;
  });
}

function make_row(key) {
  const row = make("tr"), button = make("button");
  row.cells_of = COLUMNS.map((each, i) => {
    const cell = make("td", i === 0 ? "text name" : each.kind);
    row.append(cell);
    return cell;
  });
  button.type = "button";
  row.cells_of[0].append(button);
  row.button = button;
  button.addEventListener("click", () => choose(row.agent, true));
  rows.set(key, row);
  return row;
}

function fill(row, agent) {
  row.agent = agent;
  COLUMNS.forEach((each, i) => {
    const value = each.of(agent);
    const shown = each.show ? each.show(value) : value;
    if (i === 0) { put(row.button, shown); row.cells_of[0].title = shown; }
    else put(row.cells_of[i], shown);
  });
  row.cells_of[2].className = "text " + agent.state;
  row.cells_of[5].className = COLUMNS[5].of(agent) > 0 ? "failing" : "";
}

// Puts rows where they belong, and moves only those that are elsewhere.
function order() {
  const of = COLUMNS[column].of, is_text = COLUMNS[column].kind === "text";
  const only = by("only").value.toLowerCase();
  COLUMNS.forEach((each, i) => each.head.setAttribute("aria-sort",
    i !== column ? "none" : down ? "descending" : "ascending"));
  const list = agents.filter(a =>
    (key_of(a) + " " + a.state).toLowerCase().includes(only));
  list.sort((a, b) => (down ? -1 : 1) * (is_text ? text(of(a), of(b))
    : (of(a) ?? -1) - (of(b) ?? -1)) || text(key_of(a), key_of(b)));
  const body = by("rows");
  const shown = new Set(list.map(key_of));
  for (const [key, row] of rows) if (!shown.has(key)) row.remove();
  list.forEach((agent, i) => {
    const row = rows.get(key_of(agent));
    if (body.children[i] !== row) body.insertBefore(row, body.children[i]);
  });
}

function show(state) {
  agents = state.agents;
  const there = new Set();
  for (const agent of agents) {
    const key = key_of(agent);
    there.add(key);
    fill(rows.get(key) || make_row(key), agent);
  }
  for (const [key, row] of rows)
    if (!there.has(key)) { row.remove(); rows.delete(key); }
  order();
  const bad = agents.filter(a =>
    ["dead", "stopped", "busy"].includes(a.state)).length;
  put(by("count"), agents.length + (agents.length === 1 ? " agent" : " agents")
    + (bad ? ", " + bad + " dead, stopped or busy" : ""));
  keep(state.point);
  if (chosen) ask();
}

// ---- One agent ------------------------------------------------------------

function choose(agent, moves) {
  if (chosen) rows.get(key_of(chosen))?.removeAttribute("aria-current");
  chosen = agent;
  method = null;
  by("one").hidden = !agent;
  by("histogram").hidden = true;
  if (!agent) return;
  rows.get(key_of(agent))?.setAttribute("aria-current", "true");
  put(by("title"), agent.name + " in scope " + agent.scope + ", on "
    + agent.host);
  by("methods").replaceChildren();
  by("links").replaceChildren();
  ask();
  if (moves) { by("one").focus(); by("one").scrollIntoView(); }
}

let asking = false;
async function ask() {
  if (asking) return;
  asking = true;
  const of = chosen;
  try {
    const answer = await fetch("agent?" + new URLSearchParams(
      { scope: of.scope, name: of.name, host: of.host }));
    if (answer.ok && chosen && key_of(chosen) === key_of(of))
      detail(await answer.json());
  } catch (error) { /* the stream tells that the server is gone */ }
  asking = false;
  if (chosen && key_of(chosen) !== key_of(of)) ask();
}

// Fills a table's body with rows of texts; f(row, i) does the rest.
function table(body, list, f) {
  while (body.children.length > list.length) body.lastChild.remove();
  list.forEach((cells, i) => {
    let row = body.children[i];
    if (!row) {
      row = make("tr");
      cells.forEach(() => row.append(make("td")));
      body.append(row);
    }
    cells.forEach((cell, k) => {
      if (typeof cell === "string") put(row.children[k], cell);
    });
    f(row, i);
  });
}

const name_of = m => (m.service + "." + m.method).replace(/^\.$/, "others");
const failures_of = m => Object.keys(m.failures).sort().map(kind =>
  kind + " " + rate(m.failures[kind])).join(", ");

function detail(one) {
  const methods = one.methods.slice().sort((a, b) => b.calls - a.calls);
  table(by("methods"), methods.map(m => [null, m.side, rate(m.calls),
    failures_of(m), time(m.p50), time(m.p99),
    time(m.longest || null), size(m.sent), size(m.received)]),
  (row, i) => {
    const m = methods[i], cell = row.children[0];
    let button = cell.firstChild;
    if (!button) {
      button = make("button");
      button.type = "button";
      button.addEventListener("click", () => histogram(row.method, true));
      cell.append(button);
      cell.className = row.children[1].className = "text";
      row.children[3].className = "text failing";
    }
    row.method = m;
    put(button, name_of(m));
    if (method && m.side === method.side && name_of(m) === name_of(method))
      histogram(m, false);
  });
  put(by("links-title"), one.reported
    ? "Links: an agent that reports tells of none" : "Links");
  table(by("links"), one.links.map(link => [
    link.peer || link.address || "unknown", link.transport, link.state,
    size(link.sent), size(link.received), link.reason]),
  row => [0, 1, 2, 5].forEach(k => row.children[k].className = "text"));
}

function histogram(m, moves) {
  method = m;
  by("histogram").hidden = false;
  put(by("histogram-title"), "How long calls of " + name_of(m) + " took ("
    + m.side + ")");
  const all = m.bins.reduce((a, b) => a + b, 0) || 1;
  const first = m.bins.findIndex(n => n > 0);
  const last = m.bins.findLastIndex(n => n > 0);
  const list = m.bins.map((n, i) => ({ n, i })).filter(each =>
    first >= 0 && each.i >= first - 1 && each.i <= last + 1);
  table(by("bins"), list.map(({ n, i }) => [
    i < bounds.length ? time(bounds[i]) : "longer", rate(n),
    (100 * n / all).toFixed(1) + " %", null]),
  (row, k) => {
    const cell = row.children[3];
    if (!cell.firstChild) {
      cell.className = "bar";
      cell.setAttribute("aria-hidden", "true");
      cell.append(make("span"));
    }
    cell.firstChild.style.width = 100 * list[k].n / all + "%";
  });
  if (moves) by("histogram").scrollIntoView({ block: "nearest" });
}

// ---- Events ---------------------------------------------------------------

function say(words, lost) {
  put(by("said"), words);
  by("said").className = lost ? "lost" : "";
}

function listen() {
  const source = new EventSource("events");
  source.addEventListener("history", event => {
    const told = JSON.parse(event.data);
    points = told.points;
    most = Math.round(told.kept / told.step);
    bounds = told.bounds;
    points.pop();               // the state that follows has it, too
    say("up to date", false);
  });
  source.addEventListener("state", event => show(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    say("the server does not answer; trying again", true);
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  });
}

PLOTS.forEach(make_plot);
make_heads();
by("only").addEventListener("input", order);
by("close").addEventListener("click", () => {
  const row = chosen && rows.get(key_of(chosen));
  choose(null);
  row?.button.focus();
});
listen();
</script>
</body>
</html>
]==]

--- The document, with a nonce that its policy names.
return function(nonce) return (TEXT:gsub("@NONCE@", nonce)) end
