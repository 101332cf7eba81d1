// The job over time on one canvas: size of the ring, a mark per event, a lane per worker.

import { GUTTER } from "./charts.js";
import { colour, el, setText } from "./dom.js";
import { meaning } from "./job.js";
import { clock, duration, many } from "./words.js";

const RING_HEIGHT = 56;
const MARKS_HEIGHT = 18;
const AXIS_HEIGHT = 20;
const NEAR = 4;
const MOST_LANES = 96;
const DOING = ["starting", "ready", "training", "paused", "leaving"];
const MEANINGS = ["note", "change", "gain", "loss"];
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];

export class Lanes {
  constructor({ zoom, choose }) {
    this.zoom = zoom;
    this.choose = choose;
    this.canvas = el("canvas", { role: "img", class: "lanes" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.more = el("li", {});
    const items = [
      ...DOING.map((name) => el("li", {}, el("i", { class: `dot fill-${name}` }), name)),
      ...["loss", "gain", "change"].map((name) =>
        el("li", {}, el("i", { class: `tick fill-${name}` }), { loss: "lost", gain: "done", change: "changed" }[name]),
      ),
    ];
    this.element = el(
      "div",
      { class: "timeline" },
      el("div", { class: "stage" }, this.canvas, this.tip),
      el("ul", { class: "legend", "aria-label": "Colours" }, ...items, this.more),
    );
    this.drag = null;
    this.canvas.addEventListener("pointermove", (event) => this.moved(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("pointerdown", (event) => (this.drag = event.offsetX));
    this.canvas.addEventListener("pointerup", (event) => this.released(event));
    this.canvas.addEventListener("dblclick", () => this.zoom(null));
    new ResizeObserver(() => this.job && this.draw()).observe(this.element);
  }

  update(job, range) {
    this.job = job;
    this.range = range;
    this.draw();
    const living = job.workers.filter((lane) => lane.end === null).length;
    const paused = [...job.pauses.values()].filter((pause) => pause.seconds > 0);
    this.canvas.setAttribute(
      "aria-label",
      `The job over time: ${many(job.lanes.size, "worker")}, ${living} of them alive, ` +
        `${many(paused.length, "pause")}, ${many(job.events.length, "event")}. ` +
        "The lists of workers, pauses and events below say the same in words.",
    );
  }

  // ---------------------------------------------------------------------------------------- geometry

  x(wall) {
    return GUTTER + ((wall - this.range[0]) / (this.range[1] - this.range[0])) * (this.width - GUTTER - 8);
  }

  wall(x) {
    return this.range[0] + ((x - GUTTER) / (this.width - GUTTER - 8)) * (this.range[1] - this.range[0]);
  }

  // Those who lived in this time; where they are too many, the living and who ended last.
  chosen() {
    const [from, to] = this.range;
    const here = this.job.workers.filter((lane) => lane.begin <= to && (lane.end ?? to) >= from);
    if (here.length <= MOST_LANES) return here;
    const ended = (lane) => lane.end ?? Infinity;
    const last = [...here].sort((a, b) => (ended(a) < ended(b) ? 1 : -1)).slice(0, MOST_LANES);
    return last.sort((a, b) => a.worker_id - b.worker_id);
  }

  get laneHeight() {
    const lanes = this.shown.length;
    return lanes <= 12 ? 20 : lanes <= 32 ? 14 : 9;
  }

  get lanesTop() {
    return RING_HEIGHT + MARKS_HEIGHT + 6;
  }

  // ----------------------------------------------------------------------------------------- drawing

  draw() {
    this.shown = this.chosen();
    setText(this.more, this.shown.length < this.job.lanes.size ? `${this.shown.length} of ${many(this.job.lanes.size, "worker")} shown` : "");
    const ratio = devicePixelRatio || 1;
    this.width = Math.max(160, this.element.clientWidth);
    const height = this.lanesTop + this.shown.length * this.laneHeight + AXIS_HEIGHT;
    if (this.canvas.width !== Math.round(this.width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.drawAxis(pen, height);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, this.width - GUTTER, height);
    pen.clip();
    this.drawRing(pen);
    this.drawMarks(pen);
    this.drawLanes(pen);
    pen.restore();
    this.drawNames(pen);
  }

  drawAxis(pen, height) {
    const [from, to] = this.range;
    const room = Math.max(2, Math.floor((this.width - GUTTER) / 90));
    const step = STEPS.find((seconds) => (to - from) / seconds <= room) ?? 86400 * Math.ceil((to - from) / 86400 / room);
    pen.strokeStyle = colour("grid");
    pen.fillStyle = colour("soft");
    pen.textAlign = "center";
    pen.lineWidth = 1;
    for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
      const x = Math.round(this.x(tick)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x, height - AXIS_HEIGHT);
      pen.stroke();
      if (x > GUTTER + 24 && x < this.width - 30) pen.fillText(clock(tick), x, height - AXIS_HEIGHT / 2);
    }
  }

  get largest() {
    return this.job.ring.reduce((most, size) => Math.max(most, size.size), Math.max(1, this.job.status.wanted));
  }

  drawRing(pen) {
    const top = (size) => RING_HEIGHT - (size / this.largest) * (RING_HEIGHT - 8);
    const sizes = this.job.ring;
    pen.fillStyle = colour("wash");
    pen.strokeStyle = colour("training");
    pen.lineWidth = 1.75;
    pen.beginPath();
    pen.moveTo(this.x(sizes[0]?.moment ?? this.range[0]), RING_HEIGHT);
    sizes.forEach((size, at) => {
      const end = at + 1 < sizes.length ? sizes[at + 1].moment : this.range[1];
      pen.lineTo(this.x(size.moment), top(size.size));
      pen.lineTo(this.x(Math.max(end, size.moment)), top(size.size));
    });
    pen.stroke();
    pen.lineTo(this.x(this.range[1]), RING_HEIGHT);
    pen.fill();
    pen.setLineDash([3, 3]);
    pen.strokeStyle = colour("soft");
    pen.lineWidth = 1;
    const wanted = Math.round(top(this.job.status.wanted)) + 0.5;
    pen.beginPath();
    pen.moveTo(GUTTER, wanted);
    pen.lineTo(this.width, wanted);
    pen.stroke();
    pen.setLineDash([]);
  }

  drawMarks(pen) {
    const columns = new Map(MEANINGS.map((name) => [name, new Set()]));
    for (const event of this.job.events) {
      const x = Math.round(this.x(event.wall));
      if (x >= GUTTER && x <= this.width) columns.get(meaning(event)).add(x);
    }
    for (const [name, found] of columns) {
      pen.fillStyle = colour(name);
      const tall = name === "note" ? 5 : 12;
      for (const x of found) pen.fillRect(x - 1, RING_HEIGHT + MARKS_HEIGHT - tall, 2, tall);
    }
  }

  drawLanes(pen) {
    const high = this.laneHeight - (this.laneHeight > 10 ? 4 : 2);
    const byDoing = new Map(DOING.map((name) => [name, []]));
    this.shown.forEach((lane, at) => {
      for (const span of this.job.spans.get(lane.worker_id) ?? []) {
        if (span) byDoing.get(span.doing)?.push([span, at]);
      }
    });
    for (const [name, found] of byDoing) {
      pen.fillStyle = colour(name);
      for (const [span, at] of found) {
        const begin = Math.max(GUTTER, this.x(span.begin));
        const end = Math.min(this.width, this.x(span.end ?? this.range[1]));
        if (end < GUTTER || begin > this.width) continue;
        const least = name === "paused" ? 2 : 0.5;
        pen.fillRect(begin, this.lanesTop + at * this.laneHeight, Math.max(least, end - begin), high);
      }
    }
  }

  drawNames(pen) {
    pen.fillStyle = colour("soft");
    pen.textAlign = "right";
    pen.fillText(`ring ${this.largest}`, GUTTER - 8, 9);
    pen.fillText("events", GUTTER - 8, RING_HEIGHT + MARKS_HEIGHT - 6);
    const every = this.laneHeight >= 12 ? 1 : 4;
    const half = this.laneHeight / 2 - (this.laneHeight > 10 ? 2 : 1);
    this.shown.forEach((lane, at) => {
      if (at % every === 0) {
        pen.fillText(String(lane.worker_id), GUTTER - 8, this.lanesTop + at * this.laneHeight + half);
      }
    });
  }

  // ---------------------------------------------------------------------------------------- pointing

  moved(event) {
    const lines = this.drag === null ? this.under(event.offsetX, event.offsetY) : [];
    this.tip.hidden = lines.length === 0;
    if (lines.length === 0) return;
    this.tip.replaceChildren(...lines.map((line) => el("div", { text: line })));
    const left = Math.min(event.offsetX + 12, this.width - this.tip.offsetWidth - 4);
    this.tip.style.transform = `translate(${Math.max(0, left)}px, ${event.offsetY + 14}px)`;
  }

  lane(y) {
    return this.shown[Math.floor((y - this.lanesTop) / this.laneHeight)];
  }

  under(x, y) {
    const wall = this.wall(x);
    if (y < this.lanesTop) {
      const near = this.job.events.filter((event) => Math.abs(this.x(event.wall) - x) <= NEAR).slice(-6);
      const size = this.job.ring.findLast((one) => one.moment <= wall);
      const ring = size ? [`ring of ${size.size}, generation ${size.generation}`] : [];
      return [clock(wall), ...ring, ...near.map((event) => `${event.kind}: ${event.text.slice(0, 120)}`)];
    }
    const lane = this.lane(y);
    if (!lane) return [];
    const spans = (this.job.spans.get(lane.worker_id) ?? []).filter(Boolean);
    const at = (span, room) => span.begin - room <= wall && wall <= (span.end ?? this.job.now) + room;
    const room = (3 / (this.width - GUTTER)) * (this.range[1] - this.range[0]);
    const span = spans.find((one) => one.doing === "paused" && at(one, room)) ?? spans.find((one) => at(one, 0));
    const title = `worker ${lane.worker_id}${lane.host ? ` on ${lane.host}` : ""}`;
    if (!span) return [title, lane.end !== null && wall > lane.end ? `gone: ${lane.how}` : "not there yet"];
    return [title, `${span.doing} for ${duration((span.end ?? this.job.now) - span.begin)} from ${clock(span.begin)}`];
  }

  released(event) {
    const from = this.drag;
    this.drag = null;
    if (from === null) return;
    if (Math.abs(event.offsetX - from) > 8) {
      this.zoom([this.wall(Math.min(from, event.offsetX)), this.wall(Math.max(from, event.offsetX))]);
    } else if (event.offsetY >= this.lanesTop) {
      const lane = this.lane(event.offsetY);
      if (lane) this.choose(lane.worker_id);
    }
  }
}
