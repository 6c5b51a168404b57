// The worker that `khala_client.conformance` checks. Its agent counts, stores, reads, or waits until it is cancelled.

import { Worker } from "../../client/src/worker.ts";

declare const process: { env: Record<string, string | undefined> };

const { KHALA_SERVER = "", KHALA_TOKEN = "", KHALA_AGENT = "" } = process.env;
const worker = new Worker({ server: KHALA_SERVER, token: KHALA_TOKEN, graceMs: 1000 });

worker.agent(KHALA_AGENT, async (run) => {
  const [command, number] = run.prompt.split(" ");
  if (command === "wait") {
    await run.text("waiting ");
    await new Promise(() => undefined);
  }
  if (command === "store") {
    await run.step("count", () => Array.from({ length: Number(number) }, (_, index) => `${index + 1} `).join(""));
    return run.text("stored");
  }
  if (command === "read") {
    for (const file of run.files) await run.text(await (await run.readBlob(file)).text());
    return;
  }
  for (let one = 1; one <= Number(number); one++) {
    await run.text(`${one} `);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
});

await worker.serve();
