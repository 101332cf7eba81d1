// Where the time went: the whole job as one bar, and each pause of the ring with its phases.

import { el, part, stackedBar } from "./dom.js";
import { clock, count, duration, many, share } from "./words.js";

const BUCKETS = {
  productive_step: ["productive steps", "training"],
  worker_launch: ["launch of workers", "launch"],
  program_startup: ["start of programs", "starting"],
  training_prep: ["first ring", "ready"],
  waiting_for_workers: ["waiting for workers", "waiting"],
  reform_notice: ["re-form: notice", "notice"],
  reform_plan: ["re-form: plan", "plan"],
  reform_join: ["re-form: join", "join"],
  reform_sync: ["re-form: sync", "sync"],
  reform_first_step: ["re-form: first step", "first_step"],
  wasted_progress_from_disruption: ["work done again", "loss"],
  infrastructure_recovery_from_disruption: ["waiting after a loss", "recovery"],
  evaluation: ["evaluation", "line-2"],
  unproductive_checkpoint_save_time: ["checkpoint stall", "line-3"],
  data_loading_sync: ["input stall", "input"],
  straggler: ["stragglers", "straggler"],
  capacity_missing: ["capacity missing", "missing"],
  finishing: ["finishing", "gain"],
  other: ["other", "note"],
};

export class Goodput {
  constructor() {
    this.place = el("div", { class: "halves" });
    this.causes = el("div", { class: "causes" });
    this.lives = el("div", { class: "lives scroll", role: "region", "aria-label": "Table of each worker's time", tabindex: "0" });
    // A row per worker is many elements: they are made while somebody looks at them.
    this.each = el("details", { class: "each", ontoggle: () => this.drawLives() },
      el("summary", { class: "plain", text: "Each worker's own time" }), this.lives);
    this.element = part("Where the time went", "spent", this.place, this.causes, this.each);
  }

  update(job) {
    const spent = job.status.goodput;
    this.element.hidden = !(spent && spent.wall > 0);
    if (this.element.hidden) return;
    const text = JSON.stringify(spent);
    if (text === this.shown) return;
    this.shown = text;
    this.place.replaceChildren(
      el("div", {}, ...whole("Of the job's time", spent.seconds, spent.wall)),
      el("div", {}, ...whole("Of worker seconds", spent.worker_seconds, spent.worker_wall)),
    );
    this.causes.replaceChildren(...byCause(spent.reforms ?? {}, spent.wall));
    this.workers = spent.workers ?? [];
    this.each.hidden = this.workers.length === 0;
    this.drawLives();
  }

  drawLives() {
    if (this.each.open) this.lives.replaceChildren(lives(this.workers));
  }
}

// What re-forms cost of the job's time, by what made them necessary.
function byCause(reforms, wall) {
  const causes = Object.entries(reforms).map(([cause, seconds]) => [cause, seconds, sum(Object.values(seconds))]);
  if (!causes.length) return [];
  const longest = Math.max(...causes.map(([, , all]) => all));
  return [
    el("h3", { text: "Re-forms by cause, of the job's time" }),
    ...causes.map(([cause, seconds, all]) => {
      const parts = partsOf(seconds, wall);
      const bar = stackedBar(parts, `${CAUSES[cause] ?? cause}. ${parts.map((one) => one.title).join("; ")}`);
      bar.style.width = `${Math.max(2, (100 * all) / longest)}%`;
      return el("div", { class: "cause" }, el("span", { class: `chip chip-${cause}`, text: CAUSES[cause] ?? cause }),
        el("b", { text: duration(all) }), el("span", { text: share(all, wall) }), el("span", { class: "track" }, bar));
    }),
  ];
}

function lives(workers) {
  const rows = workers.map((life) => {
    const parts = partsOf(life.seconds, life.lived);
    const lost = parts.filter((one) => one.bucket !== "productive_step").sort((a, b) => b.value - a.value)[0];
    return el("tr", {}, el("th", { scope: "row", text: String(life.worker_id) }),
      el("td", { text: life.gone ? "gone" : "here" }), el("td", { text: duration(life.lived) }),
      el("td", { text: share(life.seconds.productive_step ?? 0, life.lived) }),
      el("td", { class: "wide" }, stackedBar(parts, `Worker ${life.worker_id}. ${parts.map((one) => one.title).join("; ")}`)),
      el("td", { class: "left", text: lost ? lost.title : "nothing" }));
  });
  const head = ["Worker", "", "Lived", "Productive", "Its time", "Lost most to"];
  return el("table", {}, el("thead", {}, el("tr", {}, ...head.map((name) =>
    name ? el("th", { scope: "col", text: name }) : el("td", {})))), el("tbody", {}, ...rows));
}

function partsOf(seconds, wall) {
  return Object.entries(seconds).map(([bucket, value]) => {
    const [words, fill] = BUCKETS[bucket] ?? [bucket, "note"];
    return { bucket, name: fill, words, value, title: `${words}: ${duration(value)}, ${share(value, wall)}` };
  });
}

function sum(values) {
  return values.reduce((all, one) => all + one, 0);
}

