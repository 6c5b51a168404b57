// What `@khala/client` can do, against a running server.
import { ApiError, Khala, newId, newKey, SubscriptionRefusedError, textOf, valuesOf } from "@khala/client";

const server = process.env.KHALA_URL;
const anonKey = newKey();
const khala = new Khala({ server, credentials: { anonKey } });
const results = {};
const failure = (promise) => promise.then(() => null, ({ name, code, status }) => ({ name, code, status }));
const until = async (follow, holds) => {
  for await (const value of follow) if (holds(value)) return value;
};

const thread = await khala.threads.create({ title: "Features" });
const messageId = newId();
const runs = await Promise.all([thread.send("/echo En taro Adun", { messageId }), thread.send("/echo En taro Adun", { messageId })]);
results.retried = { same: runs[0].id === runs[1].id, text: (await runs[0].result()).text };
results.conflict = await failure(thread.send("Something else", { messageId }));
results.list = (await khala.threads.list()).items.map(({ title }) => title);

// Queued messages are shown at once and sent in order.
const first = thread.queue("/echo One");
const second = thread.queue("/echo Two");
results.queued = thread.get().messages.slice(-2).map(({ id, delivery }) => [id === first || id === second, delivery?.phase]);
const both = await until(thread.follow(), ({ messages, activeAnswer }) => textOf(messages.at(-1)) === "Two" && activeAnswer === null);
results.answered = both.messages.slice(-4).map((message) => textOf(message));
results.ids = both.messages.slice(-4).filter(({ role }) => role === "user").every(({ id }) => [first, second].includes(id));

// Another client continues from a stored state: it asks for what came after it.
const frames = [];
class Recorded extends WebSocket {
  send(data) {
    frames.push(JSON.parse(data));
    super.send(data);
  }
}
const stored = JSON.parse(JSON.stringify(thread.get().state));
const other = new Khala({ server, credentials: { anonKey }, WebSocket: Recorded });
const continued = other.thread(thread.id, { initial: stored });
results.initial = continued.get().messages.length === thread.get().messages.length;
await (await continued.send("/echo Three")).result();
results.after = frames.filter(({ type }) => type === "subscribe").map(({ after }) => after === stored.revision);

// Both are present.
thread.setPresence({ name: "one" });
continued.setPresence({ name: "two" });
const stopOne = thread.presence.subscribe(() => undefined);
const present = await until(valuesOf(continued.presence), ({ participants }) => participants.length === 2);
results.present = present.participants.map(({ state }) => state.name).sort();
stopOne();
other.close();


const file = await thread.upload(new File(["hello"], "hello.txt", { type: "text/plain" }));
const sent = await thread.send("/echo See the file", { attachments: [file] });
await sent.result();
results.file = { name: file.name, text: await (await thread.download(file)).text() };

const slow = await thread.send("/words=2000 /pace=30");
for await (const piece of slow.text()) if (piece) break;
await slow.cancel("enough");
results.canceled = (await slow.result()).status;

const failed = await thread.send("/fail=3");
const { status, failure: why } = await failed.result();
results.failed = { status, code: why?.code };

// A token function: the first token is refused, the second one works.
const calls = [];
const account = new Khala({ server, user: "ada", credentials: { token: async (refused) => (calls.push(refused), refused ? process.env.KHALA_TOKEN : "khala_old") } });
const own = await account.threads.create({ title: "Of an account" });
const gated = await own.send('/call write_file {"path": "a.txt", "content": "one"} /then /call delete_file {"path": "a.txt"} /say Over.', { options: { autopilot: true } });
const blocked = await until(gated.follow(), ({ content }) => content.some(({ state }) => state === "blocked"));
const call = blocked.content.find(({ state }) => state === "blocked");
results.approval = { tool: (await gated.approvals())[0].tool };
await gated.approve(call.toolCallId, { digest: call.digest });
results.approval.text = (await gated.result()).text;
results.approval.again = await failure(gated.deny(call.toolCallId));
results.tokens = calls;

const live = await until(valuesOf(account.threads), ({ status }) => status === "live");
results.threads = live.items.map(({ thread: { title }, role }) => [title, role]);

const plan = await account.plans.create(own.id, { title: "Plan", steps: [{ id: "a", title: "Say hello" }] });
results.plan = [plan.status, (await account.plans.start(plan.id)).status];
await until(own.follow(), ({ state }) => state.plans.some(({ entry }) => entry.status === "stopped"));
results.plan.push((await account.plans.steps(plan.id)).map((step) => step.status));

const memory = await account.memories.create({ text: "Ada likes tea." });
results.memories = (await account.memories.list({ q: "tea" })).items.map(({ text }) => text);
await account.memories.delete(memory.id);
results.models = (await account.models()).default;
results.me = (await account.request("GET", "/api/me")).name;

// Access: a stranger is refused, a token that stays refused ends the subscription.
const stranger = new Khala({ server, credentials: { anonKey: newKey() } });
results.stranger = await failure(stranger.thread(thread.id).read());
results.refused = await failure(until(stranger.thread(thread.id).follow(), () => false));
const wrong = new Khala({ server, credentials: { token: () => "khala_never" } });
results.wrong = await failure(until(wrong.thread(own.id).follow(), () => false));
results.classes = [new ApiError(404, {}) instanceof Error, new SubscriptionRefusedError("forbidden", "") instanceof Error];

// A signal ends what waits.
const stop = new AbortController();
const waiting = (await thread.send("/words=2000 /pace=30", { options: { ifBusy: "interrupt" } })).result({ signal: stop.signal });
stop.abort();
results.aborted = await failure(waiting);
await thread.cancel();

// A client that is closed ends what waits, too.
const open = (await thread.send("/words=2000 /pace=30", { options: { ifBusy: "interrupt" } })).result();
setTimeout(() => thread.close());
results.closed = await failure(open);
await thread.run((await thread.read()).messages.at(-1).runId).then((one) => one.cancel());

for (const client of [khala, account, stranger, wrong]) client.close();
process.stdout.write(`${JSON.stringify({ done: results })}\n`);
