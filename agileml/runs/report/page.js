// Draws a view (agileml/runs/report/view.py), and each newer one that the server of `proteus watch` sends.
const STAGES = { 1: "#9db8d9", 2: "#e8c58f", 3: "#9fcfab" };
const SPENT = {
  compute: ["compute", "#2e8b57"], pull: ["wait for parameters", "#3b82c4"], push: ["wait for the push", "#8fb6e0"],
  fold: ["add up and apply", "#e8a35e"], frozen: ["frozen by a change", "#c0392b"],
};
const LANES_KEY = "blue: reliable, orange: transient; the strip on top: stage 1 blue, 2 yellow, 3 green; \u25be notice; "
  + "\u2715 gone without leaving; dots: the head started again; end of a bar: left";
const LOSS_KEY = "behind: stage 1 blue, 2 yellow, 3 green; dashed: a machine joins (green), has a notice (orange), "
  + "is gone (red), the head starts again (violet)";
const AGAIN = "#8e6bbf"; // the head

const moment = (s, view) => view.t_s < 600 ? `${s.toFixed(3)} s` : clock(s);
const dollars = x => `$${x.toFixed(2)}`;
const stage_bands = ({ members, t_s }) => members.map(([from, stage], i) => [from, members[i + 1]?.[0] ?? t_s, STAGES[stage]]);

