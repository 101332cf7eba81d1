// Elements. Text becomes text, never markup: nobody here writes HTML.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function part(title, id, ...children) {
  return el("section", { class: "card", "aria-labelledby": id }, el("h2", { id, text: title }), ...children);
}

export function field(label, control) {
  return el("div", { class: "field" }, el("label", { for: control.id, text: label }), control);
}

// A colour of the style sheet, as a canvas wants it: light or dark is decided by now.
const probe = document.createElement("span");
const colours = new Map();

export function colour(name) {
  if (!probe.isConnected) {
    probe.hidden = true;
    document.body.append(probe);
  }
  if (!colours.has(name)) {
    probe.style.color = `var(--${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

export function onOtherColours(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours.clear();
    redraw();
  });
}

// A bar of parts: [{ name, title, value }], each as wide as its share.
export function stackedBar(parts, label) {
  const whole = parts.reduce((sum, one) => sum + one.value, 0);
  const bar = el("div", { class: "bar", role: "img", "aria-label": label });
  for (const one of parts) {
    if (!(one.value > 0)) continue;
    const piece = el("span", { class: `fill-${one.name}`, title: one.title });
    piece.style.flexGrow = String(one.value / whole);
    bar.append(piece);
  }
  return bar;
}
