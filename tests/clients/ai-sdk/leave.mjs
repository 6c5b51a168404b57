// Begins an answer with the transport of `useChat`, prints what it reads, and leaves after some words.
import { DefaultChatTransport, readUIMessageStream } from "ai";

const headers = { "X-Anon-Key": process.env.KHALA_KEY };
const transport = new DefaultChatTransport({ api: `${process.env.KHALA_URL}/api/chat`, headers });
const leaving = new AbortController();
const question = { id: crypto.randomUUID(), role: "user", parts: [{ type: "text", text: "/words=24 /pace=8" }] };
const stream = await transport.sendMessages({
  chatId: process.env.KHALA_CHAT ?? "left",
  messages: [question],
  trigger: "submit-message",
  abortSignal: leaving.signal,
});
let text = "";
let id = "";
try {
  for await (const message of readUIMessageStream({ stream, terminateOnError: true })) {
    id = message.id;
    text = message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
    if (text.split(" ").length > 8) leaving.abort();
  }
} catch (error) {
  if (error.name !== "AbortError") throw error;
}
console.log(JSON.stringify({ id, text }));
