// Talks to the server at KHALA_URL with AG-UI's client, unmodified, and prints what an application has seen as JSON.
import { HttpAgent, transformHttpEventStream, runHttpRequest } from "@ag-ui/client";

const server = process.env.KHALA_URL;
const headers = { "X-Anon-Key": process.env.KHALA_KEY };
const url = `${server}/api/ag-ui`;
const results = {};
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = (...words) => warnings.push(words.join(" "));

// The documented way to attach: `connect` reads the thread's newest answer.
class Observer extends HttpAgent {
  after = "";
  connect(input) {
    const query = new URLSearchParams({ threadId: input.threadId, ...(this.after && { after: this.after }) });
    const request = { headers: { ...headers, Accept: "text/event-stream" } };
    return transformHttpEventStream(runHttpRequest(() => fetch(`${url}?${query}`, request)));
  }
}

function agent(threadId, { messages, kind = HttpAgent } = {}) {
  const made = new kind({ url, headers, threadId, initialMessages: messages, initialState: { mine: 1 } });
  made.seen = [];
  made.failures = [];
  made.subscribe({
    onEvent: ({ event }) => void made.seen.push(event.type),
    onRunFinishedEvent: ({ event, ...facts }) => void (made.outcome = event.outcome),
    onRunErrorEvent: ({ event }) => void made.failures.push(event.message),
  });
  return made;
}

const say = (made, text, id = crypto.randomUUID()) => made.addMessage({ id, role: "user", content: text });
const plain = (value) => JSON.parse(JSON.stringify(value));
const get = async (path) => (await fetch(`${server}${path}`, { headers })).json();
const shown = (made) => plain({ messages: made.messages, outcome: made.outcome, state: made.state, failures: made.failures });

