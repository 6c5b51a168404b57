// A keyset-paged list of a view, which follows the view's filters.

import { untrack } from "svelte";

import { Pager } from "./pager.svelte.ts";
import { useResource, type Resource } from "./resource.svelte.ts";
import type { ConsolePage } from "./types.ts";

export type Filters = Readonly<Record<string, string>>;

export interface List<Item> {
  readonly pager: Pager;
  readonly resource: Resource<ConsolePage<Item>>;
}

type LoadPage<Item> = (query: Readonly<Record<string, string | undefined>>, signal: AbortSignal) => Promise<ConsolePage<Item>>;

/** The list for the component that calls this. If the filters change, it shows the first page again. */
export function useList<Item>(load: LoadPage<Item>, filters: () => Filters): List<Item> {
  const pager = new Pager();
  const given = $derived(JSON.stringify(filters()));
  $effect(() => {
    if (given) untrack(() => pager.reset()); // reads `given` to run again when it changes
  });
  const resource = useResource(() => {
    const query = { ...(JSON.parse(given) as Filters), cursor: pager.cursor };
    return (signal) => load(query, signal);
  });
  return { pager, resource };
}
