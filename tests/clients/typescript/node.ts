// A program for Node that uses the types of the client, without those of a browser. It is compiled, not run.
import { Khala, MemoryStore, textOf } from "@khala/client";
import type { OutboxEntry } from "@khala/client";

const khala = new Khala({ server: "https://khala.example.com", credentials: { anonKey: "key" }, WebSocket, storage: new MemoryStore<OutboxEntry>() });

export async function followed(id: string): Promise<string[]> {
  for await (const { messages, activeAnswer } of khala.thread(id).follow({ signal: AbortSignal.timeout(1000) })) {
    if (activeAnswer === null) return messages.map(textOf);
  }
  return [];
}
