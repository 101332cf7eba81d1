// The page of a cluster: how full it is, who has how many workers over time, and why.

import { Chart } from "./charts.js";
import { el, onOtherColours, part, setText } from "./dom.js";
import { Live } from "./live.js";
import { show, tile } from "./tiles.js";
import { count, day, duration, many, share } from "./words.js";

const MOST_LINES = 7;
const MOST_ROWS = 500;
const MOST_SAMPLES = 2000;
const OVER = ["Succeeded", "Stopped", "Failed"];

const percent = (value) => share(value, 1);

// What the controller told so far.
class Cluster {
  constructor() {
    this.picture = null;
    this.samples = [];
    this.me = "";
  }

  get since() {
    return this.samples.length ? this.samples[this.samples.length - 1][0] : 0;
  }

  apply(update) {
    if (update.me !== this.me) this.samples = [];  // another one, with samples of its own
    this.me = update.me;
    this.picture = update.picture;
    this.samples.push(...update.samples.filter((sample) => sample[0] > this.since));
    if (this.samples.length > MOST_SAMPLES) this.samples = this.samples.filter((_, at) => at % 2 === 0);
  }

  get range() {
    const end = this.picture.wall;
    return [this.samples.length ? this.samples[0][0] : end - 1, Math.max(end, (this.samples[0]?.[0] ?? 0) + 1)];
  }

  // The jobs with the most workers one by one, the others together.
  get lines() {
    const most = new Map();
    for (const sample of this.samples) {
      for (const [name, workers] of Object.entries(sample[4])) most.set(name, Math.max(workers, most.get(name) ?? 0));
    }
    const order = [...most.keys()].sort((a, b) => most.get(b) - most.get(a) || (a < b ? -1 : 1));
    const named = order.slice(0, MOST_LINES);
    const rest = order.slice(MOST_LINES);
    const values = named.map((name) => this.samples.map((sample) => sample[4][name] ?? 0));
    const uncounted = this.samples.some((sample) => sample[5]);  // of jobs that a sample does not name
    if (!rest.length && !uncounted) return { names: named, values };
    values.push(this.samples.map((sample) => rest.reduce((sum, name) => sum + (sample[4][name] ?? 0), sample[5])));
    return { names: [...named, uncounted ? "others" : `${rest.length} others`], values };
  }
}

class ClusterView {
  constructor(cluster) {
    this.cluster = cluster;
    this.state = el("span", { class: "soft", role: "status" });
    this.used = tile("CPUs in use");
    this.nodes = tile("Nodes");
    this.running = tile("Jobs that train");
    this.queued = tile("Jobs that wait");
    this.workers = tile("Workers");
    this.waiting = tile("Pods of others that wait");
    const tiles = [this.used, this.nodes, this.running, this.queued, this.workers, this.waiting];
    this.names = [];
    this.charts = [
      new Chart("CPUs in use", ["of all"], ({ samples }) => [samples.map((one) => one[0]), samples.map((one) => one[1])], { zero: true, show: percent }),
      new Chart("Workers per job", [], ({ samples, lines }) => {
        this.names = lines.names;
        return [samples.map((one) => one[0]), ...lines.values];
      }, { zero: true, names: () => this.names, show: count }),
      new Chart("Waiting", ["jobs", "pods of others"], ({ samples }) => [0, 3, 2].map((at) => samples.map((one) => one[at])), { zero: true, show: count }),
    ];
    this.rows = el("tbody", {});
    this.more = el("p", { class: "soft", hidden: true });
    this.pods = el("p", { class: "notice", hidden: true });
    const heads = ["Job", "Phase", "Workers", "Min–max", "Done", "Starts", "Ends", "Why"];
    const table = el("table", { class: "jobs" }, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))), this.rows);
    this.element = el("div", { class: "page" },
      el("header", {}, el("h1", { text: "Cluster" }), this.state),
      el("main", {}, this.pods,
        el("dl", { class: "tiles" }, ...tiles.map((one) => one.element)),
        part("Over time", "over-time", el("div", { class: "charts" }, ...this.charts.map((chart) => chart.element))),
        part("Jobs and the plan", "jobs", el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table of jobs" }, table), this.more)));
    onOtherColours(() => {
      for (const chart of this.charts) chart.recolour();
      this.draw();
    });
  }

  draw() {
    const { picture, range } = this.cluster;
    const going = picture.jobs.filter((job) => !OVER.includes(job.phase));
    const training = going.filter((job) => ["Running", "Scaling"].includes(job.phase));
    const others = Object.entries(picture.used).filter(([name]) => name !== "CPU");
    show(this.used, percent(picture.used.CPU ?? 0), others.map(([name, value]) => `${name} ${percent(value)}`).join(" · "));
    show(this.nodes, count(picture.nodes), "ready");
    show(this.running, count(training.length), `of ${many(picture.jobs.length, "job")}`);
    show(this.queued, count(going.length - training.length), "");
    const [ready, target] = ["ready", "target"].map((name) => going.reduce((sum, job) => sum + job[name], 0));
    show(this.workers, count(ready), `${count(target)} planned`);
    const waiting = picture.waiting.length + picture.more_waiting;
    show(this.waiting, count(waiting), "");
    this.pods.hidden = waiting === 0;
    setText(this.pods, waiting ? `without a place: ${picture.waiting.join(", ")}${picture.more_waiting ? ` and ${count(picture.more_waiting)} more` : ""}` : "");
    const shown = [...going, ...picture.jobs.filter((job) => OVER.includes(job.phase)).reverse()].slice(0, MOST_ROWS);
    const text = JSON.stringify(shown);
    if (this.rows.dataset.shown !== text) {
      this.rows.dataset.shown = text;
      this.rows.replaceChildren(...shown.map((job) => row(job, picture.wall)));
    }
    this.more.hidden = shown.length === picture.jobs.length;
    setText(this.more, `${count(picture.jobs.length - shown.length)} more that are over: elasticdl jobs --cluster`);
    for (const chart of this.charts) chart.update(this.cluster, range);
  }
}

function row(job, now) {
  const cells = [
    job.phase, `${job.ready} of ${job.target}`, `${job.minimum}–${job.maximum}`,
    job.percent === null ? "–" : `${job.percent} %`, moment(job.starts, now), moment(job.ends, now),
  ];
  return el("tr", {}, el("th", { scope: "row", text: `${job.namespace}/${job.name}` }),
    ...cells.map((text) => el("td", { text })), el("td", { class: "why", text: job.reason }));
}

function moment(wall, now) {
  if (wall === null) return "–";
  return wall > now ? `in ${duration(wall - now)}` : day(wall);
}

const cluster = new Cluster();
const view = new ClusterView(cluster);
document.getElementById("app").replaceChildren(view.element);
const words = { live: "live", lost: "connection lost, trying again", refused: "refused", over: "the controller ended" };
new Live("").follow(() => cluster.since, (update) => {
  cluster.apply(update);
  view.draw();
}, (state) => {
  setText(view.state, words[state]);
  view.state.dataset.state = state;
});
