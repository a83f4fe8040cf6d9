// Curves, tables and bars, each in a card of its own; they know nothing of runs.
const $ = id => document.getElementById(id);
const PALETTE = [
  "#3b82c4", "#e8842c", "#3f9e57", "#cf4a43", "#8e6bbf", "#96684f", "#d66fb2", "#8a8f98", "#a9a53a", "#2ea8b8",
];
const HEIGHT = 170, LEFT = 46, TOP = 8; // of a curve, in pixels
const newest = points => points.length ? points[points.length - 1] : null;
const color_of = index => PALETTE[index % PALETTE.length];
let inks = {}, place = 0;

function ink(name) { // a colour, or the name of one of the page's
  return inks[name] ??= name[0] === "#" ? name : getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
function begin_page() { // before the cards are drawn, in their order
  inks = {};
  place = 0;
}

// -- numbers ---------------------------------------------------------------------------------------------------

function short(x) {
  if (x === null || x === undefined) return "-";
  const a = Math.abs(x);
  for (const [from, size, letter] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
    if (a >= from) return `${+(x / size).toPrecision(3)} ${letter}`;
  return a >= 100 || Number.isInteger(x) ? String(Math.round(x)) : String(+x.toPrecision(3));
}
function seconds(s) {
  const [size, unit] = s >= 1 ? [1, "s"] : s >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return `${+(s / size).toPrecision(3)} ${unit}`;
}
function clock(s) {
  s = Math.max(0, Math.round(s));
  const d = Math.floor(s / 86400), h = Math.floor(s % 86400 / 3600), m = Math.floor(s % 3600 / 60);
  if (d) return `${d} d ${h} h`;
  return h ? `${h}:${String(m).padStart(2, "0")} h` : m ? `${m}:${String(s % 60).padStart(2, "0")} min` : `${s} s`;
}
const last_of = points => points.length ? short(newest(points)[1]) : "";
const usd = x => x === null ? "-" : `$${x.toFixed(4)}`;
const percent = share => `${(100 * share).toFixed(1)} %`;

// -- cards, tables and bars ------------------------------------------------------------------------------------

function make(tag, className, ...inside) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...inside);
  return made;
}
function card(id, title, content, wide) {
  let part = $(id + "-card");
  if (!part) {
    const now = make("span", ""), inner = make(content, ""), key = make("div", "key");
    part = make("section", wide ? "card wide" : "card", make("h2", "", title, now),
      make("div", content === "table" || wide ? "scroll" : "", inner), key);
    if (content === "canvas") { inner.setAttribute("role", "img"); inner.setAttribute("aria-label", title); }
    [part.id, now.id, inner.id, key.id] = [id + "-card", id + "-now", id, id + "-key"];
    $("cards").append(part);
  }
  part.style.order = place++; // also of a card that comes late
  return part;
}
function rows(table, lines, heads) {
  const body = make("tbody", "");
  if (heads) body.append(make("tr", "", ...heads.map(head => make("th", "", head))));
  for (const cells of lines) body.append(make("tr", "", ...cells.map(cell => make("td", "", cell))));
  table.replaceChildren(body);
}
function table(id, title, lines, { heads, note = "", now = "", wide } = {}) {
  card(id, title, "table", wide).hidden = !lines.length;
  if (!lines.length) return;
  rows($(id), lines, heads);
  $(id + "-key").textContent = note;
  $(id + "-now").textContent = now;
}
function bar(parts) { // of (share, colour, title)
  return make("div", "bar", ...parts.map(([share, color, title]) => {
    const part = make("span", "");
    part.style.width = `${100 * share}%`;
    part.style.background = color;
    part.title = title;
    return part;
  }));
}
function legend(id, labels) { // of (text, colour)
  $(id + "-key").replaceChildren(...labels.slice(0, 14).map(([text, color]) => {
    const spot = make("i", "");
    spot.style.background = color;
    return make("span", "", spot, text);
  }));
}

// -- curves ----------------------------------------------------------------------------------------------------

