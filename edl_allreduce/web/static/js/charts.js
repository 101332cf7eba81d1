// Lines over time, by uPlot: loss, metrics, records per second, step times.

import { colour, el } from "./dom.js";
import { brief, clock, number } from "./words.js";

export const GUTTER = 56;
const HEIGHT = 150;
const LINES = ["line-1", "line-2", "line-3", "line-4", "recovery", "input", "straggler", "note"];

export class Chart {
  // `series`: names of the lines; `of(job)`: [x values, values of each line].
  constructor(title, series, of, options = {}) {
    this.title = title;
    this.series = series;
    this.of = of;
    this.options = options;
    this.place = el("div", { class: "plot" });
    this.words = el("figcaption", {});
    this.element = el("figure", { class: "chart", role: "group", "aria-label": title }, this.words, this.place);
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(this.place);
  }

  update(job, range) {
    const data = this.of(job);
    this.element.hidden = this.options.optional === true && data[0].length === 0;
    if (this.element.hidden) return;
    if (this.plot === null || this.plot.series.length !== data.length) this.make(data);
    this.range = range;
    this.plot.setData(data, false);
    this.plot.setScale("x", { min: range[0], max: range[1] });
    this.tell(data);
  }

  tell(data) {
    const last = data.slice(1).map((values) => values.findLast((value) => value !== null && value !== undefined));
    const names = this.names(data.length - 1);
    const now = last.map((value, at) => (names.length > 1 ? `${names[at]} ${this.shown(value)}` : this.shown(value)));
    const text = `${this.title}: ${now.join(", ")}`;
    if (this.words.textContent !== text) {
      this.words.replaceChildren(el("span", { class: "name", text: this.title }), ": ", el("b", { text: now.join(", ") }));
      this.place.setAttribute("aria-label", `Line over time. ${text}`);
      this.place.setAttribute("role", "img");
    }
  }

  names(length) {
    return this.series.length ? this.series : Array.from({ length }, (_, at) => this.options.names()[at]);
  }

  shown(value) {
    return value === undefined ? "–" : (this.options.show ?? number)(value);
  }

  make(data) {
    this.plot?.destroy();
    const names = this.names(data.length - 1);
    const axis = {
      stroke: colour("soft"),
      grid: { stroke: colour("grid"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const lines = names.map((label, at) => ({
      label,
      stroke: colour(LINES[at % LINES.length]),
      width: 1.75,
      fill: names.length === 1 && !this.options.points ? colour("wash") : undefined,
      points: { show: this.options.points === true, size: 6, fill: colour(LINES[at % LINES.length]) },
      spanGaps: true,
    }));
    const low = this.options.zero ? 0 : undefined;
    this.plot = new uPlot(
      {
        width: Math.max(120, this.place.clientWidth),
        height: HEIGHT,
        legend: { show: false },
        cursor: { sync: { key: "job" }, drag: { x: true, y: false, setScale: false }, points: { size: 5 } },
        scales: { x: { time: true }, y: { range: (_, min, max) => span(min, max, low) } },
        series: [{}, ...lines],
        axes: [
          { ...axis, size: 26, space: 70, values: (_, ticks) => ticks.map((tick) => clock(tick)) },
          { ...axis, size: GUTTER, space: 28, values: (_, ticks) => ticks.map((tick) => (this.options.show ?? brief)(tick)) },
        ],
        hooks: {
          setSelect: [(plot) => this.selected(plot)],
          setCursor: [(plot) => this.pointed(plot)],
          ready: [(plot) => plot.over.addEventListener("dblclick", () => this.options.zoom?.(null))],
        },
      },
      data,
      this.place,
    );
  }

  pointed(plot) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined) return this.tell(plot.data);
    this.tell(plot.data.map((values) => values.slice(0, at + 1)));
  }

  selected(plot) {
    if (plot.select.width < 8) return;
    const ends = [plot.select.left, plot.select.left + plot.select.width].map((x) => plot.posToVal(x, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.options.zoom?.(ends);
  }

  resize() {
    if (this.plot !== null && this.place.clientWidth > 0) {
      this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT });
    }
  }

  recolour() {
    this.plot?.destroy();
    this.plot = null;
  }
}

function span(min, max, low) {
  if (min === null || max === null || min === undefined) return [0, 1];
  const from = low ?? min;
  const room = (max - from || Math.abs(max) || 1) * 0.08;
  return [low ?? from - room, max + room];
}

const column = (job, at, keep = (value) => value) => job.samples.map((sample) => keep(sample[at]));
const positive = (value) => (value > 0 ? value : null);

export function jobCharts(zoom) {
  let metrics = [];
  return [
    new Chart("Loss", ["loss"], (job) => [column(job, 0), column(job, 2)], { zoom }),
    new Chart("Records per second", ["records/s"], (job) => [column(job, 0), column(job, 3)], { zoom, zero: true }),
    new Chart(
      "Own time of a step, before members meet",
      ["slowest", "fastest"],
      (job) => {
        if (!job.samples.some((sample) => sample[7] > 0)) return [[], [], []];
        return [column(job, 0), column(job, 7, positive), column(job, 6, positive)];
      },
      { zoom, zero: true, optional: true, show: (value) => `${number(value * 1000)} ms` },
    ),
    new Chart(
      "Evaluation",
      [],
      (job) => {
        metrics = [...new Set(job.evaluations.flatMap((one) => Object.keys(one.metrics)))];
        const values = metrics.map((name) => job.evaluations.map((one) => one.metrics[name] ?? null));
        return [job.evaluations.map((one) => one.wall), ...values];
      },
      { zoom, optional: true, points: true, names: () => metrics },
    ),
  ];
}
