// Server-sent events of an import, as they arrive.

import type { ImportEnded, ImportFailed, ImportProgress } from "@khala/client";

export type ImportEvent = ImportProgress | ImportEnded | ImportFailed;

const END = "\n\n";
const DATA = "data: ";
const TYPES: readonly string[] = ["progress", "imported", "failed"] satisfies ImportEvent["type"][];

/** Reads events from a growing text. */
export class ImportEventReader {
  #read = 0;

  /** The events that are complete since the last call. Comments and events of other types are left out. */
  next(text: string): readonly ImportEvent[] {
    const events: ImportEvent[] = [];
    for (let end = text.indexOf(END, this.#read); end >= 0; end = text.indexOf(END, this.#read)) {
      const line = text.slice(this.#read, end).split("\n").find((one) => one.startsWith(DATA));
      this.#read = end + END.length;
      const event = line === undefined ? null : (JSON.parse(line.slice(DATA.length)) as ImportEvent);
      if (event !== null && TYPES.includes(event.type)) events.push(event);
    }
    return events;
  }
}