function fit(canvas, height) { // an empty canvas as wide as its card; returns its pen and its width
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  const [columns, lines] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== lines) { canvas.height = lines; canvas.style.height = height + "px"; }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.setLineDash([]);
  pen.globalAlpha = 1;
  return [pen, width];
}
function write(pen, text, x, y, align, color = "--soft") {
  pen.fillStyle = ink(color);
  pen.textAlign = align;
  pen.fillText(text, x, y);
}
function segment(pen, x1, y1, x2, y2, color) {
  pen.strokeStyle = ink(color);
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}
function range(lines, o) { // [least x, greatest x, least y, greatest y, whether y is logarithmic]
  let [begin, end, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { points, x = 0, y = 1 } of lines)
    for (const point of points) {
      if (point[y] === null) continue;
      [begin, end] = [Math.min(begin, point[x]), Math.max(end, point[x])];
      [low, high] = [Math.min(low, point[y]), Math.max(high, point[y])];
    }
  for (const value of o.values ?? []) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (o.zero) low = Math.min(0, low);
  if (o.top) high = o.top;
  const logarithmic = low > 0 && (o.logarithmic || high / low > 50), middle = Math.abs(high + low) / 2;
  if (!logarithmic && low > 0 && low < high / 2) low = 0;
  if (high - low <= 1e-3 * middle) [low, high] = [low - 0.1 * middle, high + 0.1 * middle]; // flat, not its rounding
  return [begin, end, low, high === low ? low + 1 : high, logarithmic];
}
// A line: {points, label, color, column of x (0: seconds), column of y, dash, step, dots, wide, least: points that it
// needs beyond, area: the column of its lower bound, 0 for none}.
// Options: always (also without points), now, note, unit (of y), format (of x), zero and top (of y), logarithmic, values
// (more of y), bands [from, to, colour], rules [x, colour], extra (a function that draws last).
function plot(id, title, given, o = {}) {
  const lines = given.filter(line => line.points.length > (line.least ?? 1)), part = card(id, title, "canvas");
  part.hidden = !lines.length && !o.always;
  if (part.hidden) return;
  const [pen, width] = fit($(id), HEIGHT), bottom = HEIGHT - 16;
  $(id + "-now").textContent = o.now ?? "";
  if (!lines.length) return write(pen, "not yet", LEFT, HEIGHT / 2, "left");
  const [begin, end, low, high, logarithmic] = range(lines, o), scaled = v => logarithmic ? Math.log(v) : v;
  const X = x => LEFT + (x - begin) / Math.max(1e-9, end - begin) * (width - LEFT - 2);
  const Y = y => bottom - (scaled(y) - scaled(low)) / (scaled(high) - scaled(low)) * (bottom - TOP);
  pen.globalAlpha = 0.25;
  for (const [from, to, color] of o.bands ?? []) {
    const x = X(Math.max(begin, from));
    pen.fillStyle = color;
    pen.fillRect(x, TOP, Math.max(0, X(to) - x), bottom - TOP); // nothing left of the curve
  }
  pen.globalAlpha = 0.6;
  pen.setLineDash([3, 3]);
  for (const [x, color] of o.rules ?? []) if (x >= begin) segment(pen, X(x), TOP, X(x), bottom, color);
  pen.globalAlpha = 1;
  pen.setLineDash([]);
  pen.lineWidth = 1;
  for (const y of [low, logarithmic ? Math.sqrt(low * high) : (low + high) / 2, high]) {
    segment(pen, LEFT, Y(y), width, Y(y), "--line");
    write(pen, (o.unit ?? short)(y), LEFT - 4, Y(y) + 4, "right");
  }
  for (const line of lines) draw_line(pen, line, X, Y);
  o.extra?.(pen, X, Y);
  write(pen, (o.format ?? clock)(begin), LEFT, HEIGHT - 3, "left");
  write(pen, (o.format ?? clock)(end), width, HEIGHT - 3, "right");
  if (o.note) $(id + "-key").textContent = o.note;
  else legend(id, lines.filter(line => line.label).map(line => [line.label, ink(line.color ?? "--blue")]));
}
function draw_line(pen, { points, x = 0, y = 1, color = "--blue", dash, step, dots, area, wide }, X, Y) {
  pen.strokeStyle = pen.fillStyle = ink(color);
  pen.lineWidth = wide ?? 1.6;
  pen.setLineDash(dash ?? []);
  if (dots) return points.forEach(point => pen.fillRect(X(point[x]) - 1, Y(point[y]) - 1, 2, 2));
  const path = []; // (x, y, point); `step`: "after", a value holds until the next point, or "before", since the last
  for (const point of points) {
    if (point[y] === null) continue;
    const before = newest(path);
    if (before && step === "after") path.push([X(point[x]), before[1], before[2]]);
    if (before && step === "before") path.push([before[0], Y(point[y]), point]);
    path.push([X(point[x]), Y(point[y]), point]);
  }
  pen.beginPath();
  path.forEach(([h, v], i) => i ? pen.lineTo(h, v) : pen.moveTo(h, v));
  if (area === undefined) pen.stroke();
  else {
    for (const [h, , point] of path.reverse()) pen.lineTo(h, Y(area ? point[area] : 0));
    pen.fill();
  }
  pen.setLineDash([]);
}