function happenings(view) { // moments of machines and heads, each with its colour
  const found = view.restarts.map(t => [t, AGAIN]), first = view.members[0]?.[0] ?? Infinity;
  for (const [, , from, to, , marks, is_sudden] of view.lanes.slice(-60)) {
    if (from > first) found.push([from, "--green"]);
    for (const [t, what] of marks) if (what === "notice") found.push([t, "--orange"]);
    if (is_sudden) found.push([to, "--red"]);
  }
  return found;
}
function lanes(view) {
  const all = view.lanes, is_named = all.length <= 40, row = all.length > 150 ? 3 : is_named ? 16 : 7;
  const part = card("lanes", "Machines", "canvas", true);
  part.hidden = !all.length;
  if (part.hidden) return;
  if (!$("machines")) {
    const list = make("table", "");
    list.id = "machines";
    part.append(make("details", "", make("summary", "", "one row for each machine"), make("div", "scroll", list)));
    $("lanes-key").textContent = LANES_KEY;
  }
  const left = is_named ? LEFT : 4, top = 12, height = top + all.length * row + 18, [pen, width] = fit($("lanes"), height);
  const end = Math.max(view.t_s, 1e-3), X = t => left + t / end * (width - left - 2);
  for (const [from, to, color] of stage_bands(view)) {
    pen.fillStyle = color;
    pen.fillRect(X(from), 0, Math.max(1, X(to) - X(from)), 8);
  }
  all.forEach(([name, tier, from, to, , marks, is_sudden], i) => {
    const y = top + i * row, h = Math.max(2, row - 3);
    pen.fillStyle = ink(tier === "reliable" ? "--blue" : "--orange");
    pen.fillRect(X(from), y, Math.max(1, X(to ?? end) - X(from)), h);
    if (is_named) write(pen, name, left - 5, y + h - 2, "right");
    if (row < 7) return;
    for (const [t, what] of marks) if (what === "notice") write(pen, "\u25be", X(t), y + h, "center", "--ink");
    if (is_sudden) write(pen, "\u2715", X(to), y + h, "center", "--red");
  });
  pen.setLineDash([2, 3]);
  for (const t of view.restarts) segment(pen, X(t), 0, X(t), height - 16, "--ink");
  write(pen, "0", left, height - 3, "left");
  write(pen, clock(end), width, height - 3, "right");
  $("lanes-now").textContent = `${all.filter(lane => lane[3] === null).length} of ${all.length}`;
  rows($("machines"), all.map(([name, tier, from, to, why]) => {
    const [share, waits, others] = view.work[name] ?? [];
    return [name, tier, moment(from, view), to === null ? "is here" : moment(to, view), why,
      ...(share === undefined ? ["", "", ""] : [percent(share), percent(waits), others || ""])];
  }), ["machine", "tier", "came", "went", "why", "its share of the newest work", "waiting", "units for others"]);
}
function clocks(view) {
  const bands = stage_bands(view), number = { format: x => String(Math.round(x)) }, always = view.state === "running";
  const of_clocks = { always, zero: true, now: last_of(view.speed) };
  plot("loss", "Loss", [{ points: view.loss }],
    { always, bands, rules: happenings(view), now: last_of(view.loss), note: bands.length ? LOSS_KEY : "" });
  for (const [name, points] of Object.entries(view.metrics))
    plot("metric " + name, name, [{ points, color: "--green" }], { now: last_of(points) });
  money(view);
  plot("speed", "Clocks per second", [{ points: view.speed }], of_clocks);
  plot("items", "Items per second", [{ points: view.items }], { zero: true, now: last_of(view.items) });
  const took = { points: view.took, x: 2 }, median = view.median_s === null ? "" : `median ${seconds(view.median_s)}`;
  plot("took", "Time per clock", [{ ...took, dots: true }, { ...took, wide: 0.4 }],
    { ...number, unit: seconds, logarithmic: true, now: median });
  plot("clocks", "Loss over clocks", [{ points: view.loss, x: 2 }], number);
}
function money(view) {
  const points = view.spend, [, spent, on_demand] = newest(points) ?? [];
  const beside = { label: "machines of the job's size on demand", y: 2, color: "--soft", dash: [5, 4], least: 0 };
  const now = on_demand === undefined ? spent : `${dollars(spent)} of ${dollars(on_demand)}`;
  plot("spend", "Dollars", [{ points, label: "spent", least: 0 }, { ...beside, points: on_demand === undefined ? [] : points }],
    { zero: true, now: typeof now === "number" ? dollars(now) : now });
}
function market(view) {
  const names = Object.keys(view.prices), color = name => color_of(names.indexOf(name));
  const bids = view.bids.filter(bid => bid[3] > 0);
  const price = name => {
    const points = [...view.prices[name], [view.t_s, newest(view.prices[name])[1]]];
    return { points, label: name, color: color(name), step: "after", wide: 1 };
  };
  const draw_bids = (pen, X, Y) => {
    pen.lineWidth = 3;
    for (const [name, from, to, bid, ending] of bids) {
      pen.globalAlpha = 0.6;
      segment(pen, X(from), Y(bid), X(to ?? view.t_s), Y(bid), color(name));
      pen.globalAlpha = 1;
      if (ending === "evicted") write(pen, "\u2715", X(to), Y(bid) + 4, "center", "--red");
      if (ending === "terminated") write(pen, "\u25aa", X(to), Y(bid) + 4, "center");
    }
  };
  plot("prices", "Prices and bids, $ an instance hour", names.map(price),
    { logarithmic: true, now: "thin: price, thick: bid, \u2715: evicted", values: bids.map(bid => bid[3]), extra: draw_bids });
  const lines = view.market.map(([name, now, count, paid, bid]) => [name, usd(now), count || "-", usd(paid), usd(bid)]);
  table("market", "Market", lines, { heads: ["market", "$ an hour now", "bought", "for", "bid"] });
  const curves = named => Object.entries(named).map(([label, points], i) => ({ points, label, color: color_of(i), least: 0 }));
  plot("speeds", "Measured: speed", curves(view.speeds), { zero: true });
  plot("costs", "Measured: what changes cost, market seconds", curves(view.costs), { zero: true });
}
function members(view) {
  const held = view.members.map(([t, , reliable, transient]) => [t, reliable, reliable + transient]);
  if (held.length) held.push([view.t_s, ...newest(held).slice(1)]);
  const reliable = { points: held, label: "reliable", area: 0, step: "after" };
  const transient = { ...reliable, label: "transient", color: "--orange", y: 2, area: 1 };
  plot("members", "Machines by tier", [reliable, transient], { zero: true, bands: stage_bands(view) });
}
function work(view) {
  const { names, from_s, rows: told } = view.shares;
  const lines = told.length > 1 ? named => named : () => []; // one window is no curve
  const begun = points => points.length ? [[from_s, ...points[0].slice(1)], ...points] : [];
  const stacks = told.map(([t, shares]) => { let sum = 0; return [t, ...shares.map(share => sum += share), 100]; });
  const stack = { points: begun(stacks), step: "before" }, count = names.length;
  const shares = names.map((label, i) => ({ ...stack, label, color: color_of(i), y: i + 1, area: i }));
  if (stacks.some(each => each[count] < 99.9))
    shares.push({ ...stack, label: "others", color: "--line", y: count + 1, area: count });
  plot("units", "Which machine computed the units, %", lines(shares), { zero: true, top: 100 });
  const waits = names.map((label, i) =>
    ({ points: begun(told.map(([t, , of]) => [t, of[i]])), label, color: color_of(i), step: "before", wide: 1 }));
  waits.push({ points: begun(view.waiting.map(([t, share]) => [t, 100 * share])), label: "all", color: "--ink", step: "before" });
  plot("waiting", "Waiting for others, % of their time", lines(waits),
    { zero: true, now: view.waiting_share === null ? "" : `${percent(view.waiting_share)} over the run` });
}
function sums(view) {
  const spent = Object.entries(view.spent).map(([name, parts]) => {
    const sum = Object.values(parts).reduce((a, b) => a + b, 0);
    const share = what => [parts[what] / sum, SPENT[what][1], `${SPENT[what][0]}: ${percent(parts[what] / sum)}`];
    return [name, bar(Object.keys(SPENT).filter(what => parts[what]).map(share))];
  });
  table("spent", "Where the time of a clock went", spent);
  if (spent.length) legend("spent", Object.values(SPENT));
  const sent = Object.entries(view.bytes).filter(([, count]) => count), most = Math.max(...sent.map(([, count]) => count));
  table("bytes", "Bytes sent, by purpose",
    sent.map(([what, count]) => [what, short(count) + "B", bar([[count / most, PALETTE[0], what]])]));
  table("help", "Which machine helped which",
    view.help.map(([helper, helped, units, share, spared_s]) => [helper, helped, units, percent(share), seconds(spared_s)]),
    { heads: ["helper", "helped", "units", "of its work", "spared there"] });
}
function tiles(view) {
  const now = view.now, sent = Object.values(view.bytes).reduce((a, b) => a + b, 0);
  const left_s = view.clocks_per_s && now.clocks && view.state === "running" ? (now.clocks - now.clock) / view.clocks_per_s : null;
  const shown = view.tiles?.length ? [...view.tiles] : [
    ["clock", `${now.clock ?? 0} / ${now.clocks ?? "?"}`], ["time", clock(view.t_s)],
    ["left", left_s === null ? "-" : clock(left_s)], ["stage", now.stage || "-"],
    ["reliable + transient", `${now.reliable ?? 0} + ${now.transient ?? 0}`],
  ];
  if (!view.tiles?.length) {
    if (now.spent_usd != null) shown.push(["spent", dollars(now.spent_usd)]);
    if (view.projected_usd !== null) shown.push(["projected", dollars(view.projected_usd)]);
  }
  if (sent) shown.push(["sent", short(sent) + "B"]);
  $("tiles").replaceChildren(...shown.map(([name, value]) => make("div", "tile", make("b", "", value), make("span", "", name))));
}
function news(view) {
  const has_market = view.news.some(each => each[3]), at = t => moment(t, view), kept = view.news.length;
  const lines = view.news.map(([t, what, text, market]) => has_market ? [at(t), market, what, text] : [at(t), what, text]);
  const now = view.told > kept ? `the newest ${kept} of ${view.told}` : String(kept);
  const heads = has_market ? ["after", "market time", "", ""] : undefined;
  table("news", "What happened, and why", lines, { wide: true, now, heads });
}
let last = null;
function draw(view) {
  const began = performance.now(), is_running = view.state === "running";
  last = view;
  document.title = `${view.name} \u00b7 Proteus`;
  $("name").textContent = view.name;
  $("state").textContent = $("state").className = view.state;
  $("bar").max = view.now.clocks || 1;
  $("bar").value = view.now.clock || 0;
  $("bar").hidden = !is_running;
  $("note").textContent = is_running ? view.now.note || "" : "";
  $("errors").replaceChildren(...view.errors.map(text => make("div", "card bad", make("pre", "", text))));
  begin_page();
  tiles(view);
  for (const part of [lanes, clocks, market, members, work, sums]) part(view);
  table("plan", "Planned events", view.plan, { heads: ["clock", "event", "fired", "finished"] });
  news(view);
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
  stream.onerror = () => {
    if (last?.state !== "running") return;
    $("state").textContent = "no connection";
    $("state").className = "lost";
  };
}
