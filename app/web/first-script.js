// Keeps what the page needs to open in few files. The build would put each module that a later part imports too into a file of its
// own, so a browser would ask for tens of small files before anything is seen.

import { join } from "node:path";

const ENTRY = join(import.meta.dirname, "src/main.ts");
/** The module that the entry loads after the messages. */
const START = join(import.meta.dirname, "src/start.ts");

/** Groups of Rolldown's `codeSplitting`: what the entry imports at once, and what `start.ts` imports at once. */
export function firstScripts() {
  return [
    { name: named("messages", ENTRY), priority: 2, debugName: "the scripts of the entry" },
    { name: named("page", START), priority: 1, debugName: "the scripts of the page" },
  ];
}

/** Gives the modules that this one imports before it runs this name. */
function named(name, start) {
  let modules;
  return (id, context) => {
    modules ??= closure(start, (module) => context.getModuleInfo(module)?.importedIds ?? []);
    return id !== start && modules.has(id) ? name : null;
  };
}

function closure(start, imports) {
  const found = new Set([start]);
  for (const module of found) for (const next of imports(module)) found.add(next);
  return found;
}
