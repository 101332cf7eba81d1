// Numbers and moments as people read them.

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "?";
  if (seconds < 0.9995) return `${Math.round(Math.max(0, seconds) * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toPrecision(3);
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

// A tick of an axis has little room.
export function brief(value) {
  const size = Math.abs(value);
  if (size !== 0 && size < 0.01) return value.toExponential(1).replace(".0e", "e");
  return size >= 10000 ? `${Number((value / 1000).toPrecision(3))}k` : String(Number(value.toPrecision(3)));
}

export function count(value) {
  return Math.round(value).toLocaleString("en");
}

export function share(part, whole) {
  if (!(whole > 0)) return "–";
  const percent = (100 * part) / whole;
  return `${percent > 0 && percent < 10 ? percent.toFixed(1) : Math.round(percent)} %`;
}

export function clock(wall, withMillis = false) {
  const moment = new Date(wall * 1000);
  const text = moment.toLocaleTimeString("en-GB");
  return withMillis ? `${text}.${String(moment.getMilliseconds()).padStart(3, "0")}` : text;
}

export function day(wall) {
  return new Date(wall * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

export function many(value, one, more = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : more}`;
}