async function until(condition) {
  const deadline = Date.now() + 30_000;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`timed out: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

// Two questions, reasoning between, and a thread of the client's own id.
{
  const talk = agent("a thread of mine?");
  say(talk, "/echo En taro Adun");
  await talk.runAgent();
  say(talk, "/echo En taro Tassadar");
  await talk.runAgent();
  results.text = { ...shown(talk), seen: talk.seen };
  const observer = agent("a thread of mine?", { kind: Observer });
  await observer.connectAgent();
  results.text.connected = plain(observer.messages);
  const strangers = agent("new", { kind: Observer });
  await strangers.connectAgent();
  results.text.unknown = plain(strangers.messages);
}

// A plan of the thread is an activity: when it changes during an answer, and for a client that connects.
{
  const talk = agent("planned");
  say(talk, "/echo En taro Adun");
  await talk.runAgent();
  const body = JSON.stringify({ title: "Warp in", steps: [{ id: "pylon", title: "A pylon", instructions: "/echo Warped" }] });
  const path = `/api/threads/${talk.state.khala.threadId}/plans`;
  const post = { method: "POST", headers: { ...headers, "Content-Type": "application/json" } };
  say(talk, "/words=40 /pace=40");
  const answered = talk.runAgent();
  await until(() => talk.messages.at(-1).role === "assistant" && talk.messages.length === 4);
  const made = await (await fetch(`${server}${path}`, { ...post, body })).json();
  await answered;
  const activities = (one) => plain(one.messages.filter((message) => message.role === "activity"));
  const observer = agent("planned", { kind: Observer });
  await observer.connectAgent();
  results.planned = { made, failures: talk.failures, live: activities(talk), connected: activities(observer) };
}

// The same request twice at once, and once more after its end; then the same question in another run.
{
  const question = [{ id: "m1", role: "user", content: "/words=30 /pace=300" }];
  const runs = [1, 2].map(() => agent("twice", { messages: question }));
  await Promise.all(runs.map((run) => run.runAgent({ runId: "the run" })));
  const third = agent("twice", { messages: question });
  await third.runAgent({ runId: "the run" });
  const threadId = third.state.khala.threadId;
  const answers = async () =>
    (await get(`/api/threads/${threadId}`)).messages.filter((message) => message.role === "assistant").length;
  results.twice = { all: [...runs, third].map((run) => plain(run.messages)), answers: await answers() };
  const fourth = agent("twice", { messages: question });
  await fourth.runAgent({ runId: "another run" });
  results.twice.again = { answers: await answers(), other: fourth.messages[1].id !== third.messages[1].id };
}

// A client that leaves in the middle of an answer, one that attaches, and one that continues at an event.
{
  const left = agent("left");
  say(left, "/words=60 /pace=60");
  const running = left.runAgent();
  await until(() => (left.messages[1]?.content ?? "").length > 20);
  const observer = agent("left", { kind: Observer });
  const observing = observer.connectAgent();
  const early = agent("left", { kind: Observer });
  let events = 0;
  early.subscribe({ onTextMessageContentEvent: () => void (++events === 2 && early.detachActiveRun()) });
  const response = await fetch(`${url}?${new URLSearchParams({ threadId: "left" })}`, {
    headers: { ...headers, Accept: "text/event-stream" },
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let read = "";
  while (!/id: \d+\.\d+\ndata: \{"type":"TEXT_MESSAGE_CONTENT".*\n\n/.test(read)) read += (await reader.read()).value;
  await reader.cancel();
  const had = read.slice(0, read.lastIndexOf("\n\n")).split("\n\n").map((frame) => frame.split("\n"));
  const contents = had.filter(([, data]) => data?.includes('"TEXT_MESSAGE_CONTENT"'));
  const partial = contents.map(([, data]) => JSON.parse(data.slice(6)));
  early.after = contents.at(-1)[0].slice(4);
  early.messages = [{ id: partial[0].messageId, role: "assistant", content: partial.map((event) => event.delta).join("") }];
  const begun = early.messages[0].content;
  await Promise.all([early.connectAgent(), observing, running]);
  results.left = { whole: plain(left.messages), observed: plain(observer.messages), begun, early: plain(early.messages) };
}

// Approvals: one approved, one denied, one canceled, one with other arguments.
for (const [name, answer] of [
  ["approved", { status: "resolved", payload: { approved: true } }],
  ["denied", { status: "resolved", payload: { approved: false, reason: "My reason" } }],
  ["canceled", { status: "cancelled" }],
  ["edited", { status: "resolved", payload: { approved: true, editedArgs: { path: "b.txt" } } }],
]) {
  const talk = agent(name);
  const write = '/call write_file {"path": "a.txt", "content": "1"} /call write_file {"path": "b.txt", "content": "2"}';
  const calls = `/text Look. ${write} /call read_file {"path": "none"}`;
  say(talk, `${calls} /then /call delete_file {"path": "a.txt"} /say Over.`);
  const forwardedProps = { options: { autopilot: true } };
  await talk.runAgent({ forwardedProps, runId: "first" });
  const before = { ...shown(talk), seen: talk.seen.splice(0) };
  const [pending] = talk.pendingInterrupts;
  const observer = agent(name, { kind: Observer });
  await observer.connectAgent();
  let refused = "";
  await talk.runAgent({ forwardedProps }).catch((error) => (refused = error.message));
  const resume = [{ interruptId: pending.id, ...answer }];
  const history = plain(talk.messages);
  await talk.runAgent({ forwardedProps, resume, runId: "second" });
  const again = agent(name, { messages: history });
  await again.runAgent({ forwardedProps, resume, runId: "second" });
  const replayed = agent(name, { messages: history.slice(0, 1) });
  await replayed.runAgent({ forwardedProps, runId: "first" });
  const late = agent(name, { kind: Observer });
  await late.connectAgent();
  results[name] = {
    before, pending, refused, after: { ...shown(talk), seen: talk.seen }, again: plain(again.messages),
    observed: { ...shown(observer), pending: observer.pendingInterrupts },
    replayed: plain(replayed.messages), late: plain(late.messages),
  };
}

// The client's own tools.
{
  const locate = { name: "locate", description: "Locate", parameters: { type: "object", properties: { city: { type: "string" } } } };
  const talk = agent("tools");
  say(talk, '/call locate {"city": "Aiur"} /call locate {"city": "Nowhere"} /say Found.');
  let pending = [];
  talk.subscribe({ onRunFinishedEvent: ({ pendingToolCallIds }) => void (pending = pendingToolCallIds) });
  await talk.runAgent({ tools: [locate] });
  const called = pending;
  const [one, two] = called;
  talk.addMessage({ id: "r1", role: "tool", toolCallId: one, content: '{"at": "home"}' });
  talk.addMessage({ id: "r2", role: "tool", toolCallId: two, content: "Unknown.", error: "Unknown." });
  const history = plain(talk.messages);
  await talk.runAgent({ tools: [locate], runId: "with results" });
  const again = agent("tools", { messages: history });
  await again.runAgent({ tools: [locate], runId: "with results" });
  const observer = agent("tools", { kind: Observer });
  await observer.connectAgent();
  results.tools = { called, after: shown(talk), again: plain(again.messages), observed: plain(observer.messages) };
}

// A stop, a failing run, a refused request, a file.
{
  const talk = agent("stopped");
  say(talk, "/words=2000 /pace=50");
  const running = talk.runAgent();
  await until(() => (talk.messages[1]?.content ?? "").length > 20);
  const stopped = await fetch(`${url}/stopped/stop`, { method: "POST", headers });
  await running;
  results.stopped = { status: stopped.status, ...shown(talk) };
  const failing = agent("failing");
  say(failing, "/fail=3");
  await failing.runAgent().catch(() => {});
  results.failing = shown(failing);
  const refused = agent("refused");
  say(refused, "Hello");
  await refused.runAgent({ forwardedProps: { options: { modle: "x" } } }).catch((error) => (results.refused = error.message));
  const filed = agent("filed");
  const source = { type: "data", value: Buffer.from("What is a Khala?").toString("base64"), mimeType: "text/plain" };
  filed.addMessage({ id: "f1", role: "user", content: [{ type: "text", text: "/echo Read" }, { type: "document", source }] });
  await filed.runAgent({ context: [{ description: "Place", value: "Aiur" }] });
  const observer = agent("filed", { kind: Observer });
  await observer.connectAgent();
  results.filed = { ...shown(filed), observed: plain(observer.messages) };
}

results.warnings = warnings;
process.stdout.write(`${JSON.stringify(results)}\n`);
