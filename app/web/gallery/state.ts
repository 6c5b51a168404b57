// What a state of the gallery is made of.

import type { Invitation, MessageState, Participant, PlanEntry, Role, Thread, ThreadListEntry, User } from "@khala/client";
import type { Component, ComponentProps } from "svelte";
import { mount } from "svelte";

import type { KnownChat } from "../src/state/keyring.ts";
import type { PageModel } from "../src/state/page-model.ts";
import type { Responses } from "./responses.ts";
import type { PageDriver } from "./page-driver.ts";

/** What the server and the browser's storage have. What is left out is that of a guest with an empty chat of their own. */
export interface Scenario {
  readonly user?: User;
  readonly thread?: Partial<Thread>;
  readonly isTemporary?: true;
  /** The role in a chat that is not the guest's own. */
  readonly role?: Role;
  readonly messages?: readonly MessageState[];
  readonly plans?: readonly PlanEntry[];
  readonly hasMore?: boolean;
  readonly present?: readonly Participant[];
  /** Other chats whose keys are in this browser. */
  readonly known?: readonly KnownChat[];
  readonly threads?: readonly ThreadListEntry[];
  readonly invitations?: readonly Invitation[];
  /** "loading": the server has not answered yet. */
  readonly connection?: "live" | "loading" | "waiting" | "offline";
  readonly refusal?: { readonly code: string; readonly message: string };
  readonly draft?: string;
  /** Responses of the server beside those in `responses.ts`. */
  readonly responses?: Responses;
}

export interface GalleryState {
  /** Unique in its group. */
  readonly name: string;
  readonly view: View;
  /** The height of the frame in pixels; by default that of what it shows. */
  readonly height?: number;
  /** Whether it opens something above itself, so that it has to be at the lower end of the frame. */
  readonly opensUpwards?: true;
  readonly scenario?: Scenario;
  /** Called once the chat is there, before anything is shown. */
  readonly prepare?: (page: PageModel) => void | Promise<void>;
  /** What the person does. */
  readonly act?: (driver: PageDriver) => void | Promise<void>;
}

export interface Group {
  readonly name: string;
  /** The width of frames in pixels. */
  readonly width: number;
  readonly states: readonly GalleryState[];
}

/** Shows something in an element. A `whole` view is the body itself. */
export interface View {
  readonly isWhole: boolean;
  show(target: HTMLElement): void;
}

/** A component with its props. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any -- as in Svelte's own types
export function component<Shown extends Component<any>>(shown: Shown, props: ComponentProps<Shown>): View {
  return { isWhole: false, show: (target) => void mount(shown, { target, props }) };
}

/** A component that is the whole page. */
export function whole(shown: Component<Record<string, never>>): View {
  return { isWhole: true, show: (target) => void mount(shown, { target }) };
}
