// What is told in words: workers, data and audit, the log of events, configuration and versions.

import { el, field, part, setText } from "./dom.js";
import { meaning, workersOf } from "./job.js";
import { clock, count, day, duration, many, number, share } from "./words.js";

// ------------------------------------------------------------------------------------------------ workers

export class Workers {
  constructor({ drain, choose }) {
    this.drain = drain;
    this.choose = choose;
    const head = ["Worker", "Rank", "Node", "State", "Step", "Own time", "Of the best rank", "Of its own best", "Goodput", ""];
    this.body = el("tbody", {});
    this.head = el("thead", {}, el("tr", {}, ...head.map((name) =>
      name ? el("th", { scope: "col", text: name }) : el("td", {}))));
    this.none = el("p", { class: "soft", text: "No worker is there." });
    this.region = el("div", { class: "scroll", role: "region", "aria-label": "Table of workers", tabindex: "0" },
      el("table", { class: "workers" }, this.head, this.body));
    this.element = part("Workers", "workers", this.none, this.region);
    this.rows = new Map();
  }

  update(job) {
    const workers = job.status.workers;
    this.none.hidden = workers.length > 0;
    this.region.hidden = workers.length === 0;
    const rows = workers.map((worker) => this.row(worker, job));
    for (const known of this.rows.keys()) {
      if (!workers.some((worker) => worker.worker_id === known)) this.rows.delete(known);
    }
    if (rows.length !== this.body.children.length || rows.some((row, at) => this.body.children[at] !== row)) {
      this.body.replaceChildren(...rows);
    }
  }

  row(worker, job) {
    const id = worker.worker_id;
    if (!this.rows.has(id)) this.rows.set(id, this.newRow(id));
    const { element, cells, button } = this.rows.get(id);
    const own = worker.compute_seconds ? `${number(worker.compute_seconds * 1000)} ms` : "–";
    const [beside, before] = [worker.best_rank_score, worker.own_best_score].map((score) => (worker.compute_seconds ? share(score, 1) : "–"));
    const life = job.status.goodput?.workers?.find((one) => one.worker_id === id);
    const texts = [worker.rank >= 0 ? String(worker.rank) : "–", worker.node || worker.host || "–", stateOf(worker),
      count(worker.step), own, worker.straggler ? `${beside}, slow` : beside, before,
      life ? share(life.seconds.productive_step ?? 0, life.lived) : "–"];
    texts.forEach((text, at) => setText(cells[at], text));
    cells[1].title = worker.name;
    cells[2].className = worker.draining ? "state leaving" : "state";
    if (button) button.disabled = worker.draining || job.over;
    return element;
  }

  newRow(id) {
    const cells = Array.from({ length: 8 }, () => el("td", {}));
    const events = el("button", { type: "button", class: "quiet", text: "Events",
      "aria-label": `Events of worker ${id}`, onclick: () => this.choose(id) });
    const button = this.drain && el("button", { type: "button", class: "quiet", text: "Drain…",
      "aria-label": `Drain worker ${id}`, onclick: () => this.drain(id) });
    const element = el("tr", {}, el("th", { scope: "row", text: String(id) }), ...cells,
      el("td", { class: "actions" }, events, button));
    return { element, cells, button };
  }
}

function stateOf(worker) {
  if (worker.draining) return "leaving";
  if (worker.standing === "starting") return worker.activity ? `starting: ${worker.activity}` : "starting";
  return worker.activity && worker.activity !== worker.standing ? `${worker.standing}, ${worker.activity}` : worker.standing;
}

// ------------------------------------------------------------------------------------------ data and audit

export class Data {
  constructor() {
    this.list = el("dl", { class: "facts" });
    this.element = part("Data and result", "data", this.list);
  }

  update(job) {
    const { status } = job;
    const facts = {};
    if (status.length) {
      const { records, epochs } = status.length;
      facts.Records = `${count(status.position)} used of ${count(records * epochs)} (${share(status.position, records * epochs)})`;
      facts.Epoch = `${number(status.position / records)} of ${count(epochs)}, ${many(records, "record")} each`;
    }
    facts.Audit = status.audit || auditSoFar(job);
    if (status.checkpoint) facts.Checkpoint = `step ${count(status.checkpoint.step)}, ${clock(status.checkpoint.wall)}, ${status.checkpoint.path}`;
    if (status.fingerprint) facts.Fingerprint = `${status.fingerprint} (SHA-256 of the weights)`;
    if (status.tally.set_back) facts["Made again"] = many(status.tally.set_back, "step");
    if (status.path) facts.Result = status.path;
    if (status.job_dir) facts["Job's files"] = status.job_dir;
    facts["Running for"] = duration(status.elapsed);
    fill(this.list, facts);
  }
}

