// The page: what it shows is a function of the followed thread, the messages on their way, and the connection.

import * as chats from "./chats.js";
import { Composer } from "./composer.js";
import { EMPTY, Feed, Refusal, activeAnswer, backoff, call, insist, isPassing, pause, standing, textOf } from "./khala.js";
import { Outbox, inWords } from "./outbox.js";
import { Messages, make } from "./view.js";

const NEAR_END = 64;
const SPOKEN = 1000;
const REFUSED = {
  thread_not_found: "This chat is not on the server any more.",
  forbidden: "This chat belongs to somebody else, or its key is in another browser.",
  unauthorized: "This chat belongs to somebody else, or its key is in another browser.",
  protocol: "This page is older than the server. Please reload it.",
};

const $ = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 859px)");
const shown = { chat: null, state: EMPTY, connection: { phase: "connecting" }, refused: null, implicit: false, following: true, spoken: null };

const feed = new Feed(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/ws`, {
  state: takeState,
  connection: (connection) => change({ connection }),
  refused: takeRefusal,
});
const outbox = new Outbox(() => draw());
const composer = new Composer({ send, stop, busy: () => isBusy() });
const list = new Messages($("messages"), { resend: (id) => outbox.resend(id), edit, again, approve });

function change(changes) {
  Object.assign(shown, changes);
  draw();
}

// Chats

function openFromAddress() {
  const id = location.hash.slice(1);
  if (id && id === shown.chat?.id) return;
  const known = id ? chats.find(id) : chats.find(chats.last() ?? "");
  if (!id) history.replaceState(null, "", `#${(known ?? startChat()).id}`);
  open(chats.find(location.hash.slice(1)) ?? { id: location.hash.slice(1), key: null, created: true }, !id);
}

function startChat() {
  return chats.all().find((chat) => !chat.created) ?? chats.add();
}

async function open(chat, implicit) {
  feed.stop();
  change({ chat, state: EMPTY, refused: null, implicit, following: true, spoken: null, connection: { phase: "connecting" } });
  chats.open(chat.key && chat.id);
  toggleDrawer(false);
  if (!chat.created && !(await create(chat))) return;
  if (shown.chat.id === chat.id) feed.follow(chat.id, chat.key ?? undefined);
}

/** Create the chat on the server, however long that takes; false if it says no or another chat was opened meanwhile. */
async function create(chat) {
  for (let attempt = 0; shown.chat.id === chat.id; attempt++) {
    try {
      await call("POST", "/api/threads", { body: { id: chat.id, anonKey: chat.key } });
      chats.update(chat, { created: true });
      return true;
    } catch (error) {
      if (!isPassing(error) && error.status !== 429) return takeRefusal(error.code, inWords(error));
      const delay = Math.max(backoff(attempt, Math.random()), 1000 * (error.retryAfter ?? 0));
      change({ connection: { phase: "waiting", until: Date.now() + delay } });
      await pause(delay);
    }
  }
  return false;
}

function newChat() {
  toggleDrawer(false);
  const unused = shown.chat.key && !shown.refused && shown.state.revision !== null && !mine().length;
  if (!unused) location.hash = startChat().id;
  composer.focus();
}

function forgetChat() {
  chats.forget(shown.chat.id);
  newChat();
}

function takeState(state, frame) {
  const before = shown.chat && shown.state;
  const height = $("scroll").scrollHeight - $("scroll").scrollTop;
  if (frame?.reset) outbox.clear(shown.chat.id);
  outbox.settle(shown.chat.id, state);
  speak(before, state);
  change({ state });
  nameChat(state, frame);
  if (frame === null) keepPlace(height);
}

function takeRefusal(code, message) {
  if (code === "thread_not_found" && shown.implicit && shown.chat.key) {
    chats.forget(shown.chat.id);
    history.replaceState(null, "", `#${startChat().id}`);
    open(chats.find(location.hash.slice(1)), true);
    return false;
  }
  change({ refused: REFUSED[code] ?? (message || "This chat is closed.") });
  return false;
}

