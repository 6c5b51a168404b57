// The outcome of connecting a service: the browser comes back with it in the address.

/** `code`: `connected`, or why it is not. `service` is null if the server does not know which one it was. */
export interface ConnectionOutcome {
  readonly code: string;
  readonly service: string | null;
}

let outcome: ConnectionOutcome | null = null;

/** The outcome in the query of an address. */
export function parseOutcome(search: string): ConnectionOutcome | null {
  const query = new URLSearchParams(search);
  const code = query.get("connection");
  return code === null ? null : { code, service: query.get("service") };
}

/** Move the outcome out of the address, for the settings. Returns whether there is one. */
export function receiveOutcome(): boolean {
  outcome = parseOutcome(location.search);
  if (outcome !== null) history.replaceState(null, "", location.pathname + location.hash);
  return outcome !== null;
}

/** The outcome that was received, once. */
export function takeOutcome(): ConnectionOutcome | null {
  const taken = outcome;
  outcome = null;
  return taken;
}
