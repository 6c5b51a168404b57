// One conversation: its messages, the connection's state, and the form for the next message.

import type { ThreadClient, ThreadMessage, ThreadView, ToolBlock } from "@khala/client";

import { button, make } from "./elements.ts";
import type { ChatLabels } from "./labels.ts";
import { MessageElement } from "./message-element.ts";

/** How near to the end, in CSS pixels, the reader is for the view to follow new text. */
const NEAR_END_PX = 48;

export interface ConversationOptions {
  labels: ChatLabels;
  /** Without it, the form is not shown. */
  canSend: boolean;
  /** Options of the runs, such as the agent. */
  options: Record<string, unknown>;
  onError: (error: unknown) => void;
}

/** Shows a thread and follows it until `close`. */
export class ConversationElement {
  readonly element: HTMLElement;
  readonly #thread: ThreadClient;
  readonly #options: ConversationOptions;
  readonly #list = make("div", { part: "messages" });
  readonly #status = make("p", { part: "status" });
  readonly #earlier: HTMLButtonElement;
  readonly #input = make("textarea", { part: "input" });
  readonly #send: HTMLButtonElement;
  readonly #stop: HTMLButtonElement;
  readonly #views = new Map<string, MessageElement>();
  readonly #unsubscribe: () => void;

  constructor(thread: ThreadClient, options: ConversationOptions) {
    this.#thread = thread;
    this.#options = options;
    const { labels } = options;
    this.#earlier = button(labels.earlier, () => this.#attempt(thread.loadOlder()));
    this.#send = button(labels.send, () => undefined, "button primary send");
    this.#send.type = "submit";
    this.#stop = button(labels.stop, () => this.#attempt(thread.cancel()), "button stop");
    this.#list.setAttribute("role", "log");
    this.#list.setAttribute("aria-label", labels.messages);
    this.#list.tabIndex = 0;
    this.#status.setAttribute("role", "status");
    this.element = make("div", { part: "chat", children: [this.#list, this.#status, ...(options.canSend ? [this.#form()] : [])] });
    this.#unsubscribe = thread.subscribe(() => this.#render());
    this.#render();
  }

  /** Stop following the thread. */
  close(): void {
    this.#unsubscribe();
    this.#thread.close();
  }

  /** Put the text into the form. */
  write(text: string): void {
    this.#input.value = text;
    this.#update();
  }

  #form(): HTMLFormElement {
    const input = this.#input;
    input.rows = 1;
    input.dir = "auto";
    input.placeholder = this.#options.labels.write;
    input.setAttribute("aria-label", this.#options.labels.write);
    input.addEventListener("input", () => this.#update());
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#submit();
    });
    const form = make("form", { part: "form", children: [input, this.#stop, this.#send] });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    return form;
  }

  #submit(): void {
    const text = this.#input.value.trim();
    if (!text) return;
    try {
      this.#thread.queue(text, { options: this.#options.options });
      this.write("");
      this.#scrollToEnd();
    } catch (error) {
      this.#options.onError(error);
    }
  }

  #update(): void {
    this.#send.disabled = !this.#input.value.trim();
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
  }

  #render(): void {
    const view = this.#thread.get();
    const { scrollHeight, scrollTop, clientHeight } = this.#list;
    const follows = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    this.#renderMessages(view);
    this.#renderStatus(view);
    this.#stop.hidden = view.activeAnswer === null;
    this.element.dataset.status = view.status;
    this.#update();
    if (follows) this.#scrollToEnd();
  }

  #renderMessages({ messages, state }: ThreadView): void {
    const shown: Element[] = state.hasMore ? [this.#earlier] : [];
    const ids = new Set(messages.map(({ id }) => id));
    for (const id of [...this.#views.keys()]) if (!ids.has(id)) this.#views.delete(id);
    for (const message of messages) {
      const view = this.#views.get(message.id) ?? this.#add(message);
      view.render(message);
      shown.push(view.element);
    }
    const list = this.#list;
    shown.forEach((element, index) => {
      if (list.children[index] !== element) list.insertBefore(element, list.children[index] ?? null);
    });
    while (list.children.length > shown.length) list.lastElementChild?.remove();
  }

  #add(message: ThreadMessage): MessageElement {
    const actions = {
      decide: (of: ThreadMessage, call: ToolBlock, approved: boolean) => this.#decide(of, call, approved),
      resend: (id: string) => this.#thread.resend(id),
      withdraw: (id: string) => this.#thread.withdraw(id),
    };
    const view = new MessageElement(this.#options.labels, actions, message.role);
    this.#views.set(message.id, view);
    return view;
  }

  #decide(message: ThreadMessage, { toolCallId, digest }: ToolBlock, approved: boolean): void {
    const run = this.#thread.runOf(message);
    const options = digest === undefined ? {} : { digest };
    if (run) this.#attempt(approved ? run.approve(toolCallId, options) : run.deny(toolCallId, options));
  }

  #renderStatus({ status, error }: ThreadView): void {
    const { connecting, reconnecting, retry } = this.#options.labels;
    this.#status.textContent = status === "connecting" ? connecting : status === "reconnecting" ? reconnecting : status === "refused" ? `${error?.message ?? ""} ` : "";
    if (status === "refused") this.#status.append(button(retry, () => this.#thread.retry()));
    this.#status.hidden = this.#status.textContent === "";
  }

  #scrollToEnd(): void {
    this.#list.scrollTop = this.#list.scrollHeight;
  }

  #attempt(work: Promise<unknown>): void {
    work.catch((error: unknown) => this.#options.onError(error));
  }
}
