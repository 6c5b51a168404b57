// The protocol's reference server with its contents in files, on KHALA_PORT and in KHALA_FOLDER.
import { DurableStreamTestServer } from "@durable-streams/server";

const server = new DurableStreamTestServer({
  port: Number(process.env.KHALA_PORT),
  host: "127.0.0.1",
  dataDir: process.env.KHALA_FOLDER,
});
await server.start();
process.on("SIGTERM", async () => {
  await server.stop();
  process.exit(0);
});
