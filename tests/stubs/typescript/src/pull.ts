// A table, by Arrow.
import { DataType, tableFromIPC, type Vector } from "apache-arrow";
import { STREAM, type Client } from "./client.js";

export async function pull(client: Client): Promise<object> {
  let asOf = 0n;
  let columns: string[] = [];
  let begun: Uint8Array[] = [];
  const rows: (string | null)[][] = [];
  const request = { dbName: client.database, nodeState: client.state, required: [{ table: "kinds" }] };
  for await (const response of client.snapshot.pull(request, STREAM)) {
    asOf = response.asOf?.serverTimestampMs ?? 0n;
    begun.push(response.arrowIpc);
    if (response.arrowIpcIncomplete) {
      continue;
    }
    const chunk = Buffer.concat(begun);
    begun = [];
    if (chunk.length === 0) {
      continue;
    }
    const table = tableFromIPC(chunk);
    columns = table.schema.fields.map((field) => field.name);
    const texts = columns.map((name) => textsOf(table.getChild(name)));
    for (let i = 0; i < table.numRows; i++) {
      rows.push(texts.map((column) => column[i] ?? null));
    }
  }
  return { as_of: asOf, columns, rows };
}

function textsOf(column: Vector | null): (string | null)[] {
  if (column === null) {
    throw new Error("a column of the schema is not there");
  }
  const out: (string | null)[] = [];
  for (const part of column.data) {
    // Numbers are taken from the buffer itself: get() rounds moments to milliseconds.
    for (let i = 0; i < part.length; i++) {
      if (!part.getValid(i)) {
        out.push(null);
      } else if (DataType.isTimestamp(part.type) || DataType.isTime(part.type) || DataType.isDate(part.type)) {
        out.push(numbers(part.values)[i]?.toString() ?? null);
      } else {
        out.push(textOf(column.get(out.length)));
      }
    }
  }
  return out;
}

/** The 64 bit numbers of a buffer, which the library may hold as pairs of 32 bits. */
function numbers(values: unknown): BigInt64Array | Int32Array {
  if (values instanceof BigInt64Array || values instanceof Int32Array) {
    return values;
  }
  throw new Error(`numbers in ${Object.prototype.toString.call(values)}`);
}

function textOf(cell: unknown): string {
  if (typeof cell === "number") {
    const bits = Buffer.alloc(8);
    bits.writeDoubleBE(cell);
    return bits.toString("hex");
  }
  return cell instanceof Uint8Array ? Buffer.from(cell).toString("hex") : String(cell);
}
