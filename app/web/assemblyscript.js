// A Vite plugin: `src/agent/assembly/scan.wasm` is there, and is what `scan.ts` beside it says, before anything imports it.

import { readFile, rename, stat, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";

const SOURCE = join(import.meta.dirname, "src/agent/assembly/scan.ts");
const OUTPUT = SOURCE.replace(/\.ts$/, ".wasm");

/** Compiles where the source, or this file, is younger than what was compiled from it; an error of the compiler ends the build. */
export function assemblyscript() {
  return {
    name: "assemblyscript",
    async configResolved() {
      const [output, ...sources] = await Promise.all([OUTPUT, SOURCE, import.meta.filename].map(changed));
      if (output <= Math.max(...sources)) await compile();
    },
    async hotUpdate({ file }) {
      if (file === SOURCE) await compile();
    },
  };
}

async function changed(path) {
  return stat(path).then(
    ({ mtimeMs }) => mtimeMs,
    () => -1,
  );
}

async function compile() {
  // The compiler weighs a lot, and mostly there is nothing to compile.
  const { default: asc } = await import("assemblyscript/asc");
  const name = basename(SOURCE);
  const ways = ["--outFile", "out.wasm", "--optimizeLevel", "3", "--shrinkLevel", "0", "--runtime", "stub", "--noAssert", "--enable", "simd", "--memoryBase", "0"];
  let compiled;
  const { error, stderr } = await asc.main([name, "--baseDir", dirname(SOURCE), ...ways], {
    readFile: (path, base) => readFile(join(base, path), "utf8").catch(() => null),
    writeFile: (path, contents) => void (compiled = contents),
  });
  if (error) throw new Error(`${name} does not compile.\n${stderr}`, { cause: error });
  // Whoever reads it beside us sees the old or the new, never a half.
  const fresh = `${OUTPUT}.${process.pid}`;
  await writeFile(fresh, compiled);
  await rename(fresh, OUTPUT);
}
