// The whole picture of a job; the live page and the report show the same.

import { jobCharts } from "./charts.js";
import { el, onOtherColours, part, setText } from "./dom.js";
import { meaning } from "./job.js";
import { Lanes } from "./lanes.js";
import { Configuration, Data, Log, Workers } from "./lists.js";
import { Goodput, Pauses } from "./spent.js";
import { Tiles } from "./tiles.js";
import { clock } from "./words.js";

export class View {
  // `commands`: what the buttons do; null in a report.
  constructor(job, commands = null) {
    this.job = job;
    this.zoomed = null;
    const zoom = (range) => this.zoom(range);
    this.log = new Log();
    const choose = (worker) => this.log.choose(worker);
    this.name = el("h1", { text: "elasticdl" });
    this.phase = el("span", { class: "phase" });
    this.state = el("span", { class: "soft", role: "status" });
    this.notice = el("p", { class: "notice", role: "status", hidden: true });
    this.told = el("p", { class: "unseen", "aria-live": "polite" });
    this.drawn = false;
    this.scale = el("button", { type: "button", text: "Scale…", onclick: () => commands.scale(this.job.status.wanted) });
    this.buttons = commands === null ? [] : [
      this.scale,
      el("button", { type: "button", class: "danger", text: "Stop…", onclick: () => commands.stop() }),
    ];
    this.tiles = new Tiles();
    this.lanes = new Lanes({ zoom, choose });
    this.charts = jobCharts(zoom);
    this.wide = el("button", { type: "button", class: "quiet", hidden: true, text: "Show the whole time", onclick: () => this.zoom(null) });
    this.goodput = new Goodput();
    this.pauses = new Pauses();
    this.workers = new Workers({ drain: commands && ((id) => commands.drain(id)), choose });
    this.data = new Data();
    this.configuration = new Configuration();
    this.element = el("div", { class: "page" },
      el("a", { class: "skip", href: "#events", text: "Skip to the events" }),
      el("header", {}, this.name, this.phase, this.state, el("div", { class: "actions" }, ...this.buttons), this.told),
      el("main", {},
        this.notice,
        this.tiles.element,
        part("The job over time", "over-time", this.lanes.element, this.wide),
        part("Training", "training", el("div", { class: "charts" }, ...this.charts.map((chart) => chart.element))),
        this.goodput.element,
        el("div", { class: "columns" }, this.pauses.element, this.data.element),
        this.workers.element,
        this.log.element,
        this.configuration.element));
    onOtherColours(() => {
      for (const chart of this.charts) chart.recolour();
      this.draw();
    });
  }

  update(fresh) {
    this.log.add(fresh);
    const important = this.drawn ? fresh.findLast((event) => meaning(event) !== "note") : undefined;
    if (important) setText(this.told, important.text);
    this.drawn = true;
    this.draw();
  }

  zoom(range) {
    this.zoomed = range;
    this.wide.hidden = range === null;
    if (range !== null) setText(this.wide, `${clock(range[0])} to ${clock(range[1])}: show the whole time`);
    this.draw();
  }

  draw() {
    const { job } = this;
    if (job.status === null) return;
    const { status } = job;
    const range = this.zoomed ?? job.range;
    document.title = `${status.job_name}: ${status.phase}`;
    setText(this.name, status.job_name);
    setText(this.phase, status.phase);
    this.phase.dataset.phase = status.phase;
    const notice = job.over ? status.reason : status.short || (status.waiting_for && `waiting: ${status.waiting_for}`);
    this.notice.hidden = !notice;
    setText(this.notice, notice || "");
    for (const button of this.buttons) button.disabled = job.over;
    this.scale.hidden = Boolean(job.about["sized by"]);  // then the master would refuse it
    for (const one of [this.tiles, this.goodput, this.pauses, this.workers, this.data, this.configuration]) one.update(job);
    this.lanes.update(job, range);
    for (const chart of this.charts) chart.update(job, range);
  }
}
