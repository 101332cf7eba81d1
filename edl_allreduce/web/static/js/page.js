// The live page.

import { el, field, setText } from "./dom.js";
import { Job } from "./job.js";
import { forgetToken, Live, takeToken } from "./live.js";
import { View } from "./view.js";

const app = document.getElementById("app");
const DRAW_MILLISECONDS = 200;

function confirmed({ title, words, action, danger = false, control = null }, run) {
  const error = el("p", { class: "error", role: "alert", hidden: true });
  const ok = el("button", { type: "submit", class: danger ? "danger" : "primary", text: action });
  const cancel = el("button", { type: "button", text: "Cancel", onclick: () => dialog.close() });
  const form = el("form", { method: "dialog" }, el("h2", { id: "dialog-title", text: title }), el("p", { text: words }),
    control && field(control.dataset.label, control),
    error, el("div", { class: "actions" }, cancel, ok));
  const dialog = el("dialog", { "aria-labelledby": "dialog-title", onclose: () => dialog.remove() }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    ok.disabled = true;
    try {
      await run(control?.valueAsNumber);
      dialog.close();
    } catch (problem) {
      error.hidden = false;
      error.textContent = problem.message;
      ok.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}

function commandsOf(live) {
  return {
    scale(wanted) {
      const control = el("input", { id: "scale-to", type: "number", min: "1", step: "1", required: true, value: String(wanted || 1), "data-label": "Workers" });
      confirmed({ title: "Scale the job", words: "New workers prepare beside the others and join in one re-form; surplus ones finish their step and leave.", action: "Scale", control },
        (count) => live.command("scale", { num_workers: count }));
    },
    drain(id) {
      confirmed({ title: `Drain worker ${id}`, words: "It finishes its step and leaves; another one takes its place.", action: `Drain worker ${id}`, danger: true },
        () => live.command("drain", { worker_id: id }));
    },
    stop() {
      confirmed({ title: "Stop the job", words: "Every worker finishes its step, the model so far is written, and all of them exit.", action: "Stop the job", danger: true },
        () => live.command("stop"));
    },
  };
}

function askForToken() {
  const control = el("input", { id: "token", type: "password", autocomplete: "off", required: true });
  app.replaceChildren(el("main", { class: "page narrow" }, el("section", { class: "card" },
    el("h1", { text: "This job's page is locked" }),
    el("p", {}, "Open it with ", el("code", { text: "elasticdl dashboard" }), ", or paste the token that follows ", el("code", { text: "#token=" }), " in the address that the job printed."),
    el("form", { onsubmit: (event) => { event.preventDefault(); location.hash = `token=${control.value.trim()}`; location.reload(); } },
      field("Token", control),
      el("div", { class: "actions" }, el("button", { type: "submit", class: "primary", text: "Open" }))))));
}

function run(token) {
  const live = new Live(token);
  const job = new Job();
  const view = new View(job, commandsOf(live));
  app.replaceChildren(view.element);
  let fresh = [];
  let due = false;
  const draw = () => {
    due = false;
    view.update(fresh);
    fresh = [];
  };
  const soon = () => {
    if (due) return;
    due = true;
    setTimeout(() => requestAnimationFrame(draw), job.serial ? DRAW_MILLISECONDS : 0);
  };
  const words = { live: "live", lost: "connection lost, trying again", over: "the job is over" };
  live.follow(() => job.serial, (update) => {
    fresh.push(...job.apply(update));
    soon();
  }, (state) => {
    if (state === "refused") {
      forgetToken();
      askForToken();
    } else {
      setText(view.state, words[state]);
      view.state.dataset.state = state;
    }
  });
}

addEventListener("hashchange", () => location.reload());
const token = takeToken();
if (token) run(token);
else askForToken();
