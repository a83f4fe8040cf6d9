// Draws a view (agileml/runs/report/view.py), and each newer one that the server of `proteus watch` sends.
const $ = id => document.getElementById(id);
const PALETTE = ["#3b82c4", "#e8842c", "#3f9e57", "#cf4a43", "#8e6bbf", "#96684f", "#d66fb2", "#8a8f98", "#a9a53a", "#2ea8b8"];
const STAGES = { 1: "#9db8d9", 2: "#e8c58f", 3: "#9fcfab" };
const SPENT = { compute: ["compute", "#2e8b57"], pull: ["wait for parameters", "#3b82c4"], push: ["wait for the push", "#8fb6e0"],
  fold: ["add up and apply", "#e8a35e"], frozen: ["frozen by a change", "#c0392b"] };
let inks = {}, place = 0;
const ink = name => inks[name] ??= name[0] === "#" ? name : getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const newest = points => points.length ? points[points.length - 1] : null;

function short(x) {
  if (x === null || x === undefined) return "-";
  const a = Math.abs(x);
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (a >= size) return `${+(x / (letter === "k" ? 1e3 : size)).toPrecision(3)} ${letter}`;
  return a >= 100 || Number.isInteger(x) ? String(Math.round(x)) : String(+x.toPrecision(3));
}
function seconds(s) {
  if (s === null || s === undefined) return "-";
  for (const [size, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) if (Math.abs(s) >= size || size === 1e-6) return `${+(s / size).toPrecision(3)} ${unit}`;
}
function clock(s) {
  s = Math.max(0, Math.round(s));
  const d = Math.floor(s / 86400), h = Math.floor(s % 86400 / 3600), m = Math.floor(s % 3600 / 60);
  if (d) return `${d} d ${h} h`;
  return h ? `${h}:${String(m).padStart(2, "0")} h` : m ? `${m}:${String(s % 60).padStart(2, "0")} min` : `${s} s`;
}
const moment = (s, view) => view.t_s < 600 ? `${s.toFixed(3)} s` : clock(s);
const usd = x => x === null ? "-" : `$${x.toFixed(4)}`;
const percent = share => `${(100 * share).toFixed(1)} %`;

// -- cards, tables and bars ------------------------------------------------------------------------------------

function make(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text; made.className = className;
  return made;
}
function card(id, title, content, wide) {
  let part = $(id + "-card");
  if (!part) {
    part = make("section", "", wide ? "card wide" : "card"); part.id = id + "-card";
    const head = make("h2", title), now = make("span"); now.id = id + "-now"; head.append(now);
    const inner = make(content); inner.id = id;
    const box = make("div", "", content === "table" || wide ? "scroll" : ""), key = make("div", "", "key");
    box.append(inner); key.id = id + "-key"; part.append(head, box, key); $("cards").append(part);
  }
  part.style.order = place++; // also of a card that comes late
  return part;
}
function rows(table, lines, heads) {
  const body = make("tbody");
  if (heads) { const line = body.insertRow(); for (const head of heads) line.append(make("th", head)); }
  for (const cells of lines) {
    const line = body.insertRow();
    for (const cell of cells) { const place = line.insertCell(); if (cell instanceof Node) place.append(cell); else place.textContent = cell; }
  }
  table.replaceChildren(body);
}
function table(id, title, lines, { heads, note = "", now = "", wide } = {}) {
  card(id, title, "table", wide).hidden = !lines.length;
  if (!lines.length) return;
  rows($(id), lines, heads);
  $(id + "-key").textContent = note; $(id + "-now").textContent = now;
}
function bar(parts) {
  const made = make("div", "", "bar");
  for (const [share, color, title] of parts) {
    const part = make("span"); part.style.width = `${100 * share}%`; part.style.background = color; part.title = title; made.append(part);
  }
  return made;
}
function legend(id, labels) {
  const shown = labels.slice(0, 14).flatMap(([text, color]) => { const spot = make("i"); spot.style.background = color; return [spot, text]; });
  $(id + "-key").replaceChildren(...shown);
}

// -- curves ----------------------------------------------------------------------------------------------------

function fit(canvas, height) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, pixels = Math.round(width * scale);
  if (canvas.width !== pixels) canvas.width = pixels;
  if (canvas.height !== Math.round(height * scale)) { canvas.height = Math.round(height * scale); canvas.style.height = height + "px"; }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif"; pen.setLineDash([]); pen.globalAlpha = 1;
  return [pen, width];
}
// A line: {points, label, color, column of x (0: seconds), column of y, dash, step, dots, area: down to this y column}.
// The options: now, note, unit (of y), format (of x), zero, top, logarithmic, begin, end, bands, rules, extra (drawn last).
function plot(id, title, given, o = {}) {
  const lines = given.filter(line => line.points.length > (line.least ?? 1)), part = card(id, title, "canvas");
  part.hidden = !lines.length && !(o.always && last.state === "running");
  if (part.hidden) return;
  const height = 170, [pen, width] = fit($(id), height), left = 46, bottom = height - 16;
  $(id + "-now").textContent = o.now ?? "";
  if (!lines.length) { pen.fillStyle = ink("--soft"); pen.textAlign = "left"; pen.fillText("not yet", left, 80); return; }
  let low = Infinity, high = -Infinity, begin = o.begin ?? Infinity, end = o.end ?? -Infinity;
  for (const { points, x = 0, y = 1 } of lines) for (const point of points) {
    if (point[y] === null || point[y] === undefined) continue;
    low = Math.min(low, point[y]); high = Math.max(high, point[y]); begin = Math.min(begin, point[x]); end = Math.max(end, point[x]);
  }
  for (const value of o.values ?? []) { low = Math.min(low, value); high = Math.max(high, value); }
  if (o.zero) low = Math.min(0, low);
  if (o.top) high = o.top;
  const logarithmic = o.logarithmic ? low > 0 : low > 0 && high / low > 50, scaled = v => logarithmic ? Math.log(v) : v;
  if (!logarithmic && low > 0 && low < high / 2) low = 0;
  const middle = Math.abs(high + low) / 2;
  if (high - low <= 1e-3 * middle) { low -= 0.1 * middle; high += 0.1 * middle; } // a flat line, not its rounding
  if (high === low) high = low + 1;
  const X = t => left + (t - begin) / Math.max(1e-9, end - begin) * (width - left - 2);
  const Y = v => bottom - (scaled(v) - scaled(low)) / (scaled(high) - scaled(low)) * (bottom - 8);
  pen.globalAlpha = 0.25;
  for (const [from, to, color] of o.bands ?? []) { pen.fillStyle = color; pen.fillRect(X(Math.max(begin, from)), 8, X(to) - X(Math.max(begin, from)), bottom - 8); }
  pen.globalAlpha = 0.6; pen.setLineDash([3, 3]);
  for (const [t, color] of o.rules ?? []) if (t >= begin) { pen.strokeStyle = ink(color); pen.beginPath(); pen.moveTo(X(t), 8); pen.lineTo(X(t), bottom); pen.stroke(); }
  pen.globalAlpha = 1; pen.setLineDash([]); pen.strokeStyle = ink("--line"); pen.lineWidth = 1; pen.fillStyle = ink("--soft"); pen.textAlign = "right";
  for (const v of [low, logarithmic ? Math.sqrt(low * high) : (low + high) / 2, high]) {
    pen.beginPath(); pen.moveTo(left, Y(v)); pen.lineTo(width, Y(v)); pen.stroke(); pen.fillText((o.unit ?? short)(v), left - 4, Y(v) + 4);
  }
  for (const line of lines) draw_line(pen, line, X, Y);
  o.extra?.(pen, X, Y);
  const format = o.format ?? clock;
  pen.fillStyle = ink("--soft"); pen.textAlign = "left"; pen.fillText(format(begin), left, height - 3);
  pen.textAlign = "right"; pen.fillText(format(end), width, height - 3);
  const labels = [...lines.filter(line => line.label).map(line => [line.label, ink(line.color ?? "--blue")]), ...(o.labels ?? [])];
  if (o.note) $(id + "-key").textContent = o.note; else legend(id, labels);
}
function draw_line(pen, { points, x = 0, y = 1, color = "--blue", dash, step, dots, area, wide }, X, Y) {
  pen.strokeStyle = pen.fillStyle = ink(color); pen.lineWidth = wide ?? 1.6; pen.setLineDash(dash ?? []);
  if (dots) { for (const point of points) pen.fillRect(X(point[x]) - 1, Y(point[y]) - 1, 2, 2); return; }
  const path = []; // `step`: "after", a value holds until the next point, or "before"
  points.forEach((point, i) => {
    if (point[y] === null) return;
    const before = path.length && points[i - 1];
    if (before && step === "after") path.push([X(point[x]), path[path.length - 1][1], before]);
    if (before && step === "before") path.push([path[path.length - 1][0], Y(point[y]), point]);
    path.push([X(point[x]), Y(point[y]), point]);
  });
  pen.beginPath(); path.forEach(([h, v], i) => i ? pen.lineTo(h, v) : pen.moveTo(h, v));
  if (area === undefined) pen.stroke();
  else { for (const [h, , point] of path.reverse()) pen.lineTo(h, Y(area ? point[area] : 0)); pen.fill(); }
  pen.setLineDash([]);
}

