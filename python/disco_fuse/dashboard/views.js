// What the page shows of a search and of a training. Texts of events are only ever set as text.

import {COLORS, Chart, shortNumber} from "./charts.js";
import {KINDS, Timeline} from "./timeline.js";

const BASELINE = "#e07b39";
const BOUND = "#b22222"; // as in the report

export function element(name, {text = "", className = "", children = []} = {}) {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (className !== "") made.className = className;
  made.append(...children);
  return made;
}

function ms(microseconds) {
  return microseconds === null ? "-" : `${(microseconds / 1e3).toFixed(3)} ms`;
}

function millis(value) {
  return value === null ? "-" : `${value.toFixed(2)} ms`;
}

function percent(part) {
  return `${(100 * part).toFixed(1)} %`;
}

// Boxes with one figure each.
class Tiles {
  constructor(names) {
    this.values = new Map();
    this.list = element("dl", {className: "tiles"});
    for (const name of names) {
      const value = element("dd", {text: "-"});
      value.dataset.figure = name;
      const tile = element("div", {className: "tile", children: [element("dt", {text: name}), value]});
      this.values.set(name, {value, tile});
      this.list.append(tile);
    }
  }

  set(name, text, alert = false) {
    const {value, tile} = this.values.get(name);
    value.textContent = text;
    tile.classList.toggle("alert", alert);
  }
}

// A titled box with a canvas, a line that says what the pointer is at, and a legend.
class Plot {
  constructor(title, make) {
    const canvas = element("canvas");
    const readout = element("p", {className: "readout"});
    this.legend = element("ul", {className: "legend"});
    this.drawing = make(canvas, readout);
    this.card = element("section", {
      className: "card",
      children: [element("h3", {text: title}), canvas, readout, this.legend],
    });
  }

  show(curves, lines = []) {
    this.drawing.show(curves, lines);
    const entries = curves.length + lines.length < 2 ? [] : curves;
    this.explain([
      ...entries.map(({name}, i) => [name, COLORS[i % COLORS.length]]),
      ...lines.map(({name, color}) => [name, color]),
    ]);
  }

  explain(entries) {
    this.legend.replaceChildren(...entries.map(([name, color]) => {
      const patch = element("i");
      patch.style.background = color;
      return element("li", {children: [patch, name]});
    }));
  }
}

function chart(title, x, y) {
  return new Plot(title, (canvas, readout) => new Chart(canvas, readout, {x, y}));
}

class Table {
  constructor(title, columns) {
    this.body = element("tbody");
    this.columns = columns;
    const cells = columns.map(([name, kind]) => element("th", {text: name, className: kind}));
    const table = element("table", {
      children: [element("thead", {children: [element("tr", {children: cells})]}), this.body],
    });
    this.card = element("section", {
      className: "card",
      children: [element("h3", {text: title}), element("div", {className: "scroll", children: [table]})],
    });
  }

  show(rows) {
    this.body.replaceChildren(...rows.map(({cells, className = ""}) => element("tr", {
      className,
      children: cells.map((text, i) => element("td", {text: String(text), className: this.columns[i][1]})),
    })));
  }
}

export class SearchView {
  constructor() {
    this.tiles = new Tiles([
      "best so far", "gain over unfused", "gain over best baseline", "above the lower bound",
      "candidates", "candidates a second", "queue", "elapsed",
    ]);
    this.best = chart("Best step so far", "seconds", "ms");
    this.rate = chart("Candidates a second", "seconds", "per s");
    this.timeline = new Plot(
      "Timeline of the best step (wheel zooms, dragging moves, double click shows all)",
      (canvas, readout) => new Timeline(canvas, readout),
    );
    this.timeline.explain(KINDS);
    this.facts = new Table("What is searched", [["", "text"], ["", "text"]]);
    this.nodes = [
      this.tiles.list,
      this.timeline.card,
      element("div", {className: "cards", children: [this.best.card, this.rate.card]}),
      this.facts.card,
    ];
  }