function nameChat(state, frame) {
  const { chat } = shown;
  const first = state.messages.find((message) => message.role === "user");
  const title = first && !state.hasMore ? chats.titleFrom(textOf(first)) : frame?.reset ? null : chat.title;
  if (chat.key && title !== chat.title) change({ chat: chats.update(chat, { title }) });
}

// What the person does

function mine() {
  return [...shown.state.messages.filter((message) => message.role === "user"), ...outbox.of(shown.chat.id)];
}

function isBusy() {
  return activeAnswer(shown.state) !== null || outbox.of(shown.chat.id).some(({ pending }) => pending.phase !== "failed");
}

function send(text) {
  if (shown.chat.key) shown.chat = chats.update(shown.chat, { usedAt: Date.now() });
  shown.following = true;
  outbox.add(shown.chat, text);
}

async function stop() {
  const runId = activeAnswer(shown.state)?.runId ?? outbox.of(shown.chat.id).find(({ pending }) => pending.runId)?.pending.runId;
  if (runId) await attempt("stop the answer", "POST", `/api/runs/${runId}/cancel`, {});
}

function edit(id) {
  composer.put(textOf(outbox.take(id)));
}

function again(id) {
  const index = shown.state.messages.findIndex((message) => message.id === id);
  const asked = shown.state.messages.slice(0, index).findLast((message) => message.role === "user");
  if (asked && !isBusy()) send(textOf(asked));
}

function approve(runId, toolCallId, approved) {
  return attempt("answer", "POST", `/api/runs/${runId}/approvals/${toolCallId}`, { approved });
}

async function reset() {
  $("confirm").returnValue = "no";
  $("confirm").showModal();
  await new Promise((resolve) => $("confirm").addEventListener("close", resolve, { once: true }));
  if ($("confirm").returnValue !== "yes") return;
  await attempt("reset the conversation", "POST", `/api/threads/${shown.chat.id}/reset`);
  composer.focus();
}

async function loadEarlier() {
  const { chat, state } = shown;
  const path = `/api/threads/${chat.id}/messages?before=${state.messages[0].id}&limit=50`;
  $("earlier").disabled = true;
  const page = await attempt("load earlier messages", "GET", path);
  $("earlier").disabled = false;
  if (page) feed.adoptEarlier(chat.id, page);
}

/** Ask and insist; what can't be done is said under the composer. */
async function attempt(what, method, path, body) {
  try {
    return await insist(() => call(method, path, { body, key: shown.chat.key }), { tries: 5 });
  } catch (error) {
    if (!(error instanceof Refusal) && !isPassing(error)) throw error;
    composer.say(`Could not ${what}. ${inWords(error)}`);
    return null;
  }
}

// What the page shows

let due = false;

/** Draw soon, once for many changes; hidden tabs get no animation frames, so a timer stands by. */
function draw() {
  if (due) return;
  due = true;
  const frame = requestAnimationFrame(() => drawNow(timer));
  const timer = setTimeout(() => drawNow(null, cancelAnimationFrame(frame)), 250);
}

function drawNow(timer) {
  clearTimeout(timer);
  due = false;
  const { chat, state, refused } = shown;
  const now = Date.now();
  list.update([...state.messages, ...outbox.of(chat.id)], now);
  $("loading").hidden = state.revision !== null || refused !== null;
  $("earlier").hidden = !state.hasMore;
  $("suggestions").hidden = state.revision === null || refused !== null || mine().length > 0;
  $("title").textContent = chat.title ?? "New chat";
  document.title = chat.title ? `${chat.title} · Khala` : "Khala";
  $("reset").disabled = refused !== null || mine().length === 0;
  composer.draw({ busy: isBusy(), closed: refused !== null, stoppable: activeAnswer(state) !== null || outbox.of(chat.id).some(({ pending }) => pending.runId) });
  drawBanner();
  drawConnection(now);
  drawChats();
  follow();
  tick(now);
}

function drawBanner() {
  $("banner").hidden = shown.refused === null;
  $("banner-text").textContent = shown.refused ?? "";
  $("banner-forget").hidden = !shown.chat.key;
}

