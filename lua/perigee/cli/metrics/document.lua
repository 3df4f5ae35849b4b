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
  --mark: #0b5cb8; --good: #18794e; --warn: #8f5200; --bad: #c62a2f;
  --panel: #ffffff; --pick: #e3eefb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #111315; --fore: #eceef0; --dim: #a0a8b0; --line: #33383d;
    --mark: #70b8ff; --good: #3dd68c; --warn: #ffb44d; --bad: #ff8589;
    --panel: #191c1f; --pick: #1c2c3e;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--fore);
  font: 14px/1.45 system-ui, sans-serif; }
header, main { max-width: 1300px; margin: 0 auto; padding: 12px 16px; }
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
.table { overflow: auto; overflow-anchor: none; max-height: 70vh;
  border: 1px solid var(--line); border-radius: 6px;
  background: var(--panel); }
table { border-collapse: separate; border-spacing: 0; width: 100%; }
caption { text-align: left; padding: 8px 10px; color: var(--dim); }
/* Widths do not depend on what is in the cells, so a change of one leaves the
 * others where they are. */
.window { table-layout: fixed; contain: content; }
.window th, .window td { overflow: hidden; text-overflow: ellipsis; }
.window tbody tr:not(.gap) { height: 29px; }
#links-table tbody tr:not(.gap) { height: 48px; }
thead th { position: sticky; top: 0; background: var(--panel); }
th, td { padding: 4px 10px; text-align: right; white-space: nowrap;
  border-top: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th { font-weight: 600; } tbody th { font-weight: 400; }
.text { text-align: left; }
.window { min-width: 1160px; } .window th, .window td { padding: 4px 6px; }
.window thead th { white-space: normal; font-size: 13px; }
.window .gap td { padding: 0; border: 0; }
.window .why { white-space: normal; line-height: 1.3; }
tr[aria-current] { background: var(--pick); }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0;
  cursor: pointer; text-align: inherit; }
tbody button, #close { color: var(--mark); text-decoration: underline; }
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
    autocomplete="off"></label> <span id="found" role="status"></span></p>
  <div class="table" tabindex="0" role="region" aria-labelledby="agents">
    <table class="window"><caption>Each agent of this host now; a name shows its
      methods and sessions, a heading sorts</caption>
      <thead><tr id="heads"></tr></thead><tbody id="rows"></tbody></table>
  </div>
  <h2 id="all-links">Links</h2>
  <div class="table" tabindex="0" role="region" aria-labelledby="all-links">
    <table class="window" id="links-table"><caption>Who has dialed whom, over
      what, and why over nothing better<span id="more"></span></caption>
      <thead><tr id="link-heads"></tr></thead>
      <tbody id="link-rows"></tbody></table>
  </div>
  <section id="one" hidden tabindex="-1" aria-labelledby="title">
    <h2 id="title"></h2>
    <p><button id="close" type="button">Close</button></p>
    <h3 id="methods-title">Methods, since it began</h3>
    <div class="table" tabindex="0" role="region"
      aria-labelledby="methods-title"><table>
      <caption>A name shows how long its calls took</caption>
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
        <caption id="summary"></caption>
        <thead><tr><th scope="col">Up to</th><th scope="col">Calls</th>
          <th scope="col">Share</th><td class="bar" aria-hidden="true"></td>
        </tr></thead>
        <tbody id="bins"></tbody></table></div>
    </div>
    <h3 id="links-title">Sessions</h3>
    <div class="table" tabindex="0" role="region"
      aria-labelledby="links-title"><table>
      <caption>Sessions of this agent, with those that have ended</caption>
      <thead><tr><th class="text" scope="col">Peer</th>
        <th class="text" scope="col">Over</th>
        <th class="text" scope="col">State</th><th scope="col">Sent</th>
        <th scope="col">Received</th>
        <th class="text" scope="col">Why it ended, or is over nothing
          better</th></tr></thead>
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

// ---- Tables of many rows --------------------------------------------------

