// Prints what the protocol's own client has seen, by scenario. KHALA_URL is the server, KHALA_TOKEN an account's token.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client";

const base = `${process.env.KHALA_URL}/v1/stream`;
const headers = { Authorization: `Bearer ${process.env.KHALA_TOKEN}` };

// Five batches are in flight at once, so they arrive in any order.
async function produced() {
  const url = `${base}/events/produced`;
  const handle = await DurableStream.create({ url, headers, contentType: "application/json" });
  const producer = new IdempotentProducer(handle, "probe", { maxBatchBytes: 200, lingerMs: 0 });
  for (let number = 0; number < 200; number++) producer.append(JSON.stringify({ number }));
  await producer.flush();
  await producer.close();
  const found = await (await stream({ url, headers, offset: "-1", live: false })).json();
  return { numbers: found.map((item) => item.number), closed: (await handle.head()).streamClosed };
}

async function followed(live) {
  const url = `${base}/events/followed-${live}`;
  const handle = await DurableStream.create({ url, headers, contentType: "text/plain" });
  await handle.append("En taro ");
  const response = await stream({ url, headers, offset: "-1", live });
  let text = "";
  const whole = new Promise((resolve) => {
    response.subscribeText(async (chunk) => {
      text += chunk.text;
      if (text.endsWith("!")) resolve();
    });
  });
  // Cut inside a character: an event stream holds it back until it is whole. Other responses have the bytes as they are.
  const bytes = new TextEncoder().encode("Adún!");
  const cut = live === "sse" ? 3 : 4;
  await handle.append(bytes.slice(0, cut));
  await handle.append(bytes.slice(cut));
  await whole;
  response.cancel();
  return text;
}

async function thread() {
  const url = `${base}/threads/${process.env.KHALA_THREAD}`;
  const first = await stream({ url, headers, offset: "-1", live: false });
  const before = await first.json();
  const sent = await fetch(`${process.env.KHALA_URL}/api/threads/${process.env.KHALA_THREAD}/send`, {
    method: "POST",
    headers: { ...headers, "Content-Type": "application/json" },
    body: JSON.stringify({ text: "/echo En taro Tassadar" }),
  });
  const { runId } = await sent.json();
  const frames = [];
  const response = await stream({ url, headers, offset: first.offset, live: process.env.KHALA_LIVE ?? "sse" });
  await new Promise((resolve) => {
    response.subscribeJson(async (batch) => {
      frames.push(...batch.items);
      const finished = frames.some((frame) => frame.parts?.some((part) => part.runId === runId && part.kind === "finish"));
      if (finished) resolve();
    });
  });
  response.cancel();
  return { before, frames, offset: first.offset };
}

const result = { produced: await produced(), followed: {} };
for (const live of ["long-poll", "sse"]) result.followed[live] = await followed(live);
if (process.env.KHALA_THREAD) result.thread = await thread();
console.log(JSON.stringify(result));
process.exit(0);
