// One job as this page knows it: updates of the master, put together.

const MOST_EVENTS = 20000;
const MOST_SAMPLES = 4000;

export class Job {
  constructor() {
    this.reset();
  }

  reset() {
    this.status = null;
    this.serial = 0;
    this.now = 0;
    this.events = [];
    this.samples = [];
    this.lanes = new Map();
    this.spans = new Map();
    this.pauses = new Map();
    this.ring = [];
    this.about = {};
    this.evaluations = [];
  }

  apply(update) {
    if (update.serial < this.serial) this.reset(); // another master, that does not know what this page knew
    const fresh = update.events.filter((event) => event.serial > this.serial);
    this.status = update.status;
    this.now = update.wall;
    if (Object.keys(update.about).length) this.about = update.about;
    for (const event of fresh) {
      this.events.push(event);
      if (event.event.type === "ModelEvaluated") {
        this.evaluations.push({ wall: event.wall, step: event.event.step, metrics: event.event.metrics });
      }
    }
    if (this.events.length > MOST_EVENTS) this.events.splice(0, this.events.length - MOST_EVENTS);
    const last = this.samples.length ? this.samples[this.samples.length - 1][0] : 0;
    for (const sample of update.samples) if (sample[0] > last) this.samples.push(sample);
    if (this.samples.length > MOST_SAMPLES) this.samples = this.samples.filter((_, at) => at % 2 === 0);
    for (const lane of update.lanes) this.lanes.set(lane.worker_id, lane);
    for (const span of update.spans) {
      if (!this.spans.has(span.worker_id)) this.spans.set(span.worker_id, []);
      this.spans.get(span.worker_id)[span.number] = span;
    }
    for (const pause of update.pauses) this.pauses.set(pause.generation, pause);
    const known = this.ring.length ? this.ring[this.ring.length - 1].moment : 0;
    for (const size of update.ring) if (size.moment > known) this.ring.push(size);
    this.serial = Math.max(this.serial, update.serial);
    return fresh;
  }

  get over() {
    return ["Succeeded", "Stopped", "Failed"].includes(this.status.phase);
  }

  // From the first thing that is known of it until now.
  get range() {
    const first = [this.events[0]?.wall, this.samples[0]?.[0]].filter((wall) => wall > 0);
    const begin = first.length ? Math.min(...first) : this.now - 1;
    const end = this.over && this.events.length ? this.events[this.events.length - 1].wall : this.now;
    return [begin, Math.max(end, begin + 1)];
  }

  get workers() {
    return [...this.lanes.values()].sort((a, b) => a.worker_id - b.worker_id);
  }
}

export function workersOf(event) {
  const facts = event.event;
  if (Array.isArray(facts.workers)) return facts.workers;
  return Number.isInteger(facts.worker_id) && facts.worker_id >= 0 ? [facts.worker_id] : [];
}

// What an event means to somebody who looks at a mark: something got lost, came, left, or was said.
const LOSSES = new Set(["exit", "evict", "failure", "abort", "set-back", "warning", "anomaly", "nan", "straggler"]);
const GAINS = new Set(["ready", "re-form", "newcomers", "finish"]);
const CHANGES = new Set(["plan", "scale", "stop", "drain", "short", "relaunch", "end", "resume", "restart"]);
const IN_ORDER = new Set(["drained", "finished"]);

export function meaning(event) {
  if (event.kind === "exit" && IN_ORDER.has(event.event.cause)) return "change";
  if (LOSSES.has(event.kind)) return "loss";
  if (GAINS.has(event.kind)) return "gain";
  return CHANGES.has(event.kind) ? "change" : "note";
}
