// A JSON value as a tree of rows, read in pages. Closed values cost nothing, however large they are.

import { escapeInvisible } from "@khala/client";

/** Longer strings are cut in a row. */
const MAX_TEXT_CHARACTERS = 1_000;
/** The number of rows up to which values are opened at first. */
const MAX_INITIAL_ROWS = 60;
/** Further rows are not shown: no browser supports a taller element. */
const MAX_ROWS = 500_000;

export interface TreeRow {
  /** The row's index among all visible rows, from 0. */
  readonly index: number;
  /** The value's path: its indices from the root down, such as "0/12". */
  readonly path: string;
  /** The depth, from 1. */
  readonly level: number;
  /** The field's name as JSON, or null in an array. */
  readonly name: string | null;
  readonly kind: "string" | "number" | "word" | "object" | "array";
  /** The value as JSON; of an object or array only its brackets. */
  readonly text: string;
  /** The number of values in it; 0 if it can't be opened. */
  readonly size: number;
  readonly isOpen: boolean;
  /** Its position among its siblings, from 1, and their number. */
  readonly place: number;
  readonly beside: number;
  /** The index of the parent row, or -1. */
  readonly parent: number;
}

/** An open value: its fields, and those of them that are open. */
class OpenNode {
  readonly names: readonly string[] | null;
  readonly values: readonly unknown[];
  /** Sorted by place. */
  readonly inside: { place: number; node: OpenNode }[] = [];
  count: number;

  constructor(value: object) {
    this.names = Array.isArray(value) ? null : Object.keys(value);
    this.values = Array.isArray(value) ? (value as unknown[]) : Object.values(value);
    this.count = this.values.length;
  }

  /** The index of the open value at this place, or where it would be inserted. */
  search(place: number): number {
    const index = this.inside.findIndex((one) => one.place >= place);
    return index < 0 ? this.inside.length : index;
  }
}

/** Whether a value has any rows. */
export function hasRows(value: unknown): value is object {
  return typeof value === "object" && value !== null && sizeOf(value) > 0;
}

/** Cached, because counting the fields of a large object is slow and rows are drawn often. */
const sizes = new WeakMap<object, number>();

function sizeOf(value: object): number {
  if (Array.isArray(value)) return value.length;
  const size = sizes.get(value) ?? Object.keys(value).length;
  sizes.set(value, size);
  return size;
}

export class JsonTreeModel {
  readonly #root: OpenNode;

  /** `value` is an array or object that is not empty. */
  constructor(value: object) {
    this.#root = new OpenNode(value);
    this.#openSome();
  }

  /** The number of visible rows. */
  get count(): number {
    return Math.min(this.#root.count, MAX_ROWS);
  }

  /** Up to `most` rows from index `from` on. */
  rows(from: number, most: number): TreeRow[] {
    const found: TreeRow[] = [];
    this.#collect(this.#root, { path: "", level: 1, start: 0, parent: -1 }, [Math.max(0, from), Math.min(this.count, from + most)], found);
    return found;
  }

  /** Open or close the value at a path. Does nothing if there is no array or object. */
  setOpen(path: string, isOpen: boolean): void {
    const places = path.split("/").map(Number);
    const last = places.pop() ?? -1;
    const above = this.#pathNodes(places);
    const node = above?.at(-1);
    if (!above || !node) return;
    const at = node.search(last);
    const before = node.inside[at]?.place === last ? node.inside[at] : undefined;
    const value = node.values[last];
    if (isOpen === Boolean(before) || !hasRows(value)) return;
    const changed = before?.node ?? new OpenNode(value);
    if (isOpen) node.inside.splice(at, 0, { place: last, node: changed });
    else node.inside.splice(at, 1);
    for (const one of above) one.count += isOpen ? changed.count : -changed.count;
  }

  #pathNodes(places: readonly number[]): OpenNode[] | null {
    const found = [this.#root];
    for (const place of places) {
      const node = found.at(-1);
      const next = node?.inside[node.search(place)];
      if (next?.place !== place) return null;
      found.push(next.node);
    }
    return found;
  }

  /** Open the topmost values, breadth first, as long as the rows fit on a screen or two. */
  #openSome(): void {
    const waiting: { node: OpenNode; path: string }[] = [{ node: this.#root, path: "" }];
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      for (const [place, value] of next.node.values.slice(0, MAX_INITIAL_ROWS).entries()) {
        if (!hasRows(value) || this.count + sizeOf(value) > MAX_INITIAL_ROWS) continue;
        this.setOpen(`${next.path}${place}`, true);
        const opened = next.node.inside.at(-1);
        if (opened) waiting.push({ node: opened.node, path: `${next.path}${place}/` });
      }
    }
  }

  #collect(node: OpenNode, at: { path: string; level: number; start: number; parent: number }, [from, to]: [number, number], found: TreeRow[]): void {
    let [row, place] = [at.start, 0];
    const plain = (until: number) => {
      const end = Math.min(until, place + Math.max(0, to - row));
      for (let each = place + Math.max(0, from - row); each < end; each++) found.push(rowOf(node, each, at, row + each - place));
      row += until - place;
      place = until;
    };
    for (const { place: open, node: inner } of node.inside) {
      if (row >= to) return;
      plain(open + 1);
      const isInSight = row < to && row + inner.count > from;
      if (isInSight) this.#collect(inner, { path: `${at.path}${open}/`, level: at.level + 1, start: row, parent: row - 1 }, [from, to], found);
      row += inner.count;
    }
    plain(node.values.length);
  }
}

function rowOf(node: OpenNode, place: number, at: { path: string; level: number; parent: number }, index: number): TreeRow {
  const value = node.values[place];
  const name = node.names?.[place];
  const isOpen = node.inside[node.search(place)]?.place === place;
  return {
    ...describeValue(value),
    index,
    path: `${at.path}${place}`,
    level: at.level,
    name: name === undefined ? null : escapeInvisible(JSON.stringify(name.slice(0, MAX_TEXT_CHARACTERS))),
    isOpen,
    place: place + 1,
    beside: node.values.length,
    parent: at.parent,
  };
}

function describeValue(value: unknown): Pick<TreeRow, "kind" | "text" | "size"> {
  if (Array.isArray(value)) return { kind: "array", text: value.length ? "[…]" : "[]", size: value.length };
  if (typeof value === "object" && value !== null) {
    const size = sizeOf(value);
    return { kind: "object", text: size ? "{…}" : "{}", size };
  }
  if (typeof value !== "string") return { kind: typeof value === "number" ? "number" : "word", text: JSON.stringify(value), size: 0 };
  const isCut = value.length > MAX_TEXT_CHARACTERS;
  return { kind: "string", text: escapeInvisible(JSON.stringify(isCut ? value.slice(0, MAX_TEXT_CHARACTERS) : value)) + (isCut ? "…" : ""), size: 0 };
}
