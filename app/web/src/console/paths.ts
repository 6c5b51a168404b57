// Paths and queries of the console's addresses.

export const BASE = "/console";

/** The path of a view, with an id if given and with filters. */
export function pathOf(view: string, id = "", filters: Readonly<Record<string, string>> = {}): string {
  const path = [BASE, view, id].filter(Boolean).map((part, index) => (index === 2 ? encodeURIComponent(part) : part));
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value !== "")).toString();
  return path.join("/") + (query && `?${query}`);
}

/** A parameter of a query; empty if it is not set. */
export function parameterOf(query: string, name: string): string {
  return new URLSearchParams(query).get(name) ?? "";
}

/** The query with these parameters; an empty value removes its parameter. */
export function changeQuery(query: string, changes: Readonly<Record<string, string>>): string {
  const parameters = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "") parameters.delete(name);
    else parameters.set(name, value);
  }
  const changed = parameters.toString();
  return changed && `?${changed}`;
}
