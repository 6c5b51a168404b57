// Follows an answer over a server that is killed and restarted.
import { Khala, newKey } from "@khala/client";

const khala = new Khala({ server: process.env.KHALA_URL, credentials: { anonKey: newKey() } });
const say = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);

const thread = await khala.threads.create({ title: "Killed" });
const run = await thread.send("/words=150 /pace=30");
let [joined, pieces] = ["", 0];
for await (const piece of run.text()) {
  [joined, pieces] = [joined + piece, pieces + 1];
  say({ name: "run", text: joined });
}
const { status, text } = await run.result();
say({ done: { joined, pieces, status, text } });