// Only the rows that are in sight, and a few around them, are there: rows of
// gaps stand for the others. All rows are equally high.
const AROUND = 8;
const text = (a, b) => a < b ? -1 : a > b ? 1 : 0;

function make_gap() {
  const row = make("tr", "gap"), cell = make("td");
  row.setAttribute("aria-hidden", "true");
  row.append(cell);
  row.cell = cell;
  return row;
}

class Rows {
  // columns: of each its title, of(item), show(value), kind, width; key(item);
  // words(item): what a filter looks at; note(row, item): a row was filled.
  constructor(heads, body, columns, column, down, more) {
    Object.assign(this, { body, columns, column, down, all: [], list: [],
                          shown: new Map(), height: 0, key: more.key,
                          words: more.words, note: more.note,
                          click: more.click });
    this.region = body.closest(".table");
    this.table = body.closest("table");
    this.above = make_gap();
    this.below = make_gap();
    body.append(this.above, this.below);
    columns.forEach((each, i) => this.make_head(heads, each, i));
    this.region.addEventListener("scroll", () => this.render(true),
                                 { passive: true });
    addEventListener("resize", () => this.render());
  }

  make_head(heads, each, i) {
    const head = make("th", each.kind), button = make("button");
    head.scope = "col";
    head.style.width = each.width;
    button.type = "button";
    button.textContent = each.title;
    button.addEventListener("click", () => {
      this.down = this.column === i ? !this.down : each.kind !== "text";
      this.column = i;
      this.arrange();
    });
    head.append(button);
    heads.append(head);
    each.head = head;
  }

  // A row is made for one item, and is its own for as long as it is shown.
  make_row() {
    const row = make("tr");
    row.texts = [];
    row.cells_of = this.columns.map((each, i) => {
      const cell = make(i ? "td" : "th", each.kind);
      if (!i) cell.scope = "row";
      row.append(cell);
      return cell;
    });
    if (this.click) {
      row.button = make("button");
      row.button.type = "button";
      row.button.addEventListener("click", () => this.click(row.item));
      row.cells_of[0].append(row.button);
    }
    return row;
  }

  fill(row, item, i) {
    row.item = item;
    if (row.place !== i) {
      row.place = i;
      row.setAttribute("aria-rowindex", i + 2);
    }
    this.columns.forEach((each, k) => {
      const value = each.of(item);
      const words = each.show ? each.show(value) : value;
      if (row.texts[k] === words) return;
      row.texts[k] = words;
      const cell = row.cells_of[k];
      (k || !row.button ? cell : row.button).textContent = words;
      if (each.kind) cell.title = words;
    });
    if (this.note) this.note(row, item);
  }

  set(all) {
    this.all = all;
    this.arrange();
  }

  compare() {
    const { of, kind } = this.columns[this.column];
    const sign = this.down ? -1 : 1;
    return kind ? (a, b) => sign * text(of(a), of(b)) || text(a.key, b.key)
      : (a, b) => sign * ((of(a) ?? -1) - (of(b) ?? -1)) || text(a.key, b.key);
  }

  focused() {
    const row = document.activeElement?.closest("tr");
    return row?.parentNode === this.body ? row : null;
  }

  // A row that has the focus stays where it is seen: the others move.
  arrange() {
    const row = this.focused(), before = row?.place;
    const only = by("only").value.toLowerCase();
    for (const item of this.all) item.key = this.key(item);
    this.list = this.all.filter(item =>
      this.words(item).toLowerCase().includes(only));
    this.list.sort(this.compare());
    this.columns.forEach((each, i) => each.head.setAttribute("aria-sort",
      i !== this.column ? "none" : this.down ? "descending" : "ascending"));
    this.table.setAttribute("aria-rowcount", this.list.length + 1);
    if (row) {
      const now = this.list.findIndex(item => item.key === row.item.key);
      if (now >= 0) this.scroll_by((now - before) * this.height);
    }
    this.render();
  }

