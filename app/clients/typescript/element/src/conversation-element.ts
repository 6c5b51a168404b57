// One conversation: its messages, the connection's state, and the form for the next message.

import type { ThreadClient, ThreadMessage, ThreadView, ToolBlock } from "@khala/client";

import { button, iconButton, make } from "./elements.ts";
import type { ChatLabels } from "./labels.ts";
import { MessageElement } from "./message-element.ts";

/** How near to the end, in CSS pixels, the reader is for the view to follow new text. */
const NEAR_END_PX = 48;
const ARROW_UP = "M10 16V4M4.5 9.5 10 4l5.5 5.5";
const SQUARE = "M5.5 5.5h9v9h-9z";

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
  #form: HTMLFormElement | null = null;
  /** Whether the view stays at the end when something above or below it changes its height. */
  #follows = true;
  readonly #views = new Map<string, MessageElement>();
  readonly #unsubscribe: () => void;

  constructor(thread: ThreadClient, options: ConversationOptions) {
    this.#thread = thread;
    this.#options = options;
    const { labels } = options;
    this.#earlier = button(labels.earlier, () => this.#attempt(thread.loadOlder()));
    this.#send = iconButton(labels.send, ARROW_UP, () => undefined, "button primary send");
    this.#send.type = "submit";
    this.#stop = iconButton(labels.stop, SQUARE, () => this.#attempt(thread.cancel()), "button stop");
    this.#list.setAttribute("role", "log");
    this.#list.setAttribute("aria-label", labels.messages);
    this.#list.tabIndex = 0;
    this.#status.setAttribute("role", "status");
    this.#list.addEventListener("scroll", () => (this.#follows = this.#isNearEnd()));
    if (options.canSend) this.#form = this.#makeForm();
    this.element = make("div", { part: "chat", children: [this.#list, this.#status, ...(this.#form ? [this.#form] : [])] });
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

  #makeForm(): HTMLFormElement {
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
      this.#follows = true;
      this.write("");
    } catch (error) {
      this.#options.onError(error);
    }
  }

  /** The button that is of use: Send for a text, Stop while an answer is written. */
  #update(): void {
    const hasText = this.#input.value.trim() !== "";
    const isAnswering = this.#thread.get().activeAnswer !== null;
    this.#stop.hidden = !isAnswering;
    this.#send.hidden = isAnswering && !hasText;
    this.#send.disabled = !hasText;
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
    if (this.#follows) this.#scrollToEnd();
  }

  #isNearEnd(): boolean {
    const { scrollHeight, scrollTop, clientHeight } = this.#list;
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  #render(): void {
    const view = this.#thread.get();
    this.#renderMessages(view);
    this.#renderStatus(view);
    if (this.#form) this.#form.hidden = view.status === "refused";
    this.element.dataset.status = view.status;
    this.#update();
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
    if (this.element.dataset.status === status) return;
    const { connecting, reconnecting, refused, retry } = this.#options.labels;
    this.#status.textContent = status === "connecting" ? connecting : status === "reconnecting" ? reconnecting : status === "refused" ? refused : "";
    this.#status.hidden = this.#status.textContent === "";
    if (status !== "refused") return;
    this.#status.append(button(retry, () => this.#thread.retry()));
    this.#options.onError(error); // The server's message is for the page's developers.
  }

  #scrollToEnd(): void {
    this.#list.scrollTop = this.#list.scrollHeight;
  }

  #attempt(work: Promise<unknown>): void {
    work.catch((error: unknown) => this.#options.onError(error));
  }
}
