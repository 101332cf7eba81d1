// The report: the same picture of a job, from the data that stands in the file itself.

import { setText } from "./dom.js";
import { Job } from "./job.js";
import { View } from "./view.js";
import { day } from "./words.js";

const data = JSON.parse(document.getElementById("data").textContent);
const job = new Job();
const view = new View(job);
document.getElementById("app").replaceChildren(view.element);
view.update(job.apply(data));
setText(view.state, `report of ${day(data.wall)}`);
