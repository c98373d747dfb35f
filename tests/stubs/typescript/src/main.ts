// A client of Anabranch on the generated stubs alone. ../README.md says what it does.
import { readFileSync } from "node:fs";
import { conformance, type Vector } from "./conformance.js";
import { session } from "./session.js";

const [command, file] = process.argv.slice(2);
if (file === undefined || (command !== "conformance" && command !== "session")) {
  throw new Error("usage: main.js conformance|session FILE");
}
const vectors = JSON.parse(readFileSync(file, "utf8")) as Vector[];
const told = command === "conformance" ? conformance(vectors) : await session(vectors);
// A position is a bigint here; its numbers are small enough for JSON.
console.log(JSON.stringify(told, (_, value: unknown) => (typeof value === "bigint" ? Number(value) : value)));
