// The figures at the top: how far, how good, how fast, how many, how much of the time counts.

import { el, setText } from "./dom.js";
import { count, duration, many, number, share } from "./words.js";

export function tile(title) {
  const value = el("dd", { class: "value", text: "–" });
  const more = el("dd", { class: "more" });
  return { value, more, element: el("div", { class: "tile" }, el("dt", { text: title }), value, more) };
}

export class Tiles {
  constructor() {
    this.progress = tile("Progress");
    this.bar = el("progress", { max: "1", "aria-label": "Part of the steps that are made" });
    this.progress.element.append(el("dd", { class: "meter" }, this.bar));
    this.loss = tile("Loss");
    this.speed = tile("Records per second");
    this.ring = tile("Ring");
    this.goodput = tile("Goodput");
    this.pauses = tile("Pauses");
    const all = [this.progress, this.loss, this.speed, this.ring, this.goodput, this.pauses];
    this.element = el("dl", { class: "tiles" }, ...all.map((one) => one.element));
  }

  update(job) {
    const status = job.status;
    const total = status.total_steps;
    show(this.progress, count(status.step), joined([
      total ? `of ${many(total, status.counts)}` : `${status.counts}s`,
      status.length ? `epoch ${epoch(status)} of ${count(status.length.epochs)}` : "",
      job.over ? `took ${duration(status.elapsed)}` : left(status),
    ]));
    this.bar.value = total ? Math.min(1, status.step / total) : 0;
    const metrics = Object.entries(status.metrics).slice(0, 2);
    show(this.loss, number(status.loss), joined(metrics.map(([name, value]) => `${name} ${number(value)}`)) || "in the last step");
    show(this.speed, count(status.records_per_second), `${number(status.steps_per_second)} steps/s`);
    const members = status.workers.filter((worker) => worker.rank >= 0).length;
    show(this.ring, `${members} of ${status.wanted || "any"}`, `generation ${status.generation}`);
    const spent = status.goodput;
    if (spent && spent.wall > 0) {
      show(this.goodput, share(spent.seconds.productive_step ?? 0, spent.wall),
        `of the time; ${share(spent.worker_seconds.productive_step ?? 0, spent.worker_wall)} of worker seconds`);
    } else {
      show(this.goodput, share(status.tally.trained, status.elapsed), "of the time with a ring");
    }
    const seconds = status.tally.pauses;
    show(this.pauses, count(seconds.length), seconds.length
      ? `longest ${duration(Math.max(...seconds))}, together ${duration(seconds.reduce((a, b) => a + b, 0))}`
      : `${many(status.tally.losses, "worker")} lost`);
  }
}

export function show(one, value, more) {
  setText(one.value, value);
  setText(one.more, more);
}

function joined(parts) {
  return parts.filter(Boolean).join(" · ");
}

function epoch(status) {
  return count(Math.min(Math.floor(status.position / status.length.records) + 1, status.length.epochs));
}

function left(status) {
  const steps = status.total_steps - status.step;
  return steps > 0 && status.steps_per_second > 0 ? `${duration(steps / status.steps_per_second)} left` : "";
}
