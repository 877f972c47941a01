// The report of one search: reads the data block of the page and fills its sections.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const kinds = ["kernel", "library call", "bucket", "compute waits for"];
const colours = ["#4878a8", "#9db8d2", "#d9793b", "#f6cdc9"];

// Text only ever becomes text nodes, so that no name of a model or an op is read as HTML.
function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function table(id, header, rows) {
  const made = element("table");
  const head = made.createTHead().insertRow();
  header.forEach((name, i) => head.append(element("th", name, i ? "number" : "")));
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((cell, i) => line.append(element("td", String(cell), i ? "number" : "")));
  }
  document.getElementById(id).append(made);
}

function svg(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function text(content, attributes) {
  const made = svg("text", attributes);
  made.textContent = content;
  return made;
}

// Horizontal bars; rows are [name, value, label, kind], and kind is the class that colours a bar.
// Widths are set by script: the policy of the page allows no style attributes.
function bars(id, rows) {
  const most = Math.max(...rows.map((row) => row[1]), 1e-12);
  const made = element("table", undefined, "bars");
  for (const [name, value, label, kind] of rows) {
    const line = made.insertRow();
    line.className = kind + "-row";
    const bar = element("div", undefined, kind);
    bar.style.width = `${(value / most) * 100}%`;
    const cell = element("td");
    cell.append(bar);
    line.append(element("td", name), cell, element("td", label));
  }
  document.getElementById(id).append(made);
}

// The best makespan over the candidates judged, with the best baseline and the bound.
function curve(id) {
  const w = 1000, h = 280, left = 70, bottom = 50, points = data.progress;
  const last = points.length ? points[points.length - 1][0] : 1;
  const levels = [data.makespan_ms, data.bound_ms, data.best_baseline_ms];
  const values = [...points.map((point) => point[1]), ...levels];
  const low = Math.min(...values) * 0.98, high = Math.max(...values) * 1.02;
  const x = (n) => left + (n / Math.max(last, 1)) * (w - left - 20);
  const y = (ms) => 10 + ((high - ms) / (high - low || 1)) * (h - bottom - 10);
  const picture = svg("svg", {viewBox: `0 0 ${w} ${h}`, role: "img"});
  const step = niceStep(high - low || 1, 5);
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
    picture.append(svg("line", {x1: left, x2: w - 20, y1: y(at), y2: y(at), stroke: "#ddd"}));
    picture.append(text(at.toPrecision(4), {x: left - 6, y: y(at) + 4, "text-anchor": "end"}));
  }
  const stride = niceStep(Math.max(last, 1), 8);
  for (let n = 0; n <= last; n += stride) {
    picture.append(svg("line", {x1: x(n), x2: x(n), y1: h - bottom, y2: h - bottom + 5,
                                stroke: "#555"}));
    picture.append(text(n.toLocaleString("en"), {x: x(n), y: h - bottom + 18,
                                                 "text-anchor": "middle"}));
  }
  picture.append(svg("line", {x1: left, x2: w - 20, y1: h - bottom, y2: h - bottom,
                              stroke: "#555"}));
  const lines = [[data.best_baseline_ms, "#777", "best baseline: " + data.best_baseline],
                 [data.bound_ms, "#b22", "lower bound"]];
  for (const [ms, stroke, name] of lines) {
    picture.append(svg("line", {x1: left, x2: w - 20, y1: y(ms), y2: y(ms), stroke,
                                "stroke-dasharray": "6 4"}));
    picture.append(text(name, {x: w - 24, y: y(ms) - 4, "text-anchor": "end", fill: stroke}));
  }
  let path = "";
  for (const [n, ms] of points) path += path ? `H${x(n).toFixed(1)}V${y(ms).toFixed(1)}`
                                             : `M${x(n).toFixed(1)} ${y(ms).toFixed(1)}`;
  if (path) picture.append(svg("path", {d: path, fill: "none", stroke: "#4878a8",
                                        "stroke-width": 2}));
  picture.append(text(`candidates, ${last.toLocaleString("en")} in all`,
                      {x: w - 20, y: h - 10, "text-anchor": "end"}));
  picture.append(text("ms", {x: 4, y: 16}));
  document.getElementById(id).append(picture);
}

// A lane of these spans, and of the waits among them, which overlap none.
function lane(name, ...parts) {
  const spans = parts.flatMap(({starts, durations, kind, names}) => starts.map(
    (start, i) => [start, start + durations[i], kind[i], names[i]]));
  spans.sort((one, other) => one[0] - other[0]);
  const [starts, ends, of, names] = [0, 1, 2, 3].map((i) => spans.map((span) => span[i]));
  return {
    name, colours, starts, ends, kinds: of,
    label: (i) => `${kinds[of[i]]} ${names[i]}: ${starts[i].toFixed(3)} to ` +
                  `${ends[i].toFixed(3)} ms, ${(ends[i] - starts[i]).toFixed(3)} ms`,
  };
}

function lanePair(title, {compute, communication, waits}) {
  return [lane(`${title}\ncompute`, compute, waits),
          lane(`${title}\ncommunication`, communication)];
}

document.title = data.title;
document.getElementById("title").textContent = data.title;
document.getElementById("about").textContent = data.about;
table("figures", ["figure", "value"], data.figures);
bars("strategies", data.strategies);
const lanes = drawLanes(document.getElementById("lanes"), document.getElementById("tip"));
lanes.show([...lanePair("disco_fuse", data.lanes),
            ...lanePair(data.best_baseline, data.baseline_lanes)],
           Math.max(data.makespan_ms, data.best_baseline_ms),
           [{at: data.bound_ms, colour: "#b22"}]);
curve("progress");
bars("groups", data.groups);
bars("buckets", data.buckets);
table("versions", ["what", "value"], data.versions);
document.body.dataset.ready = "yes";
window.lanes = lanes;
