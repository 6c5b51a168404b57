// Removes a folder of generated files: `node clean.js FOLDER`.

import { rmSync } from "node:fs";

const [folder] = process.argv.slice(2);
if (!folder) throw new Error("Name the folder to remove.");
rmSync(folder, { recursive: true, force: true });
