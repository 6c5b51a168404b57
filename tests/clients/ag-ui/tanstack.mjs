// Talks to the server at KHALA_URL with TanStack AI's client, unmodified, and prints what a chat shows as JSON.
import { ChatClient, fetchHttpStream, fetchServerSentEvents, webSocket } from "@tanstack/ai-client";

const server = process.env.KHALA_URL;
const headers = { "X-Anon-Key": process.env.KHALA_KEY };
const url = `${server}/api/ag-ui`;
const results = {};
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));

function client(threadId, { lines = false, persistence, ...options } = {}) {
  const errors = [];
  const connect = lines ? fetchHttpStream(`${url}/ndjson`, { headers, ...options }) : fetchServerSentEvents(url, { headers, ...options });
  const made = new ChatClient({
    connection: connect,
    threadId,
    persistence,
    tools: options.tools,
    onError: (error) => errors.push(error.message),
  });
  made.errors = errors;
  return made;
}

async function until(condition) {
  const deadline = Date.now() + 30_000;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`timed out: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const plain = (value) => JSON.parse(JSON.stringify(value));
const texts = (made) =>
  made.getMessages().map((message) => message.parts.filter((part) => part.type === "text").map((part) => part.content).join("|"));
const hydrate = async (threadId) =>
  (await fetch(`${url}?${new URLSearchParams({ threadId })}`, { headers: { ...headers, Accept: "application/json" } })).json();

// A connection that breaks after some bytes, three times: the client posts again with the id of the last event.
function breaking(posts) {
  return async (address, init) => {
    const response = await fetch(address, init);
    if (init.method !== "POST") return response;
    posts.push(new Headers(init.headers).get("last-event-id"));
    if (posts.length > 3) return response;
    const reader = response.body.getReader();
    let read = 0;
    const body = new ReadableStream({
      async pull(controller) {
        const { done, value } = await reader.read();
        if (done) return controller.close();
        read += value.length;
        controller.enqueue(value);
        if (read > 900) {
          await reader.cancel();
          controller.error(new TypeError("terminated"));
        }
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
}

for (const [name, lines] of [["sse", false], ["lines", true]]) {
  const posts = [];
  const talk = client(`broken ${name}`, { lines, fetchClient: breaking(posts) });
  await talk.sendMessage("/words=80 /pace=100");
  const { messages } = await hydrate(`broken ${name}`);
  results[name] = { posts, texts: texts(talk), errors: talk.errors, stored: messages.length, status: talk.getStatus() };
}

// The same over sockets. Each breaks while it has an answer, until three have.
{
  const sockets = [];
  class BreakingSocket extends WebSocket {
    constructor(address, protocols) {
      super(address, protocols);
      sockets.push(new URL(address).search);
      const breaks = sockets.length <= 3;
      let read = 0;
      this.addEventListener("message", (event) => {
        read += event.data.length;
        if (breaks && read > 900) this.close();
      });
    }
  }
  const protocols = ["khala.ag-ui", `khala.anon-key.${process.env.KHALA_KEY}`];
  const address = `${url.replace("http", "ws")}/socket`;
  const chat = (threadId, options) => {
    const errors = [];
    const connection = webSocket(address, { protocols, ...options });
    return Object.assign(new ChatClient({ connection, threadId, onError: (error) => errors.push(error.message) }), { errors, connection });
  };
  const talk = chat("broken sockets", { WebSocketImpl: BreakingSocket });
  await talk.sendMessage("/words=80 /pace=100");
  await until(() => talk.getStatus() === "ready");
  await talk.sendMessage("/echo And more.");
  await until(() => texts(talk).at(-1) === "And more.");
  const { messages } = await hydrate("broken sockets");
  const joined = [];
  for await (const chunk of talk.connection.joinRun(new URLSearchParams(sockets[0]).get("runId"))) joined.push(chunk.type);
  const refused = chat("refused socket", { body: { options: { modle: "x" } } });
  await refused.sendMessage("Hello");
  await until(() => refused.errors.length > 0);
  const approving = chat("approved by socket", { body: { options: { autopilot: true } } });
  await approving.sendMessage('/call delete_file {"path": "none"} /say Over.');
  await until(() => approving.getInterrupts().length === 1);
  approving.getInterrupts()[0].resolveInterrupt({ approved: true });
  await until(() => texts(approving).at(-1) === "Over.");
  const known = { sockets, texts: texts(talk), stored: messages.length, joined, refused: refused.errors };
  results.sockets = { ...known, errors: [...talk.errors, ...approving.errors] };
}

// A page that is loaded in the middle of an answer: it reads the thread, and joins the run.
{
  const first = client("joined");
  const running = first.sendMessage("/words=60 /pace=60");
  await until(() => (texts(first)[1] ?? "").length > 20);
  const during = await hydrate("joined");
  const second = client("joined", { persistence: true });
  second.attach?.();
  second.mount?.();
  second.mountDevtools?.();
  await running;
  await until(() => texts(second)[1] === texts(first)[1]);
  results.joined = { first: texts(first), second: texts(second), active: during.activeRun, after: await hydrate("joined") };
}

// An approval, and one after a reload.
for (const name of ["approved", "reloaded"]) {
  const body = { options: { autopilot: true } };
  const write = '/call write_file {"path": "a.txt", "content": "one"}';
  let talk = client(name, { body });
  await talk.sendMessage(`${write} /then /call delete_file {"path": "a.txt"} /say Over.`);
  const before = plain(talk.getMessages());
  const stored = await hydrate(name);
  if (name === "reloaded") {
    talk = client(name, { body, persistence: true });
    talk.attach?.();
    talk.mount?.();
    talk.mountDevtools?.();
    await until(() => talk.getInterrupts().length === 1);
  }
  const [pending] = talk.getInterrupts();
  pending.resolveInterrupt({ approved: true });
  await until(() => texts(talk).at(-1) === "Over.");
  await until(() => talk.getStatus() === "ready");
  results[name] = { before, stored, kind: pending.kind, after: plain(talk.getMessages()), errors: talk.errors };
}

// A tool of the client, which it executes and answers by itself.
{
  const called = [];
  const locate = {
    __toolSide: "client",
    name: "locate",
    description: "Locate",
    inputSchema: { type: "object", properties: { city: { type: "string" } } },
    execute: async ({ city }) => (called.push(city), { at: city }),
  };
  const talk = client("tools", { tools: [locate] });
  await talk.sendMessage('/call locate {"city": "Aiur"} /say Found.');
  await until(() => texts(talk).at(-1) === "Found.");
  results.tools = { called, messages: plain(talk.getMessages()), errors: talk.errors };
}

// A failing run, and a refused request.
{
  const failing = client("failing");
  await failing.sendMessage("/fail=3");
  const refused = client("refused", { body: { options: { modle: "x" } } });
  await refused.sendMessage("Hello");
  results.failing = { errors: failing.errors, refused: refused.errors };
}

results.warnings = warnings;
process.stdout.write(`${JSON.stringify(results)}\n`, () => process.exit(0));
