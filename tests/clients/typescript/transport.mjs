// The transport of `useChat`. A server that is killed breaks off an answer that was sent, and one that was resumed.
import { readUIMessageStream } from "ai";
import { newKey } from "@khala/client";
import { KhalaChatTransport } from "@khala/client/ai-sdk";

const say = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);
const credentials = { anonKey: newKey() };
const transport = new KhalaChatTransport({ server: process.env.KHALA_URL, credentials, options: { autopilot: true } });
const question = (text) => ({ id: crypto.randomUUID(), role: "user", parts: [{ type: "text", text }] });
const send = (chatId, messages, abortSignal) => transport.sendMessages({ chatId, messages, trigger: "submit-message", messageId: undefined, abortSignal });
const textOf = (message) => message.parts.map((part) => (part.type === "text" ? part.text : "")).join("");

/** Reads a stream to its end; returns the text of the message, its id, and the number of its text chunks. */
async function read(name, stream) {
  let [last, texts] = [null, 0];
  const counted = stream.pipeThrough(new TransformStream({ transform: (chunk, to) => ((texts += chunk.type === "text-delta"), to.enqueue(chunk)) }));
  for await (const message of readUIMessageStream({ stream: counted })) {
    if (last && !textOf(message).startsWith(textOf(last))) throw new Error("Text was taken back.");
    last = message;
    say({ name, text: textOf(message) });
  }
  return { text: textOf(last), id: last.id, texts };
}

const [sentId, resumedId] = [crypto.randomUUID(), crypto.randomUUID()];
const words = "/words=150 /pace=30";
await (await send(resumedId, [question(words)])).cancel();
const [sent, resumed] = await Promise.all([
  send(sentId, [question(words)]).then((stream) => read("sent", stream)),
  transport.reconnectToStream({ chatId: resumedId }).then((stream) => read("resumed", stream)),
]);

// `stop()` cancels the run.
const stoppedId = crypto.randomUUID();
const stop = new AbortController();
const reader = (await send(stoppedId, [question("/words=2000 /pace=30")], stop.signal)).getReader();
for (let chunk = await reader.read(); chunk.value?.type !== "text-delta"; ) chunk = await reader.read();
stop.abort();
const ended = await reader.read().then(() => "ended", (error) => error.name);
let reason;
do {
  [reason] = (await transport.load(stoppedId)).slice(-1).map(({ metadata }) => metadata?.reason);
} while (reason !== "canceled");

// An approval ends a stream, and its decision continues the same message.
const approvalId = crypto.randomUUID();
const asked = question('/call write_file {"path": "a.txt", "content": "one"} /then /call delete_file {"path": "a.txt"} /say Over.');
let waiting;
for await (waiting of readUIMessageStream({ stream: await send(approvalId, [asked]) }));
const decided = structuredClone(waiting);
for (const part of decided.parts) if (part.state === "approval-requested") Object.assign(part, { state: "approval-responded", approval: { ...part.approval, approved: true } });
let approved = decided;
for await (approved of readUIMessageStream({ message: structuredClone(decided), stream: await send(approvalId, [asked, decided]) }));

say({
  done: {
    sent, resumed, stopped: { ended, reason },
    none: await transport.reconnectToStream({ chatId: resumedId }),
    loaded: (await transport.load(sentId)).at(-1).id,
    approval: { states: [waiting, approved].map(({ parts }) => parts.findLast(({ type }) => type.startsWith("tool-")).state), text: textOf(approved), isSame: waiting.id === approved.id },
  },
});
