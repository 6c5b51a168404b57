// Entry of the gallery: a sheet of states, or one state in a frame of a sheet. The hash says which.
//
// A sheet is `#GROUP/VARIANT`, a frame `#GROUP/VARIANT/NUMBER`.

import { isVariant } from "./variants.ts";

const [group = "", variant = "light", number] = location.hash.slice(1).split("/");
if (!isVariant(variant)) throw new Error(`There is no variant ${variant}.`);
// Modules are loaded late: the frame fixes time and random numbers before anything of the page runs.
if (number === undefined) await (await import("./sheet.ts")).showSheet(group, variant);
else await (await import("./frame.ts")).showState({ group, variant, number: Number(number) });
