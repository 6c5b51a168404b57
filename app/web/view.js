// Messages as DOM: kept in step with the state by changing as little as possible, so that a selection survives streaming.

import { standing } from "./state.js";

const STANDINGS = { stopped: "Stopped", failed: "Failed" };
const REASONS = {
  length: "Cut off at the length limit",
  max_steps: "Stopped at the step limit",
  budget: "Stopped at the budget",
  blocked: "Blocked",
};
const TOOL_STATES = {
  queued: "queued",
  running: "running",
  completed: "done",
  failed: "failed",
  blocked: "needs your approval",
  cancelled: "cancelled",
};

const MARKS = ["code", "strong", "emphasis", "heading"];

/** An element with properties and children; a text child is only ever text. */
export function make(tag, properties = {}, ...children) {
  const { data = {}, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

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

/** Make the children of `parent` show `items`, reusing those of the same kind. */
function sync(parent, items, kindOf, create, update) {
  items.forEach((item, index) => {
    let child = parent.children[index];
    if (child?.dataset.kind !== kindOf(item)) {
      const fresh = create(item);
      fresh.dataset.kind = kindOf(item);
      if (child) child.replaceWith(fresh);
      else parent.append(fresh);
      child = fresh;
    }
    update(child, item);
  });
  while (parent.children.length > items.length) parent.lastElementChild.remove();
}

/** Text that grew is appended to; only other text is replaced. */
function setText(element, text) {
  const node = element.firstChild ?? element.appendChild(document.createTextNode(""));
  if (text === node.data) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
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

/** A button that copies what `text()` says. */
export function copyButton(text) {
  const button = make("button", { type: "button", className: "quiet copy", textContent: "Copy", hidden: !navigator.clipboard });
  button.addEventListener("click", async () => {
    const copied = await navigator.clipboard.writeText(text()).then(() => true, () => false);
    button.textContent = copied ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

function createBlock(block) {
  if (block.type === "text") return make("div", { className: "text" });
  if (block.type === "notice") return make("p", { className: "notice" });
  if (block.type !== "tool") return make("div", { hidden: true });
  const summary = make("summary", {}, ...["tool-name", "tool-state", "tool-summary"].map((className) => make("span", { className })));
  const details = make("details", {}, summary, make("pre", { className: "tool-body", tabIndex: 0 }));
  return make("div", { className: "tool" }, details);
}

function updateBlock(element, block) {
  if (block.type === "text") sync(element, segments(block.text), (part) => part.kind, createSegment, updateSegment);
  else if (block.type === "notice") setText(element, block.message);
  else if (block.type === "tool") updateTool(element, block);
}

function updateTool(element, block) {
  element.dataset.state = block.state;
  element.querySelector(".tool-name").textContent = block.tool;
  element.querySelector(".tool-state").textContent = TOOL_STATES[block.state] ?? block.state;
  element.querySelector(".tool-summary").textContent = block.summary ?? block.reason ?? "";
  element.querySelector(".tool-body").textContent = toolBody(block);
}

function toolBody({ args, output, blob, durationMs }) {
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
  const lines = [args && `Arguments\n${shown(args)}`, output != null && `Result\n${shown(output)}`];
  if (blob) lines.push(`Result, ${blob.size} bytes, begins\n${blob.preview}`);
  if (durationMs != null) lines.push(`Took ${milliseconds(durationMs)}`);
  return lines.filter(Boolean).join("\n\n");
}

function milliseconds(value) {
  return value < 1000 ? `${value} ms` : `${(value / 1000).toFixed(1)} s`;
}

/** "demo · 57 + 200 tokens · $0.0004 · 2.1 s" */
export function facts({ model, usage, costUsd, totalMs }) {
  const tokens = usage && `${usage.inputTokens.toLocaleString("en")} in, ${usage.outputTokens.toLocaleString("en")} out tokens`;
  return [model, tokens, costUsd && cost(Number(costUsd)), totalMs != null && milliseconds(totalMs)].filter(Boolean).join(" · ");
}

function cost(usd) {
  return usd === 0 ? "$0" : `$${usd >= 0.01 ? usd.toFixed(2) : usd.toPrecision(2)}`;
}

/** One message, or one that is still on its way (`message.pending`). */
export class MessageView {
  #shown = {};
  #footKey = "";
  #actions;

  constructor(message, actions) {
    this.#actions = actions;
    this.content = make("div", { className: "content" });
    this.foot = make("div", { className: "foot" });
    this.who = make("span", { className: "unseen" });
    this.element = make("li", { className: `message ${message.role}`, data: { id: message.id, role: message.role } }, this.who, this.content, this.foot);
  }

  /**
   * Show this message; `last` is whether nothing comes after it, `now` the time for what counts down, `author` the name
   * above somebody else's message, null above one's own.
   */
  update(message, { last, now, author, mayWrite }) {
    const { pending } = message;
    const shown = this.#shown;
    if (shown.message === message && shown.last === last && shown.author === author && shown.mayWrite === mayWrite && !pending?.retryAt) return;
    this.#shown = { message, last, author, mayWrite };
    this.who.className = author ? "author" : "unseen";
    this.who.textContent = author ?? (message.role === "user" ? "You:" : "Khala:");
    this.element.classList.toggle("others", Boolean(author));
    const state = message.role === "user" ? (pending?.phase ?? "sent") : standing(message);
    this.element.dataset.state = state;
    if (message.role === "user") setText(this.content, message.content.map((block) => block.text ?? "").join(""));
    else sync(this.content, message.content, (block) => block.toolCallId ?? block.type, createBlock, updateBlock);
    this.element.setAttribute("aria-busy", String(state === "writing"));
    this.#updateFoot(pending ? pendingFoot(message, this.#actions, now) : answerFoot(message, state, last && mayWrite, this.#actions));
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

function roundFoot({ round }, state) {
  if (state !== "writing" || !round || round.step < 2) return [];
  return [make("span", { className: "status", textContent: `Step ${round.step} of ${round.maxSteps}` })];
}

/** Make a list show these messages in order, each with its own view, which it keeps. */
export class Messages {
  #views = new Map();

  constructor(list, actions) {
    this.list = list;
    this.actions = actions;
  }

  /** `authorOf(message)` names the author where that is somebody else; `mayWrite` is whether one may ask again. */
  update(messages, { now, authorOf, mayWrite }) {
    const gone = new Set(this.#views.keys());
    messages.forEach((message, index) => {
      gone.delete(message.id);
      if (!this.#views.has(message.id)) this.#views.set(message.id, new MessageView(message, this.actions));
      const view = this.#views.get(message.id);
      view.update(message, { last: index === messages.length - 1, now, author: authorOf(message), mayWrite });
      if (this.list.children[index] !== view.element) this.list.insertBefore(view.element, this.list.children[index] ?? null);
    });
    for (const id of gone) this.#remove(id);
  }

  #remove(id) {
    this.#views.get(id).element.remove();
    this.#views.delete(id);
  }
}
