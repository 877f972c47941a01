// Curves on a canvas: a line through the means, and a band from the least to the largest value.
//
//   const chart = new Chart(canvas, readout, {x: "step", y: "ms"});
//   chart.show([{name: "rank 0", points: [[x, least, mean, largest], ...]}, ...],
//              [{name: "bound", at: 3.2, color: "#b22222"}, ...]);    // lines across

export const COLORS = [
  "#3b76d6", "#e07b39", "#2f9e6d", "#c94f7c", "#8364cf", "#b59a1f", "#2aa3b5", "#7d8794",
];
const HEIGHT = 190;
const EDGE = {left: 56, right: 10, top: 20, bottom: 34};

export function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A canvas of the size that it has on the page, in device pixels; its drawing context.
export function fitted(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return {context, width};
}

// Round numbers from low to high, about `count` of them.
export function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

export function shortNumber(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return String(Number(value.toPrecision(3)));
}

export class Chart {
  constructor(canvas, readout, labels) {
    this.canvas = canvas;
    this.readout = readout;
    this.labels = labels;
    this.curves = [];
    this.lines = [];
    this.pointer = null;
    canvas.addEventListener("pointermove", (event) => {
      this.pointer = event.offsetX;
      this.draw();
    });
    canvas.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  show(curves, lines = []) {
    this.curves = curves.filter((curve) => curve.points.length > 0);
    this.lines = lines;
    this.draw();
  }

  // The ranges of what is shown; a curve that is flat gets some room.
  bounds() {
    const all = this.curves.flatMap((curve) => curve.points);
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const [x, least, , largest] of all) {
      left = Math.min(left, x);
      right = Math.max(right, x);
      low = Math.min(low, least);
      high = Math.max(high, largest);
    }
    for (const {at} of this.lines) [low, high] = [Math.min(low, at), Math.max(high, at)];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
    return {left, right: right > left ? right : left + 1, low: low - room, high: high + room};
  }

  draw() {
    const {context, width} = fitted(this.canvas, HEIGHT);
    if (this.curves.length === 0 || width <= EDGE.left + EDGE.right) {
      this.readout.textContent = this.curves.length === 0 ? "nothing yet" : "";
      return;
    }
    const box = this.bounds();
    const x = (v) =>
      EDGE.left + ((v - box.left) / (box.right - box.left)) * (width - EDGE.left - EDGE.right);
    const y = (v) =>
      HEIGHT - EDGE.bottom - ((v - box.low) / (box.high - box.low)) * (HEIGHT - EDGE.top - EDGE.bottom);
    this.drawAxes(context, width, box, x, y);
    for (const {at, color} of this.lines) {
      context.strokeStyle = color;
      context.setLineDash([5, 4]);
      context.beginPath();
      context.moveTo(EDGE.left, y(at));
      context.lineTo(width - EDGE.right, y(at));
      context.stroke();
      context.setLineDash([]);
    }
    this.curves.forEach((curve, i) => this.drawCurve(context, curve, COLORS[i % COLORS.length], x, y));
    this.drawPointer(context, x);
  }

  drawAxes(context, width, box, x, y) {
    context.fillStyle = style("--soft");
    context.strokeStyle = style("--line");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const value of ticks(box.low, box.high, 4)) {
      context.beginPath();
      context.moveTo(EDGE.left, y(value));
      context.lineTo(width - EDGE.right, y(value));
      context.stroke();
      context.fillText(shortNumber(value), EDGE.left - 6, y(value));
    }
    context.textAlign = "center";
    for (const value of ticks(box.left, box.right, width / 110)) {
      context.fillText(shortNumber(value), x(value), HEIGHT - EDGE.bottom + 12);
    }
    context.textAlign = "right";
    context.fillText(this.labels.x, width - EDGE.right, HEIGHT - 7);
    context.textAlign = "left";
    context.fillText(this.labels.y, 2, 8);
  }

  drawCurve(context, {points}, color, x, y) {
    context.fillStyle = `${color}38`;
    context.beginPath();
    for (const [at, , , largest] of points) context.lineTo(x(at), y(largest));
    for (const [at, least] of [...points].reverse()) context.lineTo(x(at), y(least));
    context.fill();
    context.strokeStyle = color;
    context.lineWidth = 1.6;
    context.beginPath();
    for (const [at, , mean] of points) context.lineTo(x(at), y(mean));
    context.stroke();
    context.lineWidth = 1;
    const [lastX, , last] = points[points.length - 1];
    context.fillStyle = color;
    context.beginPath();
    context.arc(x(lastX), y(last), 2.5, 0, 2 * Math.PI);
    context.fill();
  }

  // What the curves are under the pointer, in words.
  drawPointer(context, x) {
    if (this.pointer === null) {
      this.readout.textContent = "";
      return;
    }
    const distance = (point) => Math.abs(x(point[0]) - this.pointer);
    const said = this.curves.slice(0, 8).map(({name, points}) => {
      const near = points.reduce((a, b) => (distance(b) < distance(a) ? b : a));
      return {at: near[0], text: `${name} ${shortNumber(near[2])}`};
    });
    context.strokeStyle = style("--soft");
    context.beginPath();
    context.moveTo(x(said[0].at), EDGE.top);
    context.lineTo(x(said[0].at), HEIGHT - EDGE.bottom);
    context.stroke();
    this.readout.textContent =
      `${this.labels.x} ${shortNumber(said[0].at)}: ${said.map((s) => s.text).join(", ")} ${this.labels.y}`;
  }
}
