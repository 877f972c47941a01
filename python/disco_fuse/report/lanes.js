// Timeline lanes on a canvas: wheel zooms, drag moves, double click shows all, hovering names a span.
//
//     const lanes = drawLanes(canvas, tip);
//     lanes.show([{name: "compute", colours: ["#48a"], starts: [...], ends: [...], kinds: [...],
//                  label: (i) => "..."}], endTime, marks);
//     lanes.zoom(from, to)     // in the unit of starts and ends; also what the mouse does
//     lanes.range()            // [from, to] that is visible
//     lanes.drawn()            // rectangles of the last frame, for tests
//
// canvas: its CSS size is used, and followed. tip: an element for the name under the pointer; only
// its text is set, so that names need no escaping. A lane's name may have several lines. Its spans
// are sorted and do not overlap;
// kinds[i] chooses the colour. marks: [{at, colour}] vertical lines. show() may be called again with
// new data; the visible range stays if it still fits. Only what is visible is drawn, and spans that
// fall into one pixel column are drawn once.
"use strict";

function firstEndingAfter(ends, time) {
  let low = 0, high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

// A step for a scale: 1, 2 or 5 times a power of ten, so that about `count` of them fill `span`.
function niceStep(span, count) {
  const power = Math.pow(10, Math.floor(Math.log10(span / count)));
  const rest = span / count / power;
  return (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10) * power;
}

function drawLanes(canvas, tip) {
  const scaleHeight = 22, nameWidth = 112;
  const context = canvas.getContext("2d");
  let lanes = [], end = 1, marks = [], from = 0, to = 1, drawn = 0, pending = false;

  const width = () => Math.max(canvas.clientWidth - nameWidth, 1);
  const x = (time) => nameWidth + ((time - from) / (to - from)) * width();
  const time = (pixel) => from + ((pixel - nameWidth) / width()) * (to - from);
  const laneHeight = () => (canvas.clientHeight - scaleHeight) / Math.max(lanes.length, 1);

  function drawScale() {
    context.fillStyle = "#555";
    context.textAlign = "center";
    const step = niceStep(to - from, width() / 90);
    const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step))));
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      context.fillRect(x(at), scaleHeight - 5, 1, 5);
      context.fillText(at.toFixed(digits), x(at), scaleHeight - 9);
    }
    context.textAlign = "left";
    context.fillText("ms", 4, scaleHeight - 9);
  }

  function drawLane(lane, top, height) {
    context.fillStyle = "#333";
    const words = lane.name.split("\n");
    words.forEach((line, i) => {
      context.fillText(line, 4, top + height / 2 + 4 + 14 * (i - (words.length - 1) / 2));
    });
    let lastColumn = -1;
    for (let i = firstEndingAfter(lane.ends, from); i < lane.starts.length; i++) {
      if (lane.starts[i] > to) break;
      const left = Math.max(x(lane.starts[i]), nameWidth);
      const right = Math.min(x(lane.ends[i]), nameWidth + width());
      const column = Math.floor(right);
      if (right - left < 1 && column === lastColumn) continue;
      lastColumn = column;
      context.fillStyle = lane.colours[lane.kinds[i]];
      const gap = right - left > 4 ? 1 : 0;
      context.fillRect(left, top + 3, Math.max(right - left - gap, 0.7), height - 6);
      drawn++;
    }
  }

  function draw() {
    pending = false;
    drawn = 0;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(canvas.clientHeight * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "12px sans-serif";
    drawScale();
    lanes.forEach((lane, i) => drawLane(lane, scaleHeight + i * laneHeight(), laneHeight()));
    for (const mark of marks) {
      if (mark.at < from || mark.at > to) continue;
      context.fillStyle = mark.colour;
      context.fillRect(x(mark.at), scaleHeight, 1.5, canvas.clientHeight - scaleHeight);
    }
  }

  function redraw() {
    if (!pending) window.requestAnimationFrame(draw);
    pending = true;
  }

  function zoom(newFrom, newTo) {
    const span = Math.min(Math.max(newTo - newFrom, end * 1e-6), end);
    from = Math.min(Math.max(newFrom, 0), end - span);
    to = from + span;
    redraw();
  }

  function nameAt(pixelX, pixelY) {
    const lane = lanes[Math.floor((pixelY - scaleHeight) / laneHeight())];
    if (lane === undefined || pixelX < nameWidth) return "";
    const at = time(pixelX);
    const i = firstEndingAfter(lane.ends, at);
    return i < lane.starts.length && lane.starts[i] <= at ? lane.label(i) : "";
  }

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = time(event.offsetX), factor = Math.exp(event.deltaY * 0.002);
    zoom(at - (at - from) * factor, at + (to - at) * factor);
  }, {passive: false});
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held = {pixel: event.offsetX, from, to};
  });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (event) => {
    tip.textContent = nameAt(event.offsetX, event.offsetY);
    if (held === null) return;
    const moved = ((event.offsetX - held.pixel) / width()) * (held.to - held.from);
    zoom(held.from - moved, held.to - moved);
  });
  canvas.addEventListener("dblclick", () => zoom(0, end));
  new ResizeObserver(redraw).observe(canvas);

  function show(newLanes, newEnd, newMarks) {
    const showedAll = from === 0 && to === end;
    lanes = newLanes;
    end = Math.max(newEnd, 1e-9);
    marks = newMarks || [];
    zoom(from, showedAll ? end : to);
  }

  return {show, zoom, range: () => [from, to], drawn: () => drawn};
}
