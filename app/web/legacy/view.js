// Messages as DOM: kept in step with the state by changing as little as possible, so that a selection survives streaming.

import { copyButton, cost, make, milliseconds, setText, sync } from "./elements.js";
import { fileView } from "./files.js";
import { standing, waiting } from "./state.js";
import { Group } from "./tools.js";

const STANDINGS = { stopped: "Stopped", failed: "Failed" };
const REASONS = {
  length: "Cut off at the length limit",
  max_steps: "Stopped at the step limit",
  no_progress: "Stopped: no progress",
  budget: "Stopped at the budget",
  tool_calls: "Left to the caller’s tools",
  blocked: "Blocked",
};
const MARKS = ["code", "strong", "emphasis", "heading"];

/** The text cut into prose and fenced code; a fence that is still open counts as code to the end. */
export function segments(text) {
  const found = [];
  let rest = text;
  while (rest) {
    const fence = /(?:^|\n) {0,3}```([^\n`]*)(?:\n|$)/.exec(rest);
    const prose = fence ? rest.slice(0, fence.index) : rest;
    if (prose.trim()) found.push({ kind: "prose", text: found.length ? prose.replace(/^\n+/, "") : prose });
    if (!fence) break;
    rest = rest.slice(fence.index + fence[0].length);
    const end = /(?:^|\n) {0,3}```[ \t]*(?:\n|$)/.exec(rest);
    found.push({ kind: "code", language: fence[1].trim(), text: end ? rest.slice(0, end.index) : rest });
    rest = end ? rest.slice(end.index + end[0].length) : "";
  }
  return found;
}

/** Prose cut into plain text, `code`, **strong**, *emphasis* and headings. */
export function marks(prose) {
  const pattern = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^\s*](?:[^*\n]*[^\s*])?)\*(?![\w*])|^#{1,6} +([^\n]+)$/gm;
  const found = [];
  let end = 0;
  for (const match of prose.matchAll(pattern)) {
    if (match.index > end) found.push({ kind: "plain", text: prose.slice(end, match.index) });
    const index = match.findIndex((group, at) => at > 0 && group !== undefined);
    found.push({ kind: MARKS[index - 1], text: match[index] });
    end = match.index + match[0].length;
  }
  if (end < prose.length) found.push({ kind: "plain", text: prose.slice(end) });
  return found;
}

const MARK_TAGS = { plain: "span", code: "code", strong: "strong", emphasis: "em", heading: "strong" };

function updateSegment(element, segment) {
  if (segment.kind === "code") {
    element.querySelector(".language").textContent = segment.language;
    return setText(element.querySelector("code"), segment.text);
  }
  sync(element, marks(segment.text), (mark) => mark.kind, (mark) => make(MARK_TAGS[mark.kind]), (child, mark) => setText(child, mark.text));
}

function createSegment(segment) {
  if (segment.kind === "prose") return make("div", { className: "prose" });
  const code = make("code");
  const bar = make("div", { className: "code-bar" }, make("span", { className: "language" }), copyButton(() => code.textContent));
  return make("div", { className: "code" }, bar, make("pre", { tabIndex: 0 }, code));
}

/** Content as it is shown: the tool calls of a step that follow each other are one group. */
function grouped(content) {
  const items = [];
  for (const block of content) {
    const last = items.at(-1);
    const step = block.step ?? 0;
    if (block.type !== "tool") items.push(block);
    else if (last?.type === "group" && last.step === step) last.tools.push(block);
    else items.push({ type: "group", step, tools: [block] });
  }
  return items;
}

const keyOf = (item) => (item.type === "group" ? item.tools[0].toolCallId : item.type);
const drawn = new WeakMap();

function createBlock(block, actions) {
  if (block.type === "text") return make("div", { className: "text" });
  if (block.type === "notice") return make("p", { className: "notice" });
  if (block.type === "compaction") return make("details", { className: "notice" }, make("summary", { textContent: "Older turns were summarised for the model" }), make("p", { className: "prose" }));
  if (block.type === "file") return fileView(block.blob, actions.blobs);
  if (block.type !== "group") return make("div", { hidden: true });
  const group = new Group(actions);
  drawn.set(group.element, group);
  return group.element;
}

function updateBlock(element, block, about) {
  if (block.type === "group") return drawn.get(element).update(block, about);
  if (drawn.get(element) === block) return undefined;
  drawn.set(element, block);
  if (block.type === "text") sync(element, segments(block.text), (part) => part.kind, createSegment, updateSegment);
  else if (block.type === "notice") setText(element, block.message);
  else if (block.type === "compaction") setText(element.lastElementChild, block.summary);
  return undefined;
}

/** "demo · 57 + 200 tokens · $0.0004 · 2.1 s" */
export function facts({ model, usage, costUsd, totalMs }) {
  const tokens = usage && `${usage.inputTokens.toLocaleString("en")} in, ${usage.outputTokens.toLocaleString("en")} out tokens`;
  return [model, tokens, costUsd && cost(Number(costUsd)), totalMs != null && milliseconds(totalMs)].filter(Boolean).join(" · ");
}

/** One message, or one that is still on its way (`message.pending`). */
export class MessageView {
  #shown = {};
  #footKey = "";
  #actions;

  constructor(message, actions) {
    this.#actions = actions;
    this.content = make("div", { className: "content" });
    this.files = make("div", { className: "files", hidden: true });
    this.foot = make("div", { className: "foot" });
    this.who = make("span", { className: "unseen" });
    this.element = make("li", { className: `message ${message.role}`, data: { id: message.id, role: message.role } }, this.who, this.files, this.content, this.foot);
  }

  /**
   * Show this message; `last` is whether nothing comes after it, `now` the time for what counts down, `lag` how far our
   * clock is ahead of the server's, `author` the name above somebody else's message, null above one's own.
   */
  update(message, { last, now, lag, author, mayWrite }) {
    const { pending } = message;
    const shown = this.#shown;
    if (shown.message === message && shown.last === last && shown.author === author && shown.mayWrite === mayWrite && !pending?.retryAt) return;
    this.#shown = { message, last, author, mayWrite };
    this.who.className = author ? "author" : "unseen";
    this.who.textContent = author ?? (message.role === "user" ? "You:" : "Khala:");
    this.element.classList.toggle("others", Boolean(author));
    const state = message.role === "user" ? (pending?.phase ?? "sent") : standing(message);
    this.element.dataset.state = state;
    if (message.role === "user") this.#updateQuestion(message);
    else this.#updateAnswer(message, { lag, mayWrite });
    this.element.setAttribute("aria-busy", String(state === "writing"));
    this.#updateFoot(pending ? pendingFoot(message, this.#actions, now) : answerFoot(message, state, last && mayWrite, this.#actions));
  }

  #updateQuestion({ content }) {
    const files = content.filter((block) => block.type === "file");
    const text = content.map((block) => block.text ?? "").join("");
    this.content.hidden = !text;
    setText(this.content, text);
    this.files.hidden = files.length === 0;
    sync(this.files, files, ({ blob }) => blob.blobId, ({ blob }) => fileView(blob, this.#actions.blobs), () => {});
  }

  #updateAnswer({ content, runId, began }, rest) {
    const about = { runId, began: began ?? {}, ...rest };
    sync(this.content, grouped(content), keyOf, (block) => createBlock(block, this.#actions), (element, block) => updateBlock(element, block, about));
  }

  /** Rebuilt only when it says something else, so that a focused button stays. */
  #updateFoot(parts) {
    const key = parts.map((part) => `${part.className} ${part.textContent} ${part.disabled}`).join("|");
    if (key === this.#footKey) return;
    this.#footKey = key;
    this.foot.replaceChildren(...parts);
  }
}

function pendingFoot({ id, pending }, actions, now) {
  if (pending.phase === "sending") return [make("span", { className: "status", textContent: pending.attempt > 1 ? "Sending, trying again …" : "Sending …" })];
  const wait = Math.max(0, Math.ceil(((pending.retryAt ?? 0) - now) / 1000));
  const retry = make("button", { type: "button", className: "small", textContent: wait ? `Retry in ${wait} s` : "Retry", disabled: wait > 0, onclick: () => actions.resend(id) });
  const edit = make("button", { type: "button", className: "small", textContent: "Edit", onclick: () => actions.edit(id) });
  return [make("span", { className: "status bad", textContent: `Not sent. ${pending.reason}` }), ...(pending.final ? [edit] : [retry, edit])];
}

function answerFoot(message, state, mayRetry, actions) {
  if (message.role !== "assistant" || state === "writing") return roundFoot(message, state);
  const badge = STANDINGS[state] ?? REASONS[message.finish?.reason];
  const parts = [];
  if (badge) parts.push(make("span", { className: `badge ${state}`, textContent: badge }));
  if (message.failure) parts.push(make("span", { className: "status", textContent: message.failure.message }));
  if (mayRetry && STANDINGS[state]) parts.push(make("button", { type: "button", className: "small", textContent: "Retry", onclick: () => actions.again(message.id) }));
  if (message.finish) parts.push(make("span", { className: "facts", textContent: facts(message.finish) }));
  if (message.finish && message.content.length) parts.push(copyButton(() => message.content.map((block) => block.text ?? "").join("")));
  return parts;
}

/** "Step 3/20 · 1,204 tokens · $0.01 so far" */
function roundFoot({ round, content }, state) {
  if (state !== "writing") return [];
  const step = Math.max(round?.step ?? 0, ...content.map((block) => block.step ?? 0));
  const steps = round?.maxSteps > 1 ? `Step ${step}/${round.maxSteps}` : !round && step > 0 && `Step ${step}`;
  const { usage, costUsd } = round ?? {};
  const used = [usage && `${(usage.inputTokens + usage.outputTokens).toLocaleString("en")} tokens`, costUsd && cost(Number(costUsd))].filter(Boolean).join(" · ");
  const words = [steps, waiting(content) && "waits for approval", used && `${used} so far`].filter(Boolean).join(" · ");
  return words ? [make("span", { className: "status", textContent: words[0].toUpperCase() + words.slice(1) })] : [];
}

/** Make a list show these messages in order, each with its own view, which it keeps. */
export class Messages {
  #views = new Map();

  constructor(list, actions) {
    this.list = list;
    this.actions = actions;
  }

  /** `authorOf(message)` names the author where that is somebody else; `mayWrite` is whether one may ask again. */
  update(messages, { now, lag, authorOf, mayWrite }) {
    const gone = new Set(this.#views.keys());
    messages.forEach((message, index) => {
      gone.delete(message.id);
      if (!this.#views.has(message.id)) this.#views.set(message.id, new MessageView(message, this.actions));
      const view = this.#views.get(message.id);
      view.update(message, { last: index === messages.length - 1, now, lag, author: authorOf(message), mayWrite });
      if (this.list.children[index] !== view.element) this.list.insertBefore(view.element, this.list.children[index] ?? null);
    });
    for (const id of gone) this.#remove(id);
  }

  #remove(id) {
    this.#views.get(id).element.remove();
    this.#views.delete(id);
  }
}
