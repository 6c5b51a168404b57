// One message: its text, files and tool calls, and what a person has to decide about them.

import { answerStatus, escapeInvisible, visibleJson, withoutInvisible, withoutReplacedText } from "@khala/client";
import type { Block, ThreadMessage, ToolBlock } from "@khala/client";

import { button, make } from "./elements.ts";
import type { ChatLabels } from "./labels.ts";
import { MarkdownText } from "./markdown.ts";

/** What a message asks of its conversation. */
export interface MessageActions {
  decide: (message: ThreadMessage, call: ToolBlock, approved: boolean) => void;
  resend: (id: string) => void;
  withdraw: (id: string) => void;
}

/** Browsers treat longer timeouts as none. */
const MAX_TIMEOUT_MS = 2 ** 31 - 1;

const DELIVERY = {
  queued: (labels: ChatLabels) => labels.waiting,
  sending: (labels: ChatLabels) => labels.sending,
  sent: () => "",
};

/** Renders one message, and renders again only the blocks that changed. */
export class MessageElement {
  readonly element: HTMLElement;
  readonly #labels: ChatLabels;
  readonly #actions: MessageActions;
  readonly #body = make("div", { part: "content" });
  readonly #note = make("small", { part: "note" });
  #message: ThreadMessage | null = null;
  #blocks: readonly Block[] = [];
  #texts = new Map<Element, MarkdownText>();

  constructor(labels: ChatLabels, actions: MessageActions, role: string) {
    this.#labels = labels;
    this.#actions = actions;
    this.element = make("article", { part: `message ${role}`, children: [this.#body, this.#note] });
  }

  /** Show this state of the message. */
  render(message: ThreadMessage): void {
    if (message === this.#message) return;
    this.#message = message;
    const blocks = withoutReplacedText(message.content, (block) => block);
    blocks.forEach((block, index) => {
      if (block !== this.#blocks[index]) this.#renderBlock(message, block, index);
    });
    while (this.#body.children.length > blocks.length) this.#body.lastElementChild?.remove();
    this.#blocks = blocks;
    this.element.dataset.status = message.role === "assistant" ? answerStatus(message) : "done";
    this.#renderNote(message);
  }

  #renderBlock(message: ThreadMessage, block: Block, index: number): void {
    const shown = this.#body.children[index];
    const text = shown && this.#texts.get(shown);
    if (block.type === "text" && message.role === "assistant" && text) return text.render(block.text);
    const next = this.#elementOf(message, block);
    if (shown) shown.replaceWith(next);
    else this.#body.append(next);
  }

  #elementOf(message: ThreadMessage, block: Block): HTMLElement {
    switch (block.type) {
      case "text": {
        if (message.role !== "assistant") return withDirection(make("p", { part: "text", text: block.text }));
        const view = new MarkdownText(make("div"));
        view.render(block.text);
        this.#texts.set(view.element, view);
        return view.element;
      }
      case "tool":
        return this.#call(message, block);
      case "notice":
        return withDirection(make("small", { part: "notice", text: block.message }));
      case "file":
        return make("small", { part: "file", text: `📎 ${withoutInvisible(block.blob.name ?? "") || this.#labels.file}` });
      default:
        return make("span"); // Data of applications, and kinds of later versions.
    }
  }

  #call(message: ThreadMessage, call: ToolBlock): HTMLElement {
    const detail = withDirection(make("small", { text: detailOf(call) }));
    if (call.state === "blocked") detail.dir = "ltr"; // JSON
    const element = make("div", { part: "call", children: [make("code", { text: call.tool }), detail] });
    element.dataset.state = call.state;
    if (call.state !== "blocked") return element;
    const decide = (approved: boolean) => () => this.#actions.decide(message, call, approved);
    const { asks, approve, deny, expired } = this.#labels;
    const decision = make("div", { part: "decision", children: [make("span", { text: asks }), button(deny, decide(false))] });
    if (call.args) decision.append(button(approve, decide(true), "button primary")); // Nobody approves what they cannot see.
    element.append(decision);
    if (call.expiresAt !== undefined) atTime(Date.parse(call.expiresAt), () => decision.replaceChildren(expired)); // Nobody decides what the server refuses.
    return element;
  }

  #renderNote({ id, role, delivery, content }: ThreadMessage): void {
    const { sendAgain, remove } = this.#labels;
    this.#note.removeAttribute("role");
    if (delivery?.phase === "failed") {
      this.#note.setAttribute("role", "alert");
      this.#note.replaceChildren(`${delivery.message} `, button(sendAgain, () => this.#actions.resend(id)), " ", button(remove, () => this.#actions.withdraw(id)));
      return;
    }
    this.#note.textContent = delivery ? DELIVERY[delivery.phase](this.#labels) : role === "assistant" ? this.#progress(content.length > 0) : "";
  }

  /** A failed answer has its error in its text. */
  #progress(hasContent: boolean): string {
    const { stopped, failed, working } = this.#labels;
    const status = this.element.dataset.status;
    if (status === "stopped") return stopped;
    return hasContent ? "" : status === "failed" ? failed : status === "writing" ? working : "";
  }
}

/** Act at this time (ms since the epoch, by this clock), at once if it is past. */
function atTime(time: number, act: () => void): void {
  const left = time - Date.now();
  if (left <= 0) act();
  else setTimeout(() => atTime(time, act), Math.min(left, MAX_TIMEOUT_MS));
}

/** What a call says: all its arguments, with nothing invisible, while it waits for a decision, or the beginning of those that are too long. */
function detailOf({ state, args, argsBlob, summary }: ToolBlock): string {
  if (state !== "blocked") return (summary ?? "").slice(0, 500);
  return args ? visibleJson(args, 1) : `${escapeInvisible(argsBlob?.preview ?? "")}…`;
}

function withDirection<Element extends HTMLElement>(element: Element): Element {
  element.dir = "auto";
  return element;
}
