// A tool call that waits for a word: approve of it, deny it, or let it go on with other arguments.

import { moment, tried } from "./dialogs.js";
import { make, pretty } from "./elements.js";
import { Refusal } from "./khala.js";
import { BlobPanel } from "./looking.js";
import { inWords } from "./outbox.js";

const LONGEST_REASON = 1000;

function refusedInWords(error) {
  if (!(error instanceof Refusal)) return inWords(error);
  if (error.code === "already_decided") return `Somebody was faster. ${error.message}`;
  if (error.code === "invalid_input") return `The tool can’t be called with this: ${error.errors[0]?.message ?? error.message}`;
  return error.code === "forbidden" ? error.message : inWords(error);
}

/** The arguments in a text, or the words for why it has none. */
export function argsIn(text) {
  try {
    const args = JSON.parse(text);
    return typeof args === "object" && args !== null && !Array.isArray(args) ? { args } : { problem: "Arguments are a JSON object: { … }" };
  } catch (error) {
    return { problem: `This is no JSON. ${error.message}` };
  }
}

export class Question {
  #block;
  #about;
  #actions;
  #shown = make("div", { className: "asked-args" });
  #field = null;
  #reason = make("input", { className: "asked-reason", maxLength: LONGEST_REASON, placeholder: "Reason (optional)", ariaLabel: "Reason" });
  #approve = make("button", { type: "button", className: "small primary", textContent: "Approve", onclick: () => this.#decide(true) });
  #deny = make("button", { type: "button", className: "small", textContent: "Deny", onclick: () => this.#decide(false) });
  #edit = make("button", { type: "button", className: "small", textContent: "Edit arguments", onclick: () => this.#change() });
  #done = make("p", { className: "asked-done", role: "status" });
  #buttons = make("div", { className: "asked-buttons" }, this.#approve, this.#deny, this.#edit, this.#reason);
  element = make("div", { className: "asked", role: "group" });

  /** Ask about a blocked call; who may not write is told only that it waits. */
  constructor(block, about, actions) {
    this.#block = block;
    this.#about = about;
    this.#actions = actions;
    const until = block.expiresAt ? ` It waits until ${moment(block.expiresAt)}.` : "";
    const says = about.mayWrite ? `May ${block.tool} be called with this?` : `${block.tool} waits for somebody’s approval.`;
    this.element.setAttribute("aria-label", says);
    this.#shown.append(block.argsBlob ? new BlobPanel(block.argsBlob, actions.blobs).element : make("pre", { tabIndex: 0, textContent: pretty(block.args ?? {}) }));
    this.element.append(make("p", { className: "asked-words" }, make("strong", { textContent: says }), until), this.#shown);
    if (about.mayWrite) this.element.append(this.#buttons, make("p", { className: "wrong", role: "alert" }), this.#done);
  }

  /** Whether this is still the question. */
  fits(block, about) {
    return block.digest === this.#block.digest && about.mayWrite === this.#about.mayWrite;
  }

  async #change() {
    this.#edit.disabled = true;
    const args = this.#block.args ?? (await this.#wholeArgs());
    if (args === undefined) return void (this.#edit.disabled = false);
    this.#field = make("textarea", { className: "asked-field", defaultValue: pretty(args), spellcheck: false, ariaLabel: "Arguments, as JSON" });
    this.#field.rows = Math.min(12, this.#field.value.split("\n").length + 1);
    this.#shown.replaceChildren(this.#field);
    this.#edit.hidden = true;
    this.#approve.textContent = "Approve with these";
    this.#field.focus();
    return undefined;
  }

  /** Long arguments are not in the message; the question itself has them. */
  async #wholeArgs() {
    const { runId } = this.#about;
    const asked = await tried(this.element, () => this.#actions.approvals(runId), refusedInWords);
    return asked?.items.find((one) => one.toolCallId === this.#block.toolCallId)?.args;
  }

  async #decide(approved) {
    const isEdited = approved && this.#field && this.#field.value !== this.#field.defaultValue;
    const edited = isEdited ? argsIn(this.#field.value) : {};
    this.#field?.setAttribute("aria-invalid", String(Boolean(edited.problem)));
    this.element.querySelector(".wrong").textContent = edited.problem ?? "";
    if (edited.problem) return this.#field.focus();
    const reason = this.#reason.value.trim();
    const { digest, toolCallId } = this.#block;
    const body = { approved, ...(reason && { reason }), ...(digest && { digest }), ...(edited.args && { editedArgs: edited.args }) };
    this.#enable(false);
    const decided = await tried(this.element, () => this.#actions.decide(this.#about.runId, toolCallId, body), refusedInWords);
    if (!decided) return this.#enable(true);
    this.#actions.leave();
    this.#buttons.hidden = true;
    this.#done.textContent = approved ? "Approved." : "Denied.";
    return undefined;
  }

  #enable(isOn) {
    for (const one of [this.#approve, this.#deny, this.#edit, this.#reason]) one.disabled = !isOn;
    if (this.#field) this.#field.readOnly = !isOn;
  }
}
