// The command line of MCP's inspector.
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const cells = await import(process.env.KHALA_CELLS);
const { absent, cell, server, token, works } = cells;
const { equal, match } = (await import("node:assert")).strict;
const path = "./node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";
const launcher = fileURLToPath(new URL(path, import.meta.url));

async function inspect(...words) {
  const header = ["--transport", "http", "--header", `Authorization: Bearer ${token}`];
  const run = promisify(execFile)(process.execPath, [launcher, "--cli", `${server}/mcp`, ...header, ...words], { timeout: 50_000 });
  return run.catch((error) => error);
}

const none = "MCP has tools, and no answers.";
for (const feature of ["text", "stream", "forced", "images", "usage"]) absent(feature, none);

await cell("tools", async () => {
  const listed = await inspect("--method", "tools/list");
  match(listed.stdout, /memory_store/, listed.stderr);
  const stored = await inspect("--method", "tools/call", "--tool-name", "memory_store", "--tool-arg", "text=I live on Aiur.");
  equal(stored.code ?? 0, 0, stored.stderr);
});

await cell("structured", async () => {
  const { stdout, stderr } = await inspect("--method", "tools/call", "--tool-name", "memory_list");
  match(stdout, /structuredContent/, stderr);
  return works("Results of tools have `structuredContent`.");
});

absent("cancel", "Each command is one request.");
absent("resume", "Khala's MCP has no sessions: each request is independent.");
absent("approvals", "Over MCP, the person at the client approves: tools that ask are offered and called.");

await cell("errors", async () => {
  const { stdout, stderr } = await inspect("--method", "tools/call", "--tool-name", "read_file", "--tool-arg", "paht=a.txt");
  match(stdout + stderr, /don't match|required|paht/);
  const [words] = /The arguments don't match[^"]*/.exec(stdout + stderr) ?? [`${stderr}${stdout}`.slice(0, 300)];
  return works("", words);
});

cells.finish();