function whole(title, seconds, wall) {
  const parts = partsOf(seconds, wall);
  const label = parts.map((one) => one.title).join("; ");
  return [
    el("h3", { text: `${title}: ${share(seconds.productive_step ?? 0, wall)} productive` }),
    stackedBar(parts, `${title}. ${label}`),
    el("ul", { class: "legend" }, ...parts.map((one) =>
      el("li", {}, el("i", { class: `dot fill-${one.name}` }), `${one.words} `, el("b", { text: duration(one.value) }),
        ` ${share(one.value, wall)}`))),
  ];
}

const PHASES = [["notice", "notice"], ["plan", "plan"], ["join", "join"], ["sync", "sync"], ["first_step", "first step"]];
const CAUSES = { loss: "a worker was lost", drain: "a worker left", growth: "workers joined", retry: "the same ring again", first: "the first ring" };
const SHOWN_PAUSES = 50;

export class Pauses {
  constructor() {
    this.summary = el("p", { class: "soft" });
    this.list = el("div", { class: "pauses" });
    this.more = el("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.all() });
    this.element = part("Pauses of the ring", "pauses", this.summary, this.list, this.more);
    this.limit = SHOWN_PAUSES;
    this.known = new Map();
  }

  all() {
    this.limit = Infinity;
    this.update(this.job);
  }

  update(job) {
    this.job = job;
    const pauses = [...job.pauses.values()].filter((pause) => pause.seconds > 0).reverse();
    const byCause = new Map();
    for (const pause of pauses) byCause.set(pause.cause, [...(byCause.get(pause.cause) ?? []), pause.seconds]);
    const words = [...byCause].map(([cause, seconds]) =>
      `${CAUSES[cause] ?? cause}: ${count(seconds.length)} (${duration(seconds.reduce((a, b) => a + b, 0))})`);
    this.summary.textContent = words.length ? words.join(" · ") : "The ring was never re-formed so far.";
    this.more.hidden = pauses.length <= this.limit;
    this.more.textContent = `Show all ${count(pauses.length)}`;
    const wanted = pauses.slice(0, this.limit);
    const longest = pauses.reduce((most, one) => Math.max(most, one.seconds), 0);
    const rows = wanted.map((pause) => this.row(pause, longest));
    if (rows.length !== this.list.children.length || rows.some((row, at) => this.list.children[at] !== row)) {
      this.list.replaceChildren(...rows);
    }
  }

  // A row that somebody opened stays open: it is made anew only when what it tells has changed.
  row(pause, longest) {
    const before = this.known.get(pause.generation);
    if (before?.pause === pause && before.longest === longest) return before.element;
    const slowest = pause.survivors.reduce((a, b) => (total(a) > total(b) ? a : b));
    const bar = stackedBar(parts(slowest), words(slowest));
    bar.style.width = `${Math.max(2, (100 * pause.seconds) / longest)}%`;
    const element = el(
      "details",
      { "data-generation": String(pause.generation) },
      el("summary", {},
        el("span", { class: "when", text: clock(pause.planned) }),
        el("span", { class: `chip chip-${pause.cause}`, text: CAUSES[pause.cause] ?? pause.cause }),
        el("b", { text: duration(pause.seconds) }),
        el("span", { class: "track" }, bar)),
    );
    // Phases of all survivors are many cells: they are made when somebody wants to see them.
    const open = () => {
      if (element.open && element.children.length === 1) {
        element.append(el("p", { text: `Generation ${pause.generation}, a ring of ${pause.size}: ${pause.reason}` }), table(pause));
      }
    };
    element.addEventListener("toggle", open);
    element.open = before?.element.open ?? false;
    open();
    this.known.set(pause.generation, { pause, longest, element });
    return element;
  }
}

function total(survivor) {
  return PHASES.reduce((sum, [name]) => sum + survivor[name], 0);
}

function parts(survivor) {
  return PHASES.map(([name, title]) => ({ name, value: survivor[name], title: `${title} ${duration(survivor[name])}` }));
}

function words(survivor) {
  return `Worker ${survivor.worker_id}: ${parts(survivor).map((one) => one.title).join(", ")}`;
}

function table(pause) {
  const head = ["worker", ...PHASES.map(([, title]) => title), "pause"];
  const rows = [...pause.survivors].sort((a, b) => a.worker_id - b.worker_id).map((one) =>
    el("tr", {}, el("th", { scope: "row", text: String(one.worker_id) }),
      ...PHASES.map(([name]) => el("td", { text: duration(one[name]) })),
      el("td", {}, el("b", { text: duration(total(one)) }))));
  const title = `Phases of the pause of generation ${pause.generation}`;
  return el("div", { class: "scroll", role: "region", "aria-label": title, tabindex: "0" },
    el("table", {}, el("caption", { text: many(pause.survivors.length, "survivor") }),
      el("thead", {}, el("tr", {}, ...head.map((name, at) => el("th", { scope: "col", class: at ? "" : "left", text: name })))),
      el("tbody", {}, ...rows)));
}