  // There has to be room before it can be scrolled to.
  scroll_by(pixels) {
    if (!pixels) return;
    this.above.cell.style.height = this.list.length * this.height + "px";
    this.region.scrollTop += pixels;
  }

  window() {
    const high = this.height || 29;
    const first = Math.floor(this.region.scrollTop / high) - AROUND;
    const count = Math.ceil(this.region.clientHeight / high) + 2 * AROUND;
    const from = Math.max(Math.min(first, this.list.length - count), 0);
    return [from, Math.min(from + count, this.list.length)];
  }

  // Puts the rows of the window where they belong. Rows that are there stay, as
  // does the one that has the focus, which it would lose by being moved.
  render(scrolled) {
    const [from, to] = this.window();
    if (scrolled && from === this.from && to === this.to) return;
    const there = new Map();
    for (let i = from; i < to; i++) there.set(this.list[i].key, i);
    const had = this.focused();
    for (const [key, row] of this.shown) {
      if (there.has(key)) continue;
      row.remove();
      this.shown.delete(key);
    }
    let next = this.above.nextSibling;
    for (const [key, i] of there) {
      let row = this.shown.get(key);
      if (!row) this.shown.set(key, row = this.make_row());
      this.fill(row, this.list[i], i);
      if (row === had) next = this.clear(next, row);
      if (row === next) next = next.nextSibling;
      else this.body.insertBefore(row, next);
    }
    this.from = from;
    this.to = to;
    this.gaps(from, to);
    if (had && !had.isConnected) this.region.focus({ preventScroll: true });
  }

  // Moves the rows from `next` on that stand before `row` to the end.
  clear(next, row) {
    while (next !== row) {
      const after = next.nextSibling;
      this.body.insertBefore(next, this.below);
      next = after;
    }
    return row;
  }

  gaps(from, to) {
    const row = this.above.nextSibling;
    if (!this.height && row !== this.below)
      this.height = row.getBoundingClientRect().height;
    this.above.cell.style.height = from * this.height + "px";
    this.below.cell.style.height = (this.list.length - to) * this.height + "px";
  }

  // Brings the row of a key in sight, and the focus to it.
  focus(key) {
    const i = this.list.findIndex(item => item.key === key);
    if (i < 0) return;
    if (i < this.from + AROUND || i >= this.to - AROUND)
      this.region.scrollTop = i * this.height;
    this.render();
    this.shown.get(key)?.button.focus();
  }
}

// ---- Agents ---------------------------------------------------------------

const COLUMNS = [
  { title: "Agent", of: a => a.name, kind: "text", width: "13%" },
  { title: "Scope", of: a => a.scope, kind: "text", width: "7%" },
  { title: "State", of: a => a.state, kind: "text", width: "6%" },
  { title: "Served/s", of: a => a.served, show: rate },
  { title: "Calls/s", of: a => a.calls, show: rate },
  { title: "Failed/s", of: a => a.failed_calls == null ? null
    : a.failed_calls + a.failed_answers, show: rate },
  { title: "p50", of: a => a.p50, show: time, width: "5.5%" },
  { title: "p99", of: a => a.p99, show: time, width: "5.5%" },
  { title: "Sent/s", of: a => a.sent, show: size },
  { title: "Received/s", of: a => a.received, show: size, width: "8%" },
  { title: "Sessions", of: a => a.sessions, show: rate },
  { title: "Oldest call", of: a => a.oldest, show: time },
  { title: "Host", of: a => a.host, kind: "text", width: "9%" },
  { title: "Process", of: a => a.pid, show: pid => String(pid) },
];
let chosen = null, method = null;
const key_of = a => a.scope + "/" + a.name + "@" + a.host;