function auditSoFar(job) {
  const kept = job.status.flags.some((flag) => flag.startsWith("--audit_dir=") && flag.length > "--audit_dir=".length);
  if (!kept) return "none; --audit_dir asks for one";
  return job.over ? "not judged here; elasticdl audit does it" : "workers write down what they use; the verdict comes at the end";
}

function fill(list, facts) {
  const text = JSON.stringify(facts);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...Object.entries(facts).map(([name, value]) =>
    el("div", {}, el("dt", { text: name }), el("dd", { text: value }))));
}

// ------------------------------------------------------------------------------------------------- events

const ROWS = 150;

export class Log {
  constructor() {
    this.events = [];
    this.limit = ROWS;
    this.words = el("input", { type: "search", id: "filter-words", placeholder: "text, e.g. SIGKILL", oninput: () => this.redraw() });
    this.kind = el("select", { id: "filter-kind", onchange: () => this.redraw() }, el("option", { value: "", text: "all kinds" }));
    this.worker = el("select", { id: "filter-worker", onchange: () => this.redraw() }, el("option", { value: "", text: "all workers" }));
    this.found = el("p", { class: "soft" });
    this.list = el("ol", { class: "log", "aria-label": "Events, the newest first" });
    this.more = el("button", { type: "button", class: "quiet", hidden: true, text: "Show older ones", onclick: () => this.older() });
    this.element = part("Events", "events",
      el("div", { class: "filters" }, field("Filter", this.words), field("Kind", this.kind), field("Worker", this.worker)),
      this.found, this.list, this.more);
    this.kinds = new Set();
    this.workers = new Set();
  }

  add(events) {
    if (!events.length) return;
    this.events.push(...events);
    for (const event of events) {
      if (!this.kinds.has(event.kind)) option(this.kinds, this.kind, event.kind, event.kind);
      for (const id of workersOf(event)) if (!this.workers.has(id)) option(this.workers, this.worker, id, `worker ${id}`);
    }
    const matching = events.filter((event) => this.matches(event));
    this.count += matching.length;
    const newest = matching.slice(-this.limit).reverse().map(row);
    this.list.prepend(...newest);
    while (this.list.children.length > this.limit) this.list.lastChild.remove();
    this.tell();
  }

  count = 0;

  choose(worker) {
    if (!this.workers.has(worker)) option(this.workers, this.worker, worker, `worker ${worker}`);
    this.worker.value = String(worker);
    this.redraw();
    this.element.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    this.worker.focus({ preventScroll: true });
  }

  matches(event) {
    const words = this.words.value.trim().toLowerCase();
    return (this.kind.value === "" || event.kind === this.kind.value) &&
      (this.worker.value === "" || workersOf(event).includes(Number(this.worker.value))) &&
      (words === "" || `${event.kind} ${event.text}`.toLowerCase().includes(words));
  }

  redraw() {
    this.limit = ROWS;
    this.draw();
  }

  older() {
    this.limit += ROWS * 4;
    this.draw();
  }

  draw() {
    const matching = this.events.filter((event) => this.matches(event));
    this.count = matching.length;
    this.list.replaceChildren(...matching.slice(-this.limit).reverse().map(row));
    this.tell();
  }

  tell() {
    const shown = Math.min(this.count, this.limit);
    const all = this.count === this.events.length ? many(this.count, "event") : `${count(this.count)} of ${many(this.events.length, "event")}`;
    setText(this.found, shown < this.count ? `${all}, the newest ${count(shown)} shown` : all);
    this.more.hidden = shown >= this.count;
  }
}

function option(known, select, value, text) {
  known.add(value);
  const made = el("option", { value: String(value), text });
  const after = [...select.options].slice(1).find((other) =>
    typeof value === "number" ? Number(other.value) > value : other.value > value);
  select.insertBefore(made, after ?? null);
}

function row(event) {
  return el("li", { class: `event event-${meaning(event)}` },
    el("time", { datetime: new Date(event.wall * 1000).toISOString(), text: clock(event.wall, true) }),
    el("span", { class: "kind", text: event.kind }),
    el("span", { class: "words", text: event.text }));
}

// ------------------------------------------------------------------------------------------ configuration

export class Configuration {
  constructor() {
    this.versions = el("dl", { class: "facts" });
    this.flags = el("dl", { class: "facts" });
    this.element = el("section", { class: "card", "aria-labelledby": "configuration" },
      el("h2", { id: "configuration", text: "Configuration and versions" }),
      el("h3", { text: "Versions, and what all workers have in common" }), this.versions,
      el("h3", { text: "Flags" }), this.flags);
  }

  update(job) {
    const began = job.range[0];
    const said = Object.entries(job.about).filter(([, value]) => value !== "" && value !== "None");
    fill(this.versions, { began: day(began), ...Object.fromEntries(said) });
    const pairs = job.status.flags.map((flag) => flag.replace(/^--/, "").split(/=(.*)/s));
    fill(this.flags, Object.fromEntries(pairs.map(([name, value]) => [name, value ?? "true"])));
  }
}