// -- the parts of the page -------------------------------------------------------------------------------------

const stage_bands = view => view.members.map(([t, stage], i) => [t, i + 1 < view.members.length ? view.members[i + 1][0] : view.t_s, STAGES[stage]]);
function happenings(view) {
  const found = view.restarts.map(t => [t, "#8e6bbf"]), first = view.members.length ? view.members[0][0] : Infinity;
  for (const [, , from, to, , marks, sudden] of view.lanes.slice(-60)) {
    if (from > first) found.push([from, "--green"]);
    for (const [t, what] of marks) if (what === "notice") found.push([t, "--orange"]);
    if (sudden) found.push([to, "--red"]);
  }
  return found;
}
function lanes(view) {
  const all = view.lanes, named = all.length <= 40, row = all.length > 150 ? 3 : named ? 16 : 7;
  const part = card("lanes", "Machines", "canvas", true);
  part.hidden = !all.length;
  if (part.hidden) return;
  if (!$("machines")) {
    const details = make("details"), box = make("div", "", "scroll"), list = make("table");
    list.id = "machines"; box.append(list); details.append(make("summary", "one row for each machine"), box); part.append(details);
    $("lanes-key").textContent = "blue: reliable, orange: transient; the strip on top: stage 1 blue, 2 yellow, 3 green; \u25be notice; \u2715 gone without leaving; "
      + "dots: the head started again; end of a bar: left";
  }
  const left = named ? 46 : 4, top = 12, height = top + all.length * row + 18, [pen, width] = fit($("lanes"), height);
  const end = Math.max(view.t_s, 1e-3), X = t => left + t / end * (width - left - 2);
  for (const [from, to, color] of stage_bands(view)) { pen.fillStyle = color; pen.fillRect(X(from), 0, Math.max(1, X(to) - X(from)), 8); }
  all.forEach(([name, tier, from, to, , marks, sudden], i) => {
    const y = top + i * row, h = Math.max(2, row - 3), stop = to === null ? end : to;
    pen.fillStyle = ink(tier === "reliable" ? "--blue" : "--orange");
    pen.fillRect(X(from), y, Math.max(1, X(stop) - X(from)), h);
    if (named) { pen.fillStyle = ink("--soft"); pen.textAlign = "right"; pen.fillText(name, left - 5, y + h - 2); }
    if (row < 7) return;
    pen.textAlign = "center";
    for (const [t, what] of marks) if (what === "notice") { pen.fillStyle = ink("--ink"); pen.fillText("\u25be", X(t), y + h); }
    if (sudden) { pen.fillStyle = ink("--red"); pen.fillText("\u2715", X(to), y + h); }
  });
  pen.strokeStyle = ink("--ink"); pen.setLineDash([2, 3]);
  for (const t of view.restarts) { pen.beginPath(); pen.moveTo(X(t), 0); pen.lineTo(X(t), height - 16); pen.stroke(); }
  pen.fillStyle = ink("--soft"); pen.textAlign = "left"; pen.fillText("0", left, height - 3);
  pen.textAlign = "right"; pen.fillText(clock(end), width, height - 3);
  $("lanes-now").textContent = `${all.filter(lane => lane[3] === null).length} of ${all.length}`;
  rows($("machines"), all.map(([name, tier, from, to, why]) => {
    const done = view.work[name];
    return [name, tier, moment(from, view), to === null ? "is here" : moment(to, view), why,
      ...(done ? [percent(done[0]), percent(done[1]), done[2] || ""] : ["", "", ""])];
  }), ["machine", "tier", "came", "went", "why", "its share of the newest work", "waiting", "units for others"]);
}
function market(view) {
  const names = Object.keys(view.prices), color = name => PALETTE[names.indexOf(name) % PALETTE.length];
  const held = points => [...points, [view.t_s, newest(points)[1]]];
  plot("prices", "Prices and bids, $ an instance hour", names.map(name => ({ points: held(view.prices[name]), label: name, color: color(name), step: "after", wide: 1 })), {
    logarithmic: true, now: "thin: price, thick: bid, \u2715: evicted", values: view.bids.map(bid => bid[3]).filter(bid => bid > 0),
    extra: (pen, X, Y) => {
      for (const [name, from, to, bid, ending] of view.bids.filter(each => each[3] > 0)) {
        pen.strokeStyle = color(name); pen.lineWidth = 3; pen.globalAlpha = 0.6;
        pen.beginPath(); pen.moveTo(X(from), Y(bid)); pen.lineTo(X(to ?? view.t_s), Y(bid)); pen.stroke(); pen.globalAlpha = 1;
        pen.textAlign = "center"; pen.fillStyle = ink(ending === "evicted" ? "--red" : "--soft");
        if (ending === "evicted" || ending === "terminated") pen.fillText(ending === "evicted" ? "\u2715" : "\u25aa", X(to), Y(bid) + 4);
      }
    } });
  table("market", "Market", view.market.map(([name, price, count, paid, bid]) => [name, usd(price), count || "-", usd(paid), usd(bid)]),
    { heads: ["market", "$ an hour now", "bought", "for", "bid"] });
  const named = curves => Object.entries(curves).map(([label, points], i) => ({ points, label, color: PALETTE[i % PALETTE.length], least: 0 }));
  plot("speeds", "Measured: speed", named(view.speeds), { zero: true });
  plot("costs", "Measured: what changes cost, market seconds", named(view.costs), { zero: true });
}
function work(view) {
  const { names, from_s, rows: told } = view.shares, color = i => PALETTE[i % PALETTE.length];
  const stacks = told.map(([t, units]) => { let sum = 0; return [t, ...units.map(share => sum += share)]; });
  const begun = points => points.length ? [[from_s, ...points[0].slice(1)], ...points] : [];
  const shares = names.map((label, i) => ({ points: begun(stacks), label, color: color(i), y: i + 1, area: i, step: "before" }));
  const others = stacks.some(each => newest(each) < 99.9) ? [{ points: begun(stacks.map(([t, ...rest]) => [t, 100, newest(rest)])), label: "others", color: "--line", area: 2, step: "before" }] : [];
  plot("units", "Which machine computed the units, %", told.length > 1 ? [...others, ...shares] : [], { zero: true, top: 100 });
  const waits = names.map((label, i) => ({ points: begun(told.map(([t, , of]) => [t, of[i]])), label, color: color(i), step: "before", wide: 1 }));
  const together = { points: begun(view.waiting.map(([t, share]) => [t, 100 * share])), label: "all", color: "--ink", step: "before" };
  plot("waiting", "Waiting for others, % of their time", told.length > 1 ? [...waits, together] : [],
    { zero: true, now: told.length ? `${percent(view.waiting_share)} over the run` : "" });
  const spent = Object.entries(view.spent);
  table("spent", "Where the time of a clock went", spent.map(([name, parts]) => {
    const sum = Object.values(parts).reduce((a, b) => a + b, 0);
    return [name, bar(Object.keys(SPENT).filter(what => parts[what]).map(what => [parts[what] / sum, SPENT[what][1], `${SPENT[what][0]}: ${percent(parts[what] / sum)}`]))];
  }));
  if (spent.length) legend("spent", Object.values(SPENT));
  const sent = Object.entries(view.bytes).filter(each => each[1]), most = Math.max(...sent.map(each => each[1]));
  table("bytes", "Bytes sent, by purpose", sent.map(([what, count]) => [what, short(count) + "B", bar([[count / most, PALETTE[0], what]])]));
  table("help", "Which machine helped which", view.help.map(([helper, helped, units, share, spared]) => [helper, helped, units, percent(share), seconds(spared)]),
    { heads: ["helper", "helped", "units", "of its work", "spared there"] });
}
function clocks(view) {
  const number = x => String(Math.round(x)), bands = stage_bands(view), rules = happenings(view);
  plot("loss", "Loss", [{ points: view.loss }], { always: true, bands, rules, now: view.loss.length ? short(newest(view.loss)[1]) : "",
    note: bands.length ? "behind: stage 1 blue, 2 yellow, 3 green; dashed: a machine joins (green), has a notice (orange), is gone (red), the head starts again (violet)" : "" });
  Object.entries(view.metrics).forEach(([name, points], i) => plot("metric" + i, name, [{ points, color: "--green" }], { now: points.length ? short(newest(points)[1]) : "" }));
  const spend = newest(view.spend);
  plot("spend", "Dollars", [{ points: view.spend, label: "spent", least: 0 }, { points: spend?.length > 2 ? view.spend : [], label: "machines of the job's size on demand", y: 2, color: "--soft", dash: [5, 4], least: 0 }],
    { zero: true, now: spend ? "$" + spend[1].toFixed(2) + (spend.length > 2 ? ` of $${spend[2].toFixed(2)}` : "") : "" });
  plot("speed", "Clocks per second", [{ points: view.speed }], { always: true, zero: true, now: view.speed.length ? short(newest(view.speed)[1]) : "" });
  plot("items", "Items per second", [{ points: view.items }], { zero: true, now: view.items.length ? short(newest(view.items)[1]) : "" });
  plot("took", "Time per clock", [{ points: view.took, x: 2, dots: true }, { points: view.took, x: 2, wide: 0.4 }],
    { unit: seconds, format: number, logarithmic: true, now: view.median_s === null ? "" : `median ${seconds(view.median_s)}` });
  plot("clocks", "Loss over clocks", [{ points: view.loss, x: 2 }], { format: number });
}
function members(view) {
  const held = view.members.map(([t, , reliable, transient]) => [t, reliable, reliable + transient]);
  if (held.length) held.push([view.t_s, ...newest(held).slice(1)]);
  plot("members", "Machines by tier", [{ points: held, label: "reliable", area: 0, step: "after" }, { points: held, label: "transient", color: "--orange", y: 2, area: 1, step: "after" }],
    { zero: true, bands: stage_bands(view) });
}
function tiles(view) {
  const now = view.now, spend = newest(view.spend), left = view.clocks_per_s && view.state === "running" ? (now.clocks - now.clock) / view.clocks_per_s : null;
  let shown = view.tiles ?? [];
  if (!shown.length) {
    shown = [["clock", `${now.clock ?? 0} / ${now.clocks ?? "?"}`], ["time", clock(view.t_s)], ["left", left === null ? "-" : clock(left)],
      ["stage", now.stage || "-"], ["reliable + transient", `${now.reliable ?? 0} + ${now.transient ?? 0}`]];
    if (now.spent_usd != null) shown.push(["spent", "$" + now.spent_usd.toFixed(2)]);
    if (spend && now.clock && now.clocks) shown.push(["projected", "$" + (spend[1] * now.clocks / now.clock).toFixed(2)]);
  }
  const sent = Object.values(view.bytes).reduce((a, b) => a + b, 0);
  if (sent) shown = [...shown, ["sent", short(sent) + "B"]];
  $("tiles").replaceChildren(...shown.map(([name, value]) => { const tile = make("div", "", "tile"); tile.append(make("b", value), make("span", name)); return tile; }));
}
let last = null;
function draw(view) {
  const began = performance.now();
  last = view; inks = {}; place = 0;
  document.title = `${view.name} \u00b7 Proteus`;
  $("name").textContent = view.name; $("state").textContent = view.state; $("state").className = view.state;
  $("bar").max = view.now.clocks || 1; $("bar").value = view.now.clock || 0; $("bar").hidden = view.state !== "running";
  $("note").textContent = view.state === "running" ? view.now.note || "" : "";
  $("errors").replaceChildren(...view.errors.map(text => { const box = make("div", "", "card bad"); box.append(make("pre", text)); return box; }));
  tiles(view);
  lanes(view); clocks(view); market(view); members(view); work(view);
  table("plan", "Planned events", view.plan, { heads: ["clock", "event", "fired", "finished"] });
  const has_market = view.news.some(each => each[3]);
  table("news", "What happened, and why", view.news.map(([t, what, text, at]) => has_market ? [moment(t, view), at, what, text] : [moment(t, view), what, text]), { wide: true,
    heads: has_market ? ["after", "market time", "", ""] : undefined, now: view.told > view.news.length ? `the newest ${view.news.length} of ${view.told}` : String(view.told || "") });
  table("summary", "Summary", view.summary ?? [], { wide: true });
  card("config", "Config", "pre", true).hidden = !view.config;
  $("config").textContent = view.config ?? "";
  document.body.dataset.version = view.version;
  document.body.dataset.frameMs = (performance.now() - began).toFixed(1);
}
addEventListener("resize", () => last && draw(last));
if (FROZEN) draw(FROZEN);
else {
  const stream = new EventSource("events" + location.search);
  stream.onmessage = message => draw(JSON.parse(message.data));
  stream.onerror = () => { if (last && last.state === "running") { $("state").textContent = "no connection"; $("state").className = "lost"; } };
}
