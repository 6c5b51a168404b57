"use client";

// The client that the hooks below it use.

import type { Khala } from "@khala/client";
import { createContext, createElement, useContext } from "react";
import type { ReactElement, ReactNode } from "react";

const ClientContext = createContext<Khala | null>(null);

/** Gives a client to the hooks in `children`. Create the client once, outside of components. */
export function KhalaProvider({ client, children }: { client: Khala; children?: ReactNode }): ReactElement {
  return createElement(ClientContext.Provider, { value: client }, children);
}

/** The client of the nearest `KhalaProvider`. Throws if there is none. */
export function useKhala(): Khala {
  const client = useContext(ClientContext);
  if (client === null) throw new Error("There is no <KhalaProvider client={…}> around this component.");
  return client;
}
