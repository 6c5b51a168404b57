// Talks to the server at KHALA_URL with the AI SDK, unmodified, and prints what a chat shows as JSON.
// `Chat` is the object behind `useChat`; it needs no page.
import { Chat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  WebSocketChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  readUIMessageStream,
} from "ai";

const server = process.env.KHALA_URL;
const headers = { "X-Anon-Key": process.env.KHALA_KEY };
const api = `${server}/api/chat`;
const results = {};

const transport = (options = {}) => new DefaultChatTransport({ api, headers, ...options });

function chat(id, options = {}) {
  const errors = [];
  const made = new Chat({
    id,
    transport: options.transport ?? transport(options.body ? { body: options.body } : {}),
    messages: options.messages ?? [],
    sendAutomaticallyWhen: options.sendAutomaticallyWhen ?? lastAssistantMessageIsCompleteWithApprovalResponses,
    onToolCall: ({ toolCall }) => options.onToolCall?.(made, toolCall),
    onError: (error) => errors.push(error.message),
    onData: (part) => options.onData?.(part),
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

const get = async (path) => (await fetch(`${server}${path}`, { headers })).json();
const history = (id) => get(`/api/chat/${encodeURIComponent(id)}`);
const textOf = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("|");
const plain = (value) => JSON.parse(JSON.stringify(value));

async function folded(stream) {
  let last;
  for await (const message of readUIMessageStream({ stream, terminateOnError: true })) last = message;
  return plain(last);
}

async function runs(id) {
  const [question] = await history(id);
  const thread = await get(`/api/threads/${question.metadata.threadId}`);
  return thread.messages.filter((message) => message.role === "assistant").length;
}

// A first message makes the chat's thread; the second continues it; the initial messages are the same again.
{
  const talk = chat("a chat of mine?");
  await talk.sendMessage({ text: "/echo En taro Adun" });
  await talk.sendMessage({ text: "/echo En taro Tassadar" });
  results.text = { texts: talk.messages.map(textOf), errors: talk.errors, status: talk.status, last: plain(talk.lastMessage) };
  results.text.history = await history("a chat of mine?");
  results.text.resumed = await transport().reconnectToStream({ chatId: "a chat of mine?" });
}

// The same request twice: the second attaches to the run of the first.
{
  const message = { id: "m1", role: "user", parts: [{ type: "text", text: "/words=30 /pace=300" }] };
  const request = { chatId: "twice", messages: [message], trigger: "submit-message" };
  const [first, second] = await Promise.all(
    (await Promise.all([transport().sendMessages(request), transport().sendMessages(request)])).map(folded),
  );
  const third = await folded(await transport().sendMessages(request));
  results.twice = { first, second, third, answers: await runs("twice") };
}

// A chat that is left in the middle of an answer, and resumed by another page.
{
  const left = chat("left");
  void left.sendMessage({ text: "/words=60 /pace=60" });
  await until(() => left.messages.length > 1 && textOf(left.lastMessage).length > 20);
  const other = chat("left", { messages: await history("left") });
  const resumed = other.resumeStream();
  await until(() => left.status === "ready");
  await resumed;
  results.left = { whole: plain(left.messages), resumed: plain(other.messages), errors: other.errors };
}

// Tools, and approvals: one call is approved, another is denied.
for (const [name, approved] of [["approved", true], ["denied", false]]) {
  const body = { options: { autopilot: true }, sessionId: "of the application" };
  const talk = chat(name, { body });
  const calls = '/text Look. /call write_file {"path": "a.txt", "content": "one"} /call read_file {"path": "none"}';
  await talk.sendMessage({ text: `${calls} /then /call delete_file {"path": "a.txt"} /say Over.` });
  const pending = talk.lastMessage.parts.find((part) => part.state === "approval-requested");
  const before = { status: talk.status, message: plain(talk.lastMessage), history: await history(name) };
  const paused = await folded(await transport().reconnectToStream({ chatId: name }));
  await talk.addToolApprovalResponse({ id: pending.approval.id, approved, reason: "My reason" });
  await until(() => textOf(talk.lastMessage).endsWith("Over.") && talk.status === "ready");
  const question = talk.messages[0];
  const replayed = await folded(
    await transport().sendMessages({ chatId: name, messages: [question], trigger: "submit-message", body }),
  );
  const after = plain(talk.messages);
  results[name] = { before, paused, after, replayed, history: await history(name), errors: talk.errors };
}

// Another answer, another question in its place, and a stop.
{
  const talk = chat("changed");
  await talk.sendMessage({ text: "/echo One" });
  const first = talk.lastMessage.id;
  await talk.regenerate({ messageId: first });
  const second = talk.lastMessage.id;
  await talk.sendMessage({ text: "/echo Two", messageId: talk.messages[0].id });
  results.changed = { texts: talk.messages.map(textOf), regenerated: first !== second, answers: await runs("changed") };
  void talk.sendMessage({ text: "/words=2000 /pace=50" });
  await until(() => textOf(talk.lastMessage).length > 20);
  const stopped = await fetch(`${api}/changed/stop`, { method: "POST", headers });
  await until(() => talk.status === "ready");
  results.stopped = { status: stopped.status, message: plain(talk.lastMessage), errors: talk.errors };
}

// Other answers to one message, of which the client names the replaced one, or not.
{
  const talk = chat("regenerated");
  await talk.sendMessage({ text: "/echo One" });
  const ids = [talk.lastMessage.id];
  for (const named of [false, false, true, true]) {
    await talk.regenerate(named ? { messageId: talk.lastMessage.id } : undefined);
    ids.push(talk.lastMessage.id);
  }
  await talk.regenerate({ messageId: talk.messages[0].id });
  ids.push(talk.lastMessage.id);
  const { errors, messages } = talk;
  const kept = { history: await history("regenerated"), answers: await runs("regenerated") };
  results.regenerated = { ids, errors, texts: messages.map(textOf), messages: plain(messages), ...kept };
}

// Files, errors of runs and of requests.
{
  const talk = chat("with a file");
  const url = `data:text/plain;base64,${Buffer.from("What is a Khala?").toString("base64")}`;
  const files = [{ type: "file", mediaType: "text/plain", filename: "question.txt", url }];
  await talk.sendMessage({ text: "/echo Read", files });
  results.file = { texts: talk.messages.map(textOf), errors: talk.errors, history: await history("with a file") };
  const failing = chat("failing");
  await failing.sendMessage({ text: "/fail=3" });
  results.failing = { status: failing.status, errors: failing.errors, text: textOf(failing.lastMessage) };
  const refused = chat("refused", { body: { options: { modle: "x" } } });
  await refused.sendMessage({ text: "Hello" });
  results.refused = { status: refused.status, errors: refused.errors };
}

// Tools of the client: two in one step, then another one, and a question after it.
{
  const locate = { name: "locate", parameters: { type: "object", properties: { city: { type: "string" } } } };
  const body = { options: { functions: [locate] } };
  const called = [];
  const talk = chat("tools", {
    body,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
    onToolCall: (own, call) => {
      called.push(call.input.city);
      const result =
        call.input.city === "Nowhere" ? { state: "output-error", errorText: "Unknown." } : { output: { city: call.input.city } };
      void own.addToolOutput({ tool: "locate", toolCallId: call.toolCallId, ...result });
    },
  });
  const calls = '/call locate {"city": "Aiur"} /call locate {"city": "Nowhere"} /then /call locate {"city": "Shakuras"}';
  await talk.sendMessage({ text: `${calls} /say Found.` });
  await until(() => talk.status === "ready" && textOf(talk.lastMessage).endsWith("Found."));
  const after = plain(talk.messages);
  const known = await history("tools");
  const last = { chatId: "tools", messages: talk.messages.slice(0, 2), trigger: "submit-message", body };
  last.messages[1] = { ...last.messages[1], parts: last.messages[1].parts.slice(0, 3) };
  const again = await folded(await transport().sendMessages(last));
  void talk.sendMessage({ text: '/call locate {"city": "Char"} /pace=20 /words=30' });
  await until(() => talk.messages.length === 4 && textOf(talk.lastMessage).length > 5);
  const other = chat("tools", { messages: await history("tools") });
  await Promise.all([other.resumeStream(), until(() => talk.status === "ready")]);
  results.tools = { called, after, known, again, errors: [talk.errors, other.errors] };
  results.tools.resumed = { whole: plain(talk.messages.slice(2)), other: plain(other.messages.slice(2)) };
}

// The WebSocket transport: two chats over one connection, a resume, and an error.
{
  const sockets = new WebSocketChatTransport({ url: `${server}/api/chat-socket`, headers });
  const first = chat("socket 1", { transport: sockets });
  const second = chat("socket 2", { transport: sockets });
  void first.sendMessage({ text: "/words=40 /pace=80" });
  await until(() => first.messages.length > 1 && textOf(first.lastMessage).length > 10);
  const resuming = chat("socket 1", { transport: sockets, messages: await history("socket 1") });
  await Promise.all([second.sendMessage({ text: "/echo Two" }), resuming.resumeStream()]);
  await until(() => first.status === "ready");
  const refused = chat("socket/3", { transport: sockets });
  await refused.sendMessage({ text: "Hello" });
  results.sockets = {
    whole: plain(first.messages),
    resumed: plain(resuming.messages),
    text: second.messages.map(textOf),
    idle: await sockets.reconnectToStream({ chatId: "socket 2" }),
    replayed: await folded(
      await sockets.sendMessages({ chatId: "socket 2", messages: second.messages.slice(0, 1), trigger: "submit-message" }),
    ),
    second: plain(second.lastMessage),
    errors: [first.errors, second.errors, resuming.errors, refused.errors],
  };
  sockets.close();
}

console.log(JSON.stringify(results));