  show(state) {
    const {makespan_us: best, initial_us: initial, limits, end} = state;
    const over = (slow) => (best && slow ? percent(slow / best - 1) : "-");
    this.tiles.set("best so far", ms(best));
    this.tiles.set("gain over unfused", over(initial));
    this.tiles.set("gain over best baseline", over(limits?.best_baseline_us));
    const bound = limits?.lower_bound_us;
    this.tiles.set("above the lower bound", best && bound ? percent(best / bound - 1) : "-");
    this.tiles.set("candidates", String(state.candidates));
    this.tiles.set("candidates a second", shortNumber(state.candidates_per_s));
    this.tiles.set("queue", String(state.queued));
    this.tiles.set("elapsed", `${state.elapsed_s.toFixed(1)} s`);
    const lines = [
      [`best baseline, ${limits?.best_baseline}`, limits?.best_baseline_us, BASELINE],
      ["lower bound", bound, BOUND],
    ].filter(([, us]) => us > 0);
    this.best.show(
      [{name: "best so far", points: state.best}],
      lines.map(([name, us, color]) => ({name: `${name} ${ms(us)}`, at: us / 1e3, color})),
    );
    this.rate.show([{name: "candidates", points: state.rate}]);
    this.timeline.drawing.show(state.lanes);
    const facts = Object.entries(state.facts);
    if (limits !== null) facts.push(["best baseline", limits.best_baseline]);
    if (end !== null) facts.push(["stopped by", end.reason]);
    this.facts.show(facts.map((cells) => ({cells})));
  }
}

export class JobView {
  constructor() {
    this.tiles = new Tiles([
      "step", "loss", "step time, slowest rank, last 20", "exposed communication", "ranks",
      "stragglers",
    ]);
    this.step = chart("Step time per rank", "step", "ms");
    this.exposed = chart("Exposed communication per rank", "step", "ms");
    this.loss = chart("Loss", "step", "");
    this.ranks = new Table("Ranks, last 20 steps", [
      ["rank", ""], ["step", ""], ["mean step ms", ""], ["last step ms", ""],
      ["median busy ms", ""], ["mean exposed ms", ""], ["busy to usual rank", ""], ["", "text"],
    ]);
    this.notes = new Table("Checkpoints, evaluations and the like", [
      ["step", ""], ["event", "text"], ["", "text"],
    ]);
    this.nodes = [
      this.tiles.list,
      element("div", {
        className: "cards",
        children: [this.step.card, this.exposed.card],
      }),
      this.ranks.card,
      element("div", {className: "cards", children: [this.loss.card, this.notes.card]}),
    ];
  }

  show(state) {
    this.tiles.set("step", String(state.step));
    this.tiles.set("loss", shortLoss(state.loss), !Number.isFinite(Number(state.loss)));
    this.tiles.set("step time, slowest rank, last 20", millis(state.step_ms));
    this.tiles.set("exposed communication", millis(state.exposed_ms));
    this.tiles.set("ranks", `${state.num_ranks} of ${state.world_size}`);
    const slow = state.stragglers;
    this.tiles.set("stragglers", slow.length ? slow.map((r) => `rank ${r}`).join(", ") : "none", slow.length > 0);
    this.step.show(perRank(state.step_curves));
    this.exposed.show(perRank(state.exposed_curves));
    this.loss.show([{name: "loss", points: state.loss_curve}]);
    this.ranks.show(state.rows.map((row) => ({
      className: row.straggler ? "straggler" : "",
      cells: [
        row.rank, row.step, shortNumber(row.step_ms), shortNumber(row.last_ms),
        shortNumber(row.busy_ms), shortNumber(row.exposed_ms),
        row.slower === null ? "-" : row.slower.toFixed(2),
        row.end ?? (row.straggler ? "straggler" : ""),
      ],
    })));
    this.notes.show([...state.notes].reverse().map((note) => ({
      cells: [note.step, note.event, note.text],
    })));
  }
}

function perRank(curves) {
  return Object.entries(curves).map(([rank, points]) => ({name: `rank ${rank}`, points}));
}

function shortLoss(text) {
  const value = Number(text);
  return text === "" ? "-" : Number.isFinite(value) ? value.toPrecision(5) : text;
}
