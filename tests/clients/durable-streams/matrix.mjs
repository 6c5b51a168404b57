// The client of Durable Streams: its row of the matrix of clients.
import { DurableStream, stream } from "@durable-streams/client";

const cells = await import(process.env.KHALA_CELLS);
const { absent, cell, message, server, token, words, works } = cells;
const { equal } = (await import("node:assert")).strict;
const headers = { Authorization: `Bearer ${token}` };
const json = { ...headers, "Content-Type": "application/json" };

async function post(path, body) {
  const response = await fetch(server + path, { method: "POST", headers: json, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

// Follow a thread from an offset until its answer has ended, or for this many batches; returns text and offset.
async function follow(url, offset, batches = Infinity) {
  const response = await stream({ url, headers, offset, live: "sse" });
  let [text, at] = ["", offset];
  await new Promise((resolve) => {
    response.subscribeJson(async (batch) => {
      if (batches <= 0) return;
      const parts = batch.items.flatMap((frame) => frame.parts ?? []);
      text += parts.filter(({ kind }) => kind === "text-delta").map(({ data }) => data.text).join("");
      at = batch.offset;
      if (--batches <= 0 || parts.some(({ kind }) => kind === "finish")) resolve();
    });
  });
  response.cancel();
  return { text, at };
}

async function asked(text) {
  const { thread } = await post("/api/threads", {});
  const url = `${server}/v1/stream/threads/${thread.id}`;
  const before = await stream({ url, headers, offset: "-1", live: false });
  await before.json();
  await post(`/api/threads/${thread.id}/send`, { text });
  return { url, offset: before.offset };
}

await cell("text", async () => {
  const { url, offset } = await asked("/echo En taro Adun");
  equal((await follow(url, offset)).text, "En taro Adun");
  return works("Each thread is a read-only stream of its frames; a message is sent by REST.");
});

await cell("stream", async () => {
  const url = `${server}/v1/stream/events/matrix`;
  const handle = await DurableStream.create({ url, headers, contentType: "text/plain" });
  await handle.append("En taro ");
  await handle.append("Adun");
  equal(await (await stream({ url, headers, offset: "-1", live: false })).text(), "En taro Adun");
  return works("Also streams that the client creates.");
});

for (const feature of ["tools", "forced", "structured", "images", "usage", "cancel", "approvals"])
  absent(feature, "The protocol has streams, and no requests to a model.");

await cell("resume", async () => {
  const { url, offset } = await asked("/words=60 /pace=60");
  const first = await follow(url, offset, 2);
  const rest = await follow(url, first.at);
  equal(first.text + rest.text, words(60));
  return works("By the offset, in the middle of an answer.");
});

await cell("errors", async () => {
  const unknown = `${server}/v1/stream/threads/00000000-0000-4000-8000-000000000000`;
  const shown = await message(stream({ url: unknown, headers, offset: "-1", live: false }));
  return works("", shown.replace(server, "https://khala.example.com"));
});

cells.finish();
