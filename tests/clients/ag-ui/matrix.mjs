// AG-UI's client: its row of the matrix of clients.
import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";

const cells = await import(process.env.KHALA_CELLS);
const { absent, approvalCall, call, cell, get, message, png, providerModel, server, spentToken, token, until, weather, words, works } = cells;
const { deepEqual, equal, match } = (await import("node:assert")).strict;
const url = `${server}/api/ag-ui`;
console.error = console.warn = () => {};

class Connecting extends HttpAgent {
  connect(input) {
    const address = `${this.url}?${new URLSearchParams({ threadId: input.threadId })}`;
    return transformHttpEventStream(runHttpRequest(() => fetch(address, { headers: { ...this.headers, Accept: "text/event-stream" } })));
  }
}

const agent = (threadId = crypto.randomUUID(), key = token) => new Connecting({ url, headers: { Authorization: `Bearer ${key}` }, threadId });
const said = (talk) => talk.messages.at(-1).content;
async function ask(talk, content, options = {}, more = {}) {
  talk.addMessage({ id: crypto.randomUUID(), role: "user", content });
  return talk.runAgent({ forwardedProps: { options }, ...more });
}

await cell("text", async () => {
  const talk = agent();
  await ask(talk, "/echo En taro Adun");
  equal(said(talk), "En taro Adun");
});

await cell("stream", async () => {
  const talk = agent();
  const deltas = [];
  talk.subscribe({ onTextMessageContentEvent: ({ event }) => void deltas.push(event.delta) });
  await ask(talk, "/words=60 /pace=60", { model: providerModel });
  equal(deltas.length > 1, true);
  equal(deltas.join("").trim(), words(60));
});

await cell("tools", async () => {
  const talk = agent();
  await ask(talk, call, {}, { tools: [weather] });
  const [called] = talk.messages.at(-1).toolCalls;
  deepEqual(JSON.parse(called.function.arguments), { city: "Aiur" });
  talk.addMessage({ id: "r1", role: "tool", toolCallId: called.id, content: "sunny" });
  await talk.runAgent({ tools: [weather] });
  equal(said(talk), "It is fine.");
});

await cell("forced", async () => {
  const talk = agent();
  await ask(talk, "Hello", { toolChoice: { mode: "required", tools: ["weather"] } }, { tools: [weather] });
  equal(talk.messages.at(-1).toolCalls[0].function.name, "weather");
  return works("With `toolChoice` in `forwardedProps.options`.");
});

await cell("structured", async () => {
  const schema = { type: "object", properties: { name: { type: "string" } }, required: ["name"], additionalProperties: false };
  const talk = agent();
  await ask(talk, "Which is the largest city?", { responseFormat: { type: "json_schema", schema } });
  deepEqual(Object.keys(JSON.parse(said(talk))), ["name"]);
  return works("With `responseFormat` in `forwardedProps.options`.");
});

await cell("images", async () => {
  const talk = agent();
  const source = { type: "data", value: png.split(",")[1], mimeType: "image/png" };
  await ask(talk, [{ type: "text", text: "Look." }, { type: "image", source }]);
  match(said(talk), /image\/png/);
});

await cell("usage", async () => {
  const talk = agent();
  let usage;
  talk.subscribe({ onRunFinishedEvent: ({ event }) => void (usage = event.usage) });
  await ask(talk, "/words=7 /pace=0");
  equal(usage[0].outputTokens, 7);
});

await cell("cancel", async () => {
  const talk = agent();
  const running = ask(talk, "/words=2000 /pace=50");
  await until(() => (talk.messages[1]?.content ?? "").length > 20);
  equal((await fetch(`${url}/${talk.threadId}/stop`, { method: "POST", headers: talk.headers })).status, 204);
  await running;
  equal((await get(`/api/threads/${talk.threadId}`)).messages.at(-1).status, "canceled");
  return works("By a POST to `…/stop`. `abortRun()` only stops reading, and the answer continues.");
});

await cell("resume", async () => {
  const talk = agent();
  const running = ask(talk, "/words=60 /pace=60");
  await until(() => (talk.messages[1]?.content ?? "").length > 20);
  talk.abortRun();
  await running.catch(() => {});
  const other = agent(talk.threadId);
  await other.connectAgent();
  equal(said(other), words(60));
  return works("With `connect()` of a subclass: see [Connect to a thread](ag-ui.md#connect-to-a-thread-from-ag-ui).");
});

await cell("approvals", async () => {
  const talk = agent();
  await ask(talk, approvalCall, { autopilot: true });
  const [pending] = talk.pendingInterrupts;
  const resume = [{ interruptId: pending.id, status: "resolved", payload: { approved: true } }];
  await talk.runAgent({ forwardedProps: { options: { autopilot: true } }, resume });
  equal(said(talk), "Over.");
});

await cell("errors", async () => {
  const unknown = await message(ask(agent(), "Hello", { model: "gpt-none" }));
  return works("", unknown, await message(ask(agent(crypto.randomUUID(), spentToken), "Hello")));
});

cells.finish();