function drawConnection(now) {
  const { phase, until } = shown.connection;
  const seconds = Math.max(1, Math.ceil(((until ?? now) - now) / 1000));
  const offline = phase !== "live" && !navigator.onLine;
  const words = { connecting: "Connecting …", live: "Live", waiting: `Reconnecting in ${seconds} s`, offline: "Offline", closed: "Closed" };
  const name = shown.refused ? "closed" : offline ? "offline" : phase;
  if ($("connection").textContent !== words[name]) $("connection").textContent = words[name];
  document.body.dataset.connection = name;
  $("wake").hidden = name !== "waiting" && name !== "offline";
}

let drawnChats = "";

function drawChats() {
  const all = chats.all();
  const key = JSON.stringify([shown.chat.id, all.map(({ id, title }) => [id, title])]);
  if (key === drawnChats) return;
  drawnChats = key;
  $("chats").replaceChildren(...all.map(({ id, title }) => make("li", {}, chatLink(id, title))));
}

function chatLink(id, title) {
  const link = make("a", { href: `#${id}`, textContent: title ?? "New chat" });
  if (id === shown.chat.id) link.setAttribute("aria-current", "page");
  return link;
}

/** Count down what counts down. */
let ticking = null;

function tick(now) {
  clearTimeout(ticking);
  const counts = shown.connection.until > now || outbox.of(shown.chat.id).some(({ pending }) => pending.retryAt > now - 1000);
  if (counts) ticking = setTimeout(draw, 300);
}

/** Tell a screen reader once, when an answer ends while it is being watched. */
function speak(before, after) {
  const was = before && activeAnswer(before);
  const is = was && after.messages.find((message) => message.id === was.id);
  if (!is || standing(is) === "writing") return;
  const words = { done: "Answer finished.", stopped: "Answer stopped.", failed: "Answer failed." };
  $("announce").textContent = `${words[standing(is)]} ${textOf(is).slice(0, SPOKEN)}`;
}

// Scrolling: the newest stays in sight unless the person went elsewhere

function follow() {
  const scroll = $("scroll");
  if (shown.following) scroll.scrollTop = scroll.scrollHeight;
  $("newest").hidden = shown.following;
}

function noticeScroll() {
  const { scrollHeight, scrollTop, clientHeight } = $("scroll");
  shown.following = scrollHeight - scrollTop - clientHeight < NEAR_END;
  $("newest").hidden = shown.following;
}

/** After older messages came in above, stay at what was in sight. */
function keepPlace(height) {
  shown.following = false;
  requestAnimationFrame(() => ($("scroll").scrollTop = $("scroll").scrollHeight - height));
}

function jump() {
  shown.following = true;
  const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  $("scroll").scrollTo({ top: $("scroll").scrollHeight, behavior });
}

function toggleDrawer(isOpen) {
  $("drawer").classList.toggle("open", isOpen);
  $("drawer").inert = narrow.matches && !isOpen;
  $("scrim").hidden = !(narrow.matches && isOpen);
  $("menu").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) $("new").focus();
}

function wake() {
  dispatchEvent(new Event("khala-wake"));
  feed.wake();
  draw();
}

$("new").onclick = $("banner-new").onclick = newChat;
$("banner-forget").onclick = forgetChat;
$("menu").onclick = () => toggleDrawer(!$("drawer").classList.contains("open"));
$("scrim").onclick = () => toggleDrawer(false);
$("drawer").onkeydown = (event) => event.key === "Escape" && narrow.matches && (toggleDrawer(false), $("menu").focus());
$("reset").onclick = reset;
$("earlier").onclick = loadEarlier;
$("newest").onclick = jump;
$("wake").onclick = wake;
$("suggestions").onclick = ({ target }) => target.matches("button") && composer.put(target.textContent);
$("scroll").addEventListener("scroll", noticeScroll, { passive: true });
new ResizeObserver(follow).observe($("scroll"));
narrow.onchange = () => toggleDrawer(false);
addEventListener("hashchange", openFromAddress);
addEventListener("storage", draw);
addEventListener("online", wake);
addEventListener("offline", wake);
addEventListener("pageshow", (event) => event.persisted && wake());
document.addEventListener("visibilitychange", () => document.hidden || wake());

openFromAddress();
