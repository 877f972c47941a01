// The report of one search: reads the data block of the page and fills its sections.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const kinds = ["kernel", "library", "bucket"];
const colours = ["#4878a8", "#9db8d2", "#d9793b"];

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

// Horizontal bars; rows are [name, value, label].
function bars(id, rows, colour) {
  const height = 18, left = 330, right = 430;
  const most = Math.max(...rows.map((row) => row[1]), 1e-12);
  const picture = svg("svg", {viewBox: `0 0 1000 ${rows.length * height + 4}`, role: "img"});
  rows.forEach(([name, value, label], i) => {
    const y = i * height;
    const shown = name.length > 50 ? name.slice(0, 49) + "..." : name;
    picture.append(text(shown, {x: left - 6, y: y + 13, "text-anchor": "end"}));
    const width = Math.max((value / most) * right, 0.5);
    picture.append(svg("rect", {x: left, y: y + 3, width, height: height - 5, fill: colour}));
    picture.append(text(label, {x: left + width + 5, y: y + 13}));
  });
  document.getElementById(id).append(picture);
}

// The best makespan over the candidates judged, with the best baseline and the bound.
function curve(id) {
  const w = 1000, h = 260, left = 70, bottom = 30, points = data.progress;
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
  picture.append(text("candidates: " + last, {x: w - 20, y: h - 6, "text-anchor": "end"}));
  picture.append(text("ms", {x: 4, y: 16}));
  document.getElementById(id).append(picture);
}

function lane(name, stream) {
  const {starts, durations, kind, names} = data.lanes[stream];
  const ends = starts.map((start, i) => start + durations[i]);
  return {
    name, colours, starts, ends, kinds: kind,
    label: (i) => `${kinds[kind[i]]} ${names[i]}: ${starts[i].toFixed(3)} to ` +
                  `${ends[i].toFixed(3)} ms, ${durations[i].toFixed(3)} ms`,
  };
}

document.title = data.title;
document.getElementById("title").textContent = data.title;
document.getElementById("about").textContent = data.about;
table("figures", ["figure", "value"], data.figures);
table("baselines", ["strategy", "ms"], data.baselines);
const lanes = drawLanes(document.getElementById("lanes"), document.getElementById("tip"));
lanes.show([lane("compute", "compute"), lane("communication", "communication")],
           data.makespan_ms, [{at: data.bound_ms, colour: "#b22"}]);
curve("progress");
bars("groups", data.groups, colours[0]);
bars("buckets", data.buckets, colours[2]);
table("versions", ["what", "value"], data.versions);
document.body.dataset.ready = "yes";
window.lanes = lanes;
