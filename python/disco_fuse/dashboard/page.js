// Keeps the connection, the list of runs, and the view of the run that is looked at.

import {JobView, SearchView, element} from "./views.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10000;
const SILENT_S = 15; // a run that wrote nothing for so long is not called live

const status = document.getElementById("status");
const list = document.getElementById("runs");
const places = document.getElementById("places");
const main = document.getElementById("run");

let socket = null;
let waitMs = FIRST_WAIT_MS;
let selected = location.hash.slice(1);
let chosen = selected !== ""; // by the visitor, who then stays with it
let shown = null; // {id, kind, view, ...}: what is on the page
let last = null; // the last message
let offsetS = 0; // the server's clock minus ours

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}/live`);
  socket.addEventListener("open", () => {
    waitMs = FIRST_WAIT_MS;
    say("connected");
    if (selected !== "") ask(selected);
  });
  socket.addEventListener("message", (event) => {
    last = JSON.parse(event.data);
    offsetS = last.now - Date.now() / 1e3;
    show();
  });
  socket.addEventListener("close", () => {
    say(`connection lost, trying again every ${Math.ceil(waitMs / 1e3)} s`, true);
    setTimeout(connect, waitMs);
    waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
  });
}

function say(text, lost = false) {
  status.textContent = text;
  status.classList.toggle("lost", lost);
}

function ask(id) {
  if (socket !== null && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({run: id}));
}

function select(id) {
  selected = id;
  ask(id);
  show();
}

function choose(id) {
  chosen = true;
  history.replaceState(null, "", `#${id}`);
  select(id);
}

// How a run stands: its words, and whether it is live.
function standing({end, changed_at: changedAt}) {
  const ageS = Math.max(0, Math.round(Date.now() / 1e3 + offsetS - changedAt));
  const live = end === null && ageS < SILENT_S;
  return [end !== null ? `ended: ${end}` : live ? "live" : `silent for ${ageS} s`, live];
}

// What to look at while the visitor has not chosen: a live run, as long as it is live.
function suggested(runs) {
  const isLive = (run) => standing(run)[1];
  const mine = runs.find((run) => run.id === selected);
  if (mine !== undefined && (chosen || isLive(mine))) return mine;
  return runs.find(isLive) ?? mine ?? runs[0];
}

function show() {
  if (last === null) return;
  const {runs} = last.overview;
  const run = suggested(runs);
  if (run !== undefined && run.id !== selected) {
    select(run.id);
    return;
  }
  if (last.run !== null && last.run.id === selected) showRun(last.run);
  if (runs.length === 0) {
    shown = null;
    main.replaceChildren(element("p", {
      className: "empty",
      text: "No events*.jsonl yet. Waiting for 'disco-fuse tune --events' or 'disco-fuse run -O'.",
    }));
  }
  showAges();
}

function showList({runs, places: folders, num_runs: numRuns, num_left_out: numLeftOut}) {
  // The list is changed in place, so that a button that is being pressed stays.
  while (list.children.length > runs.length) list.lastElementChild.remove();
  runs.forEach((run, i) => {
    let button = list.children[i]?.firstElementChild;
    if (button === undefined) {
      const lines = ["title", "soft", "soft"].map((className) => element("div", {className}));
      button = element("button", {children: lines});
      button.addEventListener("click", () => choose(button.dataset.id));
      list.append(element("li", {children: [button]}));
    }
    button.dataset.id = run.id;
    button.setAttribute("aria-current", String(run.id === selected));
    const figure = run.figure_ms === null ? "" : `, ${run.figure_ms.toFixed(2)} ms`;
    const [stands, live] = standing(run);
    button.classList.toggle("live", live);
    const texts = [
      run.title || run.name, run.name, `${run.kind} ${run.progress}${figure}, ${stands}`,
    ];
    texts.forEach((text, line) => { button.children[line].textContent = text; });
  });
  const more = numRuns > runs.length ? ` The ${runs.length} newest of ${numRuns} runs.` : "";
  const left = numLeftOut > 0 ? ` ${numLeftOut} more files are not followed.` : "";
  places.textContent = `Following ${folders.join(", ")}.${more}${left}`;
}

function showRun(run) {
  if (shown === null || shown.id !== run.id || shown.kind !== run.kind) build(run);
  shown.title.textContent = run.title || run.name;
  shown.place.textContent = `${run.name}, ${run.num_events} events`;
  shown.problems.replaceChildren(...run.problems.map((text) => element("li", {text})));
  shown.run = run;
  if (run.state !== null) shown.view.show(run.state);
}

function build({id, kind}) {
  const title = element("h2");
  const mark = element("span", {className: "mark"});
  const place = element("span", {className: "soft"});
  const problems = element("ul", {className: "problems"});
  const views = {search: SearchView, job: JobView};
  const view = kind in views ? new views[kind]() : null;
  main.replaceChildren(
    element("div", {className: "head", children: [title, mark, place]}),
    problems,
    ...(view === null ? [element("p", {className: "empty", text: "No events yet."})] : view.nodes),
  );
  shown = {id, kind, title, mark, place, problems, view, run: null};
}

// How a run stands changes with time alone as well.
function showAges() {
  if (last !== null) showList(last.overview);
  if (shown === null || shown.run === null) return;
  const [stands, live] = standing(shown.run);
  shown.mark.textContent = stands;
  shown.mark.classList.toggle("live", live);
  shown.mark.classList.toggle("failed", ["nan", "checkpoint"].includes(shown.run.end));
}

setInterval(showAges, 1000);
connect();
