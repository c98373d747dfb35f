// A session of one node with a server.
import { createHash } from "node:crypto";
import { create, fromBinary } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { DbMutationSchema, type DbMutation } from "anabranch-v1/anabranch/v1/batch_pb";
import { Reason } from "anabranch-v1/anabranch/v1/errors_pb";
import { ColumnKindSchema, ValueSchema, type Value } from "anabranch-v1/anabranch/v1/value_pb";
import { VerdictStatus, type Verdict } from "anabranch-v1/anabranch/v1/verdict_pb";
import { ErrorInfoSchema } from "anabranch-v1/google/rpc/error_details_pb";
import { CALL, Client, insert, STREAM, text, update } from "./client.js";
import { content, type Vector } from "./conformance.js";
import { pull } from "./pull.js";

const LETTERS = 20_000;
const PAGE_BYTES = 4096;
const MOST_PAGES = 1000;
/** A position that no server ever gave. */
const NOWHERE = 1n << 60n;

export async function session(vectors: Vector[]): Promise<object> {
  const limits = fromBinary(DbMutationSchema, content(vectors, "rows at their limits"));
  const client = new Client();
  return {
    ...(await describe(client)),
    ...(await write(client, limits)),
    ...(await provoke(client)),
    ...(await page(client)),
    ...(await follow(client)),
    ...(await pull(client)),
  };
}

/** What the one ErrorInfo of a failed call says. */
async function refusal(call: Promise<unknown>): Promise<object> {
  try {
    await call;
  } catch (error) {
    const failed = ConnectError.from(error);
    const [info] = failed.findDetails(ErrorInfoSchema);
    if (info === undefined) {
      throw error;
    }
    // INVALID_ARGUMENT, where the library says InvalidArgument.
    const code = Code[failed.code].replace(/(?!^)([A-Z])/g, "_$1").toUpperCase();
    return { code, domain: info.domain, reason: info.reason };
  }
  throw new Error("a call that had to fail did not");
}

async function describe(client: Client): Promise<object> {
  const request = { dbName: client.database, nodeState: client.state };
  const unauthenticated = await refusal(client.nobody.describe(request, CALL));
  const described = await client.snapshot.describe(request, CALL);
  client.schema = described.state?.schemaVersion ?? 0n;
  const tables = described.tables.map((table) => [
    table.name,
    Object.fromEntries(table.columns.map((column) => [column.name, ColumnKindSchema.value[column.kind]?.name])),
  ]);
  return { unauthenticated, tables: Object.fromEntries(tables) as object };
}

function told(verdict: Verdict): object {
  return { id: verdict.batchId, status: VerdictStatus[verdict.status], position: verdict.position };
}

async function write(client: Client, limits: DbMutation): Promise<object> {
  await client.send();
  const long = [1, 2, 3, 4, 5].map((i) => insert(["id", "t"], text(`long ${i}`), text("x".repeat(LETTERS))));
  const first = await client.send(limits, ...long);
  const second = await client.send(update("row 0", "updated \u{1f600}"));
  return { sent: [...first, ...second].map(told) };
}

function textOf(value: Value | undefined): string {
  return value?.kind.case === "stringValue" ? value.kind.value : "";
}

async function provoke(client: Client): Promise<object> {
  const negative = create(ValueSchema, { kind: { case: "int64Value", value: -1n } });
  const verdicts = await client.send(
    insert(["id", "qty"], text("bad"), negative),
    insert(["id"], text("row 0")),
  );
  const rejected = verdicts.map((verdict) => {
    const [mutation] = verdict.mutations;
    if (verdict.status !== VerdictStatus.REJECTED || mutation === undefined) {
      throw new Error(`not rejected: ${verdict.batchId}`);
    }
    const row = mutation.serverRow;
    return {
      id: verdict.batchId,
      reason: Reason[verdict.reason],
      table: mutation.table,
      key: mutation.key.map(textOf).join(" "),
      constraint: verdict.constraint,
      sqlstate: verdict.sqlstate,
      server_t: textOf(row?.values[row.columns.indexOf("t")]),
    };
  });
  const request = { dbName: client.database, nodeState: client.state, after: NOWHERE };
  return { rejected, refused: await refusal(client.changes.get(request, CALL)) };
}

/** The log to its head. A group may be split over pages, a batch over parts of a group, an effect over parts of a batch. */
async function page(client: Client): Promise<object> {
  const digest = createHash("sha256");
  const log: [bigint, string, number][] = [];
  let pageToken: Uint8Array = new Uint8Array();
  let begun: Uint8Array[] = [];
  for (let pages = 1; pages <= MOST_PAGES; pages++) {
    const request = { dbName: client.database, nodeState: client.state, pageToken, maxBytes: PAGE_BYTES };
    const response = await client.changes.get(request, CALL);
    for (const group of response.page?.groups ?? []) {
      for (const batch of group.batches) {
        let entry = log.at(-1);
        if (entry === undefined || entry[1] !== batch.id) {
          entry = [group.position, batch.id, 0];
          log.push(entry);
        }
        for (const [i, effect] of batch.effects.entries()) {
          begun.push(effect);
          if (batch.effectIncomplete && i === batch.effects.length - 1) {
            break;
          }
          const whole = Buffer.concat(begun);
          const length = Buffer.alloc(4);
          length.writeUInt32BE(whole.length);
          digest.update(length).update(whole);
          begun = [];
          entry[2]++;
        }
      }
    }
    const reached = response.page?.reached;
    if (reached !== undefined) {
      client.state.acknowledged = reached.serverTimestampMs;
      client.state.greatestSeen = reached;
    }
    pageToken = response.nextPageToken;
    if (pageToken.length === 0) {
      return { pages, log, effects: digest.digest("hex") };
    }
  }
  throw new Error(`no end after ${MOST_PAGES} pages`);
}

async function follow(client: Client): Promise<object> {
  const ended = new AbortController();
  const request = { dbName: client.database, nodeState: client.state, after: client.state.acknowledged };
  // With timeoutMs the process would wait for the deadline, also of a stream that was ended long before.
  const signal = AbortSignal.any([ended.signal, AbortSignal.timeout(STREAM.timeoutMs)]);
  const stream = client.changes.subscribe(request, { signal })[Symbol.asyncIterator]();
  await stream.next();
  const [verdict] = await client.send(update("row 1", "followed"));
  try {
    for (let next = await stream.next(); next.done !== true; next = await stream.next()) {
      for (const group of next.value.page?.groups ?? []) {
        if (group.batches.some((batch) => batch.id === verdict?.batchId)) {
          return { followed: { id: verdict?.batchId, status: "APPLIED", position: group.position } };
        }
      }
    }
  } finally {
    ended.abort();
  }
  throw new Error("the subscription ended before the batch came");
}