function mark(row, agent) {
  const state = "text " + agent.state;
  const failing = COLUMNS[5].of(agent) > 0 ? "failing" : "";
  if (row.cells_of[2].className !== state) row.cells_of[2].className = state;
  if (row.cells_of[5].className !== failing)
    row.cells_of[5].className = failing;
  const current = chosen && key_of(chosen) === agent.key;
  if (row.hasAttribute("aria-current") === !!current) return;
  if (current) row.setAttribute("aria-current", "true");
  else row.removeAttribute("aria-current");
}

const agents = new Rows(by("heads"), by("rows"), COLUMNS, 0, false, {
  key: key_of, words: a => key_of(a) + " " + a.state,
  note: mark, click: agent => choose(agent, true) });

function show(state) {
  agents.set(state.agents);
  const bad = agents.all.filter(a =>
    ["dead", "stopped", "busy"].includes(a.state)).length;
  put(by("count"), agents.all.length
    + (agents.all.length === 1 ? " agent" : " agents")
    + (bad ? ", " + bad + " dead, stopped or busy" : ""));
  keep(state.point);
  if (document.hidden) return;
  ask_links();
  if (chosen) ask();
}

// ---- Links ----------------------------------------------------------------

const end_of = (link, side) => link[side + "_here"]
  ? link[side + "_scope"] + "/" + link[side] : link[side] + " (elsewhere)";
const LINKS = [
  { title: "From", of: l => end_of(l, "from"), kind: "text", width: "15%" },
  { title: "To", of: l => end_of(l, "to"), kind: "text", width: "15%" },
  { title: "Over", of: l => l.transport, kind: "text", width: "5%" },
  { title: "Sessions", of: l => l.sessions, show: rate },
  { title: "Lanes beside", of: l => l.lanes, show: rate },
  { title: "Calls/s", of: l => l.calls, show: rate },
  { title: "Served/s", of: l => l.answered, show: rate },
  { title: "Sent/s", of: l => l.sent, show: size },
  { title: "Received/s", of: l => l.received, show: size },
  { title: "Why not better", of: l => l.why, kind: "text why", width: "25%" },
];
const links = new Rows(by("link-heads"), by("link-rows"), LINKS, 7, true, {
  key: l => [l.from_scope, l.from, l.to_scope, l.to, l.transport].join("/"),
  words: l => end_of(l, "from") + " " + end_of(l, "to") + " " + l.transport });

let asking_links = false;
async function ask_links() {
  if (asking_links) return;
  asking_links = true;
  try {
    const answer = await fetch("links");
    if (answer.ok) {
      const told = await answer.json();
      links.set(told.links);
      put(by("more"), (told.more ? "; " + told.more + " more are not shown"
        : "") + (told.silent ? "; " + told.silent + " agents report to this "
        + "server, and tell of none" : ""));
    }
  } catch (error) { /* the stream tells that the server is gone */ }
  asking_links = false;
}

// ---- One agent ------------------------------------------------------------

function choose(agent, moves) {
  chosen = agent;
  method = null;
  agents.render();
  by("one").hidden = !agent;
  by("histogram").hidden = true;
  if (!agent) return;
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
      cells.forEach((_, k) => row.append(make(k ? "td" : "th")));
      row.firstChild.scope = "row";
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
    ? "Sessions: an agent that reports tells of none" : "Sessions");
  table(by("links"), one.links.map(link => [
    link.peer || link.address || "unknown", link.transport, link.state,
    size(link.sent), size(link.received), link.reason || link.not_better]),
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
  put(by("summary"), m.p50 == null ? "None was measured" : "A half within "
    + time(m.p50) + ", 99 of 100 within " + time(m.p99) + ", the longest "
    + time(m.longest || null));
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
by("only").addEventListener("input", () => {
  agents.arrange();
  links.arrange();
  put(by("found"), agents.list.length + " of " + agents.all.length);
});
by("close").addEventListener("click", () => {
  const key = chosen && key_of(chosen);
  choose(null);
  if (key) agents.focus(key);
});
listen();
</script>
</body>
</html>
]==]

--- The document, with a nonce that its policy names.
return function(nonce) return (TEXT:gsub("@NONCE@", nonce)) end
