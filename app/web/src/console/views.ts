// The views of the console, in the order of the navigation.

import type { Component } from "svelte";

import AccountDetail from "./views/AccountDetail.svelte";
import Accounts from "./views/Accounts.svelte";
import Audit from "./views/Audit.svelte";
import Blobs from "./views/Blobs.svelte";
import Budgets from "./views/Budgets.svelte";
import Executors from "./views/Executors.svelte";
import Overview from "./views/Overview.svelte";
import RunDetail from "./views/RunDetail.svelte";
import Runs from "./views/Runs.svelte";
import Schedules from "./views/Schedules.svelte";
import Spend from "./views/Spend.svelte";
import ThreadDetail from "./views/ThreadDetail.svelte";
import Threads from "./views/Threads.svelte";
import Tools from "./views/Tools.svelte";
import WebhookDetail from "./views/WebhookDetail.svelte";
import Webhooks from "./views/Webhooks.svelte";

export interface View {
  /** The segment of the address; empty for the overview. */
  readonly name: string;
  readonly title: string;
  readonly icon: string;
  readonly list: Component;
  /** Shows one item of the list. */
  readonly detail?: Component<{ id: string }>;
}

export interface ViewGroup {
  readonly title: string;
  readonly views: readonly View[];
}

export const VIEW_GROUPS: readonly ViewGroup[] = [
  {
    title: "Activity",
    views: [
      { name: "", title: "Overview", icon: "M3 3h6v8H3zM11 3h6v4h-6zM11 9h6v8h-6zM3 13h6v4H3z", list: Overview },
      { name: "runs", title: "Runs", icon: "M6 4v12l10-6z", list: Runs, detail: RunDetail },
      { name: "threads", title: "Threads", icon: "M3 4h14v9H9l-4 3.5V13H3z", list: Threads, detail: ThreadDetail },
      { name: "schedules", title: "Schedules", icon: "M10 17a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM10 6v4l3 2", list: Schedules },
    ],
  },
  {
    title: "Capacity",
    views: [
      { name: "executors", title: "Executors", icon: "M3 4h14v5H3zM3 11h14v5H3zM6 6.5h.01M6 13.5h.01", list: Executors },
      { name: "tools", title: "Tools", icon: "M12.5 3.5a4 4 0 0 0-4 5.5L3 14.5 5.5 17l5.5-5.5a4 4 0 0 0 5.5-5l-2.5 2.5-2.5-.5-.5-2.5z", list: Tools },
      { name: "blobs", title: "Blobs", icon: "M5 2.5h6.5L16 7v10.5H5zM11 3v4.5h4.5", list: Blobs },
    ],
  },
  {
    title: "Cost",
    views: [
      { name: "spend", title: "Spend", icon: "M3 17V3M3 17h14M6.5 14v-4M10 14V6M13.5 14V8.5", list: Spend },
      { name: "budgets", title: "Budgets", icon: "M3 13a7 7 0 1 1 14 0M10 13l3.5-4", list: Budgets },
    ],
  },
  {
    title: "Administration",
    views: [
      { name: "accounts", title: "Accounts", icon: "M10 10a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM3.5 17a6.5 6.5 0 0 1 13 0", list: Accounts, detail: AccountDetail },
      { name: "webhooks", title: "Webhooks", icon: "M7 8.5a3 3 0 1 1 5-2L14.5 11M13 11.5a3 3 0 1 1-.5 5M9.5 6.5 7 11.5a3 3 0 1 0 2 4h5", list: Webhooks, detail: WebhookDetail },
      { name: "audit", title: "Audit", icon: "M5 2.5h10v15l-2.5-1.5L10 17.5 7.5 16 5 17.5zM8 7h4M8 10.5h4", list: Audit },
    ],
  },
];

/** The view of a segment of the address; undefined if there is none. */
export function viewOf(name: string): View | undefined {
  return VIEW_GROUPS.flatMap(({ views }) => views).find((view) => view.name === name);
}
