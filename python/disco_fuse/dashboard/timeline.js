// The lanes of one simulated step: wheel or +/- zooms, dragging moves, a double click shows all.
//
//   const timeline = new Timeline(canvas, readout);
//   timeline.show({streams: [name, ...], makespan_us, spans: [[stream, start, duration, units, name, kind], ...]});

import {fitted, style, ticks} from "./charts.js";

// By kind, as in the report: what it is called, its color, and that of a text on it.
export const KINDS = [
  ["generated kernels", "#4878a8", "#ffffff"],
  ["library calls", "#9db8d2", "#1c2430"],
  ["AllReduce", "#d9793b", "#ffffff"],
];

const LANE = 34;
const LEFT = 110;
const RIGHT = 28; // for half of a number
const BOTTOM = 22;

export class Timeline {
  constructor(canvas, readout) {
    this.canvas = canvas;
    this.readout = readout;
    this.lanes = null;
    this.from = 0; // what is shown, as parts of the step
    this.to = 1;
    this.drag = null;
    canvas.tabIndex = 0;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, event.offsetX);
    }, {passive: false});
    canvas.addEventListener("keydown", (event) => {
      if (event.key === "+") this.zoom(0.8, canvas.clientWidth / 2);
      if (event.key === "-") this.zoom(1.25, canvas.clientWidth / 2);
    });
    canvas.addEventListener("dblclick", () => this.look(0, 1));
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.drag = {x: event.offsetX, from: this.from, to: this.to};
    });
    canvas.addEventListener("pointerup", () => { this.drag = null; });
    canvas.addEventListener("pointermove", (event) => this.pointAt(event));
    canvas.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  show(lanes) {
    this.lanes = lanes;
    this.draw();
  }

  width() { return Math.max(1, this.canvas.clientWidth - LEFT - RIGHT); }

  look(from, to) {
    const length = Math.min(1, Math.max(1e-5, to - from));
    this.from = Math.min(Math.max(0, from), 1 - length);
    this.to = this.from + length;
    this.draw();
  }

  zoom(factor, x) {
    const at = this.from + ((x - LEFT) / this.width()) * (this.to - this.from);
    this.look(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pointAt(event) {
    if (this.drag !== null) {
      const moved = ((this.drag.x - event.offsetX) / this.width()) * (this.drag.to - this.drag.from);
      this.look(this.drag.from + moved, this.drag.to + moved);
      return;
    }
    this.readout.textContent = "";
    if (this.lanes === null) return;
    const part = this.from + ((event.offsetX - LEFT) / this.width()) * (this.to - this.from);
    const at = part * this.lanes.makespan_us;
    const stream = Math.floor(event.offsetY / LANE);
    const span = this.lanes.spans.find(
      ([lane, start, duration]) => lane === stream && start <= at && at <= start + duration,
    );
    if (span === undefined) return;
    const [, start, duration, units, name] = span;
    const more = units > 1 ? ` and ${units - 1} more units` : "";
    this.readout.textContent =
      `${name}${more}: ${(duration / 1e3).toFixed(3)} ms from ${(start / 1e3).toFixed(3)} ms`;
  }

  draw() {
    const lanes = this.lanes;
    const height = (lanes === null ? 2 : lanes.streams.length) * LANE + BOTTOM;
    const {context, width} = fitted(this.canvas, height);
    if (lanes === null || width <= LEFT + RIGHT) return;
    const shown = lanes.makespan_us * (this.to - this.from);
    const first = lanes.makespan_us * this.from;
    const x = (time) => LEFT + ((time - first) / shown) * this.width();
    context.textBaseline = "middle";
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, this.width(), height - BOTTOM);
    context.clip();
    for (const [stream, start, duration, , name, kind] of lanes.spans) {
      const [left, right] = [x(start), x(start + duration)];
      if (right < LEFT || left > width) continue;
      const wide = Math.max(right - left, 0.5);
      const [, color, ink] = KINDS[kind];
      context.fillStyle = color;
      context.fillRect(left, stream * LANE + 3, wide > 3 ? wide - 0.7 : wide, LANE - 8);
      if (wide < 50) continue;
      context.save();
      context.beginPath();
      context.rect(left, stream * LANE, wide - 4, LANE);
      context.clip();
      context.fillStyle = ink;
      context.fillText(name, Math.max(left, LEFT) + 4, stream * LANE + LANE / 2 - 1);
      context.restore();
    }
    context.restore();
    context.fillStyle = style("--soft");
    context.textAlign = "left";
    lanes.streams.forEach((name, i) => context.fillText(name, 0, i * LANE + LANE / 2));
    context.textAlign = "center";
    for (const time of ticks(first / 1e3, (first + shown) / 1e3, width / 120)) {
      context.fillText(`${Number(time.toPrecision(6))} ms`, x(time * 1e3), height - 9);
    }
  }
}
