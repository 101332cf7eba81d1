// How the page talks to the master: its token, the stream of updates, commands.

const TOKEN = "token";
const AGAIN_MILLISECONDS = 1000;

// From the address bar, from where it then disappears; kept for this tab and this origin only.
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get(TOKEN);
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function forgetToken() {
  sessionStorage.removeItem(TOKEN);
}

export class Live {
  constructor(token) {
    this.headers = { Authorization: `Bearer ${token}` };
  }

  async command(name, body = {}) {
    const answer = await fetch(`/api/${name}`, { method: "POST", headers: this.headers, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error((await answer.json()).error);
  }

  // Every update until the job is over; `connection` hears how it goes: live, lost, refused, over.
  async follow(since, onUpdate, connection) {
    for (;;) {
      const answer = await fetch(`/api/updates?since=${since()}`, { headers: this.headers }).catch(() => null);
      if (answer?.status === 401) return connection("refused");
      if (answer?.ok) {
        connection("live");
        for await (const { kind, data } of messages(answer.body)) {
          if (kind === "end") return connection("over");
          onUpdate(JSON.parse(data));
        }
      }
      connection("lost");
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
    }
  }
}

// Server-sent events by fetch: EventSource can send no header, and so no token.
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = [];
  for (;;) {
    const { value, done } = await reader.read().catch(() => ({ done: true }));
    if (done) return;
    text.push(value);
    if (!value.includes("\n\n") && !value.startsWith("\n")) continue;
    const parts = text.join("").split("\n\n");
    text = [parts.pop()];
    for (const one of parts) {
      const lines = one.split("\n");
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      yield { kind: field("event") ?? "message", data: field("data") ?? "" };
    }
  }
}
